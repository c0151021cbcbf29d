//! The directory of compiled components.
//!
//! A compiled component is code that is run as it is, so nothing in the directory is trusted for being there: a file must be
//! a regular one of our own, and its name carries the hash of the component it was made of and the hash of its own content,
//! and both must be right. A file gets its name when it is finished, so there is no second file that could disagree. What does not
//! match, and what this version of wasmtime does not take, is removed and compiled again; a file that could only not be looked at,
//! for want of a descriptor for example, stays. Native code and code for the interpreter have names of their own.
//!
//! What is not finished has no name at all, so whatever is killed in the middle leaves nothing behind. A file system that cannot name
//! a file afterwards gets a copy, and what a kill leaves of that is swept up after an hour.
//!
//! A component that the compiler refused is not compiled again by this process: it is known by its hash.
//!
//! Whoever runs a file holds a shared lock on it, and no file that is locked is ever removed; of the others go those that
//! nobody has loaded for a month, and then the one that was loaded longest ago, until the rest fits into [`ROOM`].

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::code::Code;
use crate::compiler::Compiler;
use crate::limits::{Bytes, Seconds};
use crate::passing;

/// Why there is no compiled code for a component.
#[derive(Debug, thiserror::Error)]
pub enum CompiledError {
    #[error("could not {operation} {path}")]
    File { operation: &'static str, path: PathBuf, source: io::Error },
    #[error("could not run the compiler {compiler}")]
    Run { compiler: PathBuf, source: io::Error },
    #[error("compiling used more than its {} of processor time", Seconds(*.0))]
    Time(Duration),
    #[error("the compiler made no progress for {}", Seconds(*.0))]
    Stalled(Duration),
    #[error("compiling used more than its {} of memory", Bytes(usize::try_from(*.0).unwrap_or(usize::MAX)))]
    Memory(u64),
    #[error("the compiled code is more than its {}", Bytes(usize::try_from(*.0).unwrap_or(usize::MAX)))]
    Output(u64),
    /// The component cannot be compiled; the compiler's own words.
    #[error("the compiler refused it: {0}")]
    Refused(String),
    /// The compiler failed for another reason: it was killed, or the disk is full. Its own words, or how it ended.
    #[error("the compiler failed: {0}")]
    Failed(String),
    #[error("the compiled code was not accepted")]
    Load(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the work was given up because the program ends")]
    Ending,
}

impl CompiledError {
    /// Whether another attempt may succeed with the same component.
    pub fn is_of_the_moment(&self) -> bool {
        !matches!(self, Self::Refused(_) | Self::Output(_))
    }

    /// The same, of a component that is at fault itself.
    fn of_the_component(&self) -> Option<Self> {
        match self {
            Self::Refused(words) => Some(Self::Refused(words.clone())),
            Self::Output(limit) => Some(Self::Output(*limit)),
            _ => None,
        }
    }
}

/// Told `true` when a component begins to be compiled, and `false` when that is over, however it ended.
pub type OnCompile = Arc<dyn Fn(bool) + Send + Sync>;

/// Says that the compilation is over when it is dropped.
struct Compiling<'a>(&'a OnCompile);

impl<'a> Compiling<'a> {
    fn begin(told: &'a OnCompile) -> Self {
        told(true);
        Self(told)
    }
}

impl Drop for Compiling<'_> {
    fn drop(&mut self) {
        (self.0)(false);
    }
}

/// A SHA-256.
pub(crate) type Hash = [u8; 32];

pub(crate) fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

pub(crate) fn hex(hash: &Hash) -> String {
    use std::fmt::Write as _;
    hash.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

/// From this age on, a file that is not compiled code is nobody's: it is there only while it is copied.
const ABANDONED: Duration = Duration::from_hours(1);
/// Compiled code that nobody has loaded for so long goes.
const UNUSED: Duration = Duration::from_hours(30 * 24);
/// How many refused components are remembered.
const REFUSED: usize = 256;
/// Components that are compiled at once: each takes a core. What is in the directory already waits for none of them.
const AT_ONCE: usize = 2;
/// Bytes of compiled code that are kept, in use or not.
const ROOM: u64 = 1 << 30;

/// A component that can be run, and the file that it is mapped from: locked for as long as this lives.
pub(crate) struct Compiled {
    pub(crate) component: Component,
    _in_use: InUse,
}

/// A file that is not to be removed.
struct InUse(File);

impl Drop for InUse {
    fn drop(&mut self) {
        // To close it is not enough: a process that is being started has a copy of the descriptor until it is another program.
        let _ = self.0.unlock(); // it may never have been locked
    }
}

#[derive(Debug)]
pub(crate) struct Cache {
    directory: PathBuf,
    compiler: Compiler,
    /// One lock for each component that is being loaded, so that it is compiled once.
    loading: Mutex<HashMap<Hash, Arc<tokio::sync::Mutex<()>>>>,
    /// The compilations that may begin now.
    permits: Semaphore,
    /// The components that cannot be compiled, and why.
    refused: Mutex<HashMap<Hash, CompiledError>>,
}

impl Cache {
    /// Takes a directory that nobody else can write to; makes it if it is not there.
    pub(crate) fn open(directory: PathBuf, compiler: Compiler) -> io::Result<Self> {
        Self::make_private(&directory)?;
        let (loading, refused) = (Mutex::default(), Mutex::default());
        let cache = Self { directory, compiler, loading, permits: Semaphore::new(AT_ONCE), refused };
        cache.sweep()?;
        Ok(cache)
    }

    /// The same for who wants to know what can be run from there before there is a cache.
    pub(crate) fn make_private(directory: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let metadata = fs::symlink_metadata(directory)?;
        if !metadata.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "not a directory"));
        }
        if metadata.uid() != nix::unistd::geteuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the directory belongs to another user"));
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
        }
        Ok(())
    }

    /// Removes what a process left that was killed while it copied, and compiled code that is not used. What is young may be the copy
    /// that another process is making.
    fn sweep(&self) -> io::Result<()> {
        let mut compiled = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
            let used = metadata.modified().unwrap_or_else(|_| SystemTime::now());
            if is_compiled(&path) {
                compiled.push((used, metadata.len(), path));
            } else if used.elapsed().unwrap_or_default() > ABANDONED {
                let _ = fs::remove_file(path); // gone already, or no file of ours
            }
        }
        compiled.sort_unstable_by_key(|&(used, ..)| Reverse(used));
        let mut room = ROOM;
        for (used, size, path) in compiled {
            let fits = room >= size;
            if fits && used.elapsed().unwrap_or_default() <= UNUSED || !remove_unused(&path) {
                room = room.saturating_sub(size);
            }
        }
        Ok(())
    }

    /// The compiled component: from the directory, or compiled now.
    pub(crate) async fn load(
        self: &Arc<Self>,
        engine: &Engine,
        bytes: Arc<[u8]>,
        component: Hash,
        on_compile: &OnCompile,
    ) -> Result<Compiled, CompiledError> {
        let turn = Arc::clone(locked(&self.loading).entry(component).or_default());
        let result = {
            let _turn = turn.lock().await;
            self.load_in_turn(engine, bytes, component, on_compile).await
        };
        // The entry and ours are the last two: nobody waits.
        let mut loading = locked(&self.loading);
        if Arc::strong_count(&turn) <= 2 {
            loading.remove(&component);
        }
        result
    }

    async fn load_in_turn(
        self: &Arc<Self>,
        engine: &Engine,
        bytes: Arc<[u8]>,
        component: Hash,
        on_compile: &OnCompile,
    ) -> Result<Compiled, CompiledError> {
        let (cache, its_engine) = (Arc::clone(self), engine.clone());
        if let Some(found) = blocking(move || cache.find(&its_engine, component)).await?? {
            return Ok(found);
        }
        if let Some(refused) = locked(&self.refused).get(&component).and_then(CompiledError::of_the_component) {
            return Err(refused);
        }
        let _permit = self.permits.acquire().await.map_err(|_| CompiledError::Ending)?;
        let _compiling = Compiling::begin(on_compile);
        let cache = Arc::clone(self);
        let (input, output) = blocking(move || {
            Self::make_private(&cache.directory)?; // people empty such directories
            let mut input = tempfile::tempfile_in(&cache.directory)?;
            input.write_all(&bytes)?;
            input.rewind()?;
            let output = tempfile::tempfile_in(&cache.directory)?;
            output.set_permissions(fs::Permissions::from_mode(0o600))?; // whatever this process takes from new files
            io::Result::Ok((input, output))
        })
        .await?
        .map_err(|source| CompiledError::File {
            operation: "write into",
            path: self.directory.clone(),
            source,
        })?;
        let its_output = output.try_clone();
        let its_output =
            its_output.map_err(|source| CompiledError::Run { compiler: self.compiler.program.clone(), source })?;
        if let Err(error) = self.compiler.run(input, its_output).await {
            if let Some(refused) = error.of_the_component() {
                let mut known = locked(&self.refused);
                if known.len() >= REFUSED {
                    known.clear(); // each is compiled once more, and no more than that
                }
                known.insert(component, refused);
            }
            return Err(error);
        }
        let (cache, engine) = (Arc::clone(self), engine.clone());
        blocking(move || cache.take_in(&engine, component, &output)).await?
    }

    /// The file of a component that is what its name says and that wasmtime takes. Those before it that are not are removed.
    fn find(&self, engine: &Engine, component: Hash) -> Result<Option<Compiled>, CompiledError> {
        let unseen = |path: &Path, source| CompiledError::File { operation: "look at", path: path.to_owned(), source };
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if passing::is_of_the_moment(&error) => return Err(unseen(&self.directory, error)),
            Err(_) => return Ok(None), // it is made when something is compiled, or that fails and says why
        };
        let prefix = format!("{}-", hex(&component));
        let ending = format!(".{}", self.compiler.code.extension());
        let mut not_seen = None;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(own) = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(&ending)) else {
                continue;
            };
            let path = entry.path();
            match accept(engine, &path, own) {
                Ok(found) => return Ok(Some(found)),
                Err(NotTaken::Unfit(_)) => {
                    tracing::info!(path = %path.display(), "a compiled plugin is of another version or damaged: it is compiled again");
                    remove_unused(&path); // what cannot be removed is passed over the same way next time
                }
                Err(NotTaken::Removed) => {}
                Err(NotTaken::Unseen(error)) => not_seen = Some(unseen(&path, error)),
            }
        }
        not_seen.map_or(Ok(None), Err)
    }

    /// Gives what the child wrote its name, and loads it.
    fn take_in(&self, engine: &Engine, component: Hash, output: &File) -> Result<Compiled, CompiledError> {
        let file = |operation, path: &Path, source| CompiledError::File { operation, path: path.to_owned(), source };
        let own = hash_of(output).map_err(|source| file("read", &self.directory, source))?;
        let own = hex(&own);
        let path = self.directory.join(format!("{}-{own}.{}", hex(&component), self.compiler.code.extension()));
        let mut taken = Err(NotTaken::Removed);
        match give_name(output, &path) {
            Ok(()) => {}
            // Another process has compiled the same meanwhile; or the file is of no use, and could not be removed before.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                taken = accept(engine, &path, &own);
                if matches!(taken, Err(NotTaken::Unfit(_) | NotTaken::Removed)) {
                    copy(output, &path).map_err(|source| file("write", &path, source))?;
                }
            }
            // The file system cannot give names afterwards.
            Err(_) => copy(output, &path).map_err(|source| file("write", &path, source))?,
        }
        if !matches!(taken, Ok(_) | Err(NotTaken::Unseen(_))) {
            taken = accept(engine, &path, &own);
        }
        let compiled = taken.map_err(|why| match why {
            NotTaken::Unfit(why) => {
                remove_unused(&path);
                CompiledError::Load(why)
            }
            NotTaken::Removed => file("open", &path, io::Error::other("another process removes it")),
            NotTaken::Unseen(source) => file("open", &path, source),
        })?;
        if let Err(error) = self.sweep() {
            tracing::warn!(error = &error as &dyn std::error::Error, directory = %self.directory.display(), "could not look for compiled plugins that are not used");
        }
        Ok(compiled)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a file without a name this one (`O_TMPFILE` of open(2)). Linux and some of its file systems can do that.
fn give_name(file: &File, path: &Path) -> io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    nix::unistd::linkat(AT_FDCWD, own.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW).map_err(io::Error::from)
}

/// Copies a file that cannot be given a name.
fn copy(mut file: &File, path: &Path) -> io::Result<()> {
    let directory = path.parent().unwrap_or(path);
    let mut copy = tempfile::Builder::new().suffix(".new").tempfile_in(directory)?;
    file.rewind()?;
    io::copy(&mut file, &mut copy)?;
    copy.persist(path).map(drop).map_err(|error| error.error)
}

fn is_compiled(path: &Path) -> bool {
    [Code::Native, Code::Interpreted]
        .iter()
        .any(|code| path.extension().is_some_and(|extension| extension == code.extension()))
}

/// Opens a file that is one, and ours alone to write.
fn open_own(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK; // neither a link nor the other end of a FIFO
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    let own = metadata.uid() == nix::unistd::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if metadata.is_file() && own {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not a file that we alone can write"))
    }
}

/// Removes a file that nobody runs; whether it is gone.
fn remove_unused(path: &Path) -> bool {
    let file = open_own(path).map(InUse); // what cannot be opened so, nobody runs
    if let Ok(file) = &file
        && matches!(file.0.try_lock(), Err(TryLockError::WouldBlock))
    {
        return false;
    }
    fs::remove_file(path).is_ok()
}

/// Of the whole file, wherever it was read or written before.
fn hash_of(mut file: &File) -> io::Result<Hash> {
    file.rewind()?;
    let mut hasher = Sha256::new();
    let mut block = vec![0; 64 << 10];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hasher.finalize().into()),
            read => hasher.update(&block[..read]),
        }
    }
}

/// Why a file is not taken.
enum NotTaken {
    /// It is not ours, not what its name says, or nothing that this wasmtime takes.
    Unfit(Box<dyn std::error::Error + Send + Sync>),
    /// It is gone, or another process is about to remove it.
    Removed,
    /// It could not be looked at, for a reason that passes and says nothing of it.
    Unseen(io::Error),
}

impl From<io::Error> for NotTaken {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Removed,
            _ if passing::is_of_the_moment(&error) => Self::Unseen(error),
            _ => Self::Unfit(error.into()),
        }
    }
}

impl From<wasmtime::Error> for NotTaken {
    fn from(error: wasmtime::Error) -> Self {
        let of_the_system = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
        match of_the_system.filter(|error| passing::is_of_the_moment(error)).and_then(io::Error::raw_os_error) {
            Some(number) => Self::Unseen(io::Error::from_raw_os_error(number)),
            None => Self::Unfit(error.into()),
        }
    }
}

/// The component in the file, if it is ours, its content is what its name says, and wasmtime takes it.
fn accept(engine: &Engine, path: &Path, own: &str) -> Result<Compiled, NotTaken> {
    let file = InUse(open_own(path)?);
    if let Err(TryLockError::WouldBlock) = file.0.try_lock_shared() {
        return Err(NotTaken::Removed);
    }
    if hex(&hash_of(&file.0)?) != own {
        return Err(NotTaken::Unfit("its content is not what its name says".into()));
    }
    let component = load_file(engine, path)?;
    let _ = file.0.set_modified(SystemTime::now()); // when it was last loaded; else it goes a little sooner
    Ok(Compiled { component, _in_use: file })
}

#[allow(unsafe_code, reason = "native code is mapped and run as it stands in the file")]
fn load_file(engine: &Engine, path: &Path) -> wasmtime::Result<Component> {
    // SAFETY: wasmtime asks that the file be one that it wrote, and that it not change while it is mapped. The directory is
    // ours alone (0700, owner checked when it was opened); the content's hash stands in the file's name and was checked just
    // before; a file is only ever replaced by a rename or removed, which leaves a mapping of the old one as it is. Whoever can
    // write there runs as this user already.
    unsafe { Component::deserialize_file(engine, path) }
}

/// Runs what blocks where it may; a panic in it goes on here.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, CompiledError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => Ok(value),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(CompiledError::Ending),
    }
}
