//! The directory of compiled components.
//!
//! wasmtime runs compiled code without further checks, so the cache trusts no file because of its location. It
//! accepts a file only under these conditions:
//! - The file is regular, and only this user can write it.
//! - The component's hash in its name is the requested one.
//! - The content's hash in its name is correct.
//!
//! A file gets its name only when it is complete. A file that fails the checks, or that this version of
//! wasmtime rejects, is removed and compiled again. A file that could not be checked for a temporary reason,
//! such as a lack of file descriptors, stays. Native code and interpreter code have different file name
//! extensions.
//!
//! Unfinished files have no name (`O_TMPFILE`), so a killed process leaves nothing behind. File systems that
//! cannot name a file later get a copy instead. Copies that a killed process left behind are removed after one
//! hour.
//!
//! A process remembers the hashes of components that the compiler refused, and does not compile them again.
//!
//! A process that runs a file holds a shared lock on the file, and locked files are never removed. Files that
//! no process loaded for 30 days are removed. Then the least recently loaded files are removed until the rest
//! fits into [`ROOM`].

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use agentd_directory::{Link, PrivateError};
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::code::Code;
use crate::compiler::Compiler;
use crate::limits::{Bytes, Seconds};
use crate::passing;

/// Why no compiled code is available for a component.
#[derive(Debug, thiserror::Error)]
pub enum CompiledError {
    /// A file operation in the cache directory failed.
    #[error("could not {operation} {path}")]
    File { operation: &'static str, path: PathBuf, source: io::Error },
    /// The compiler could not be started or awaited.
    #[error("could not run the compiler {compiler}")]
    Run { compiler: PathBuf, source: io::Error },
    /// The compiler reached its limit of processor time.
    #[error("compiling used more than its {} of processor time", Seconds(*.0))]
    Time(Duration),
    /// The compiler used no processor time for this long.
    #[error("the compiler made no progress for {}", Seconds(*.0))]
    Stalled(Duration),
    /// The compiler reached its memory limit, in bytes.
    #[error("compiling used more than its {} of memory", Bytes(usize::try_from(*.0).unwrap_or(usize::MAX)))]
    Memory(u64),
    /// The compiled code reached its size limit, in bytes.
    #[error("the compiled code is more than its {}", Bytes(usize::try_from(*.0).unwrap_or(usize::MAX)))]
    Output(u64),
    /// The component cannot be compiled. Holds the compiler's message.
    #[error("the compiler refused the component: {0}")]
    Refused(String),
    /// The compiler failed for another reason, for example a signal or a full disk. Holds its message or its
    /// exit status.
    #[error("the compiler failed: {0}")]
    Failed(String),
    /// wasmtime rejected the code that was just compiled.
    #[error("the compiled code was not accepted")]
    Load(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The process is ending.
    #[error("cancelled, because the process is ending")]
    Ending,
}

impl CompiledError {
    /// Reports whether another attempt with the same component may succeed.
    pub fn is_temporary(&self) -> bool {
        !matches!(self, Self::Refused(_) | Self::Output(_))
    }

    /// Returns a copy of the error if the component itself is at fault.
    fn of_the_component(&self) -> Option<Self> {
        match self {
            Self::Refused(words) => Some(Self::Refused(words.clone())),
            Self::Output(limit) => Some(Self::Output(*limit)),
            _ => None,
        }
    }
}

/// Callback around a compilation: called with `true` at its start, and with `false` when it ends in any way.
pub type OnCompile = Arc<dyn Fn(bool) + Send + Sync>;

/// Reports the end of a compilation when dropped.
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

/// A SHA-256 digest.
pub(crate) type Hash = [u8; 32];

pub(crate) fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// Age from which an incomplete copy is considered abandoned and removed.
const ABANDONED: Duration = Duration::from_hours(1);
/// Time without use after which compiled code is removed.
const UNUSED: Duration = Duration::from_hours(30 * 24);
/// Maximum number of remembered refused components.
const REFUSED: usize = 256;
/// Maximum number of concurrent compilations. Each takes one core. Loading code from the cache does not count.
const AT_ONCE: usize = 2;
/// Maximum size of the cache in bytes, if no more than that is in use.
const ROOM: u64 = 1 << 30;

/// A component that is ready to run, with the file that it is mapped from. The file is locked while this value
/// exists.
pub(crate) struct Compiled {
    pub(crate) component: Component,
    _in_use: InUse,
}

/// A lock that protects a file from removal.
struct InUse(File);

impl Drop for InUse {
    fn drop(&mut self) {
        // Closing the file is not enough. A process between fork and exec holds a copy of the descriptor, and
        // with it the lock.
        let _ = self.0.unlock(); // it may never have been locked
    }
}

/// The cache directory with its compiler and its locks.
#[derive(Debug)]
pub(crate) struct Cache {
    directory: PathBuf,
    compiler: Compiler,
    /// One lock for each component that is being loaded, so that a component is compiled only once.
    loading: Mutex<HashMap<Hash, Arc<tokio::sync::Mutex<()>>>>,
    /// Permits for concurrent compilations.
    permits: Semaphore,
    /// Components that the compiler refused, with the error.
    refused: Mutex<HashMap<Hash, CompiledError>>,
}

impl Cache {
    /// Opens a cache directory that only this user can access. Creates the directory if it does not exist, and
    /// removes unused files.
    pub(crate) fn open(directory: PathBuf, compiler: Compiler) -> io::Result<Self> {
        Self::make_private(&directory)?;
        let (loading, refused) = (Mutex::default(), Mutex::default());
        let cache = Self { directory, compiler, loading, permits: Semaphore::new(AT_ONCE), refused };
        cache.sweep()?;
        Ok(cache)
    }

    /// Creates the directory or tightens its mode to 0700. Fails if the directory belongs to another user.
    ///
    /// The host calls this before it opens the cache, to find out which kind of code can run from the
    /// directory.
    pub(crate) fn make_private(directory: &Path) -> io::Result<()> {
        agentd_directory::make_private(directory, Link::Refuse).map_err(|error| match error {
            PrivateError::Io(error) => error,
            PrivateError::Owner { .. } => {
                io::Error::new(io::ErrorKind::PermissionDenied, "the directory belongs to another user")
            }
        })
    }

    /// Removes abandoned copies and unused compiled code. A recent copy is kept, because another process may be
    /// writing it.
    fn sweep(&self) -> io::Result<()> {
        let mut compiled = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
            let used = metadata.modified().unwrap_or_else(|_| SystemTime::now());
            if is_compiled(&path) {
                compiled.push((used, metadata.len(), path));
            } else if used.elapsed().unwrap_or_default() > ABANDONED {
                let _ = fs::remove_file(path); // it may be gone already, or not be removable
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

    /// Loads a component from the cache, or compiles it first.
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
        // Two references are left, in the map and here, if no other task waits.
        let mut loading = locked(&self.loading);
        if Arc::strong_count(&turn) <= 2 {
            loading.remove(&component);
        }
        result
    }

    /// Loads the component while holding its lock.
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
            Self::make_private(&cache.directory)?; // users delete cache directories
            let mut input = tempfile::tempfile_in(&cache.directory)?;
            input.write_all(&bytes)?;
            input.rewind()?;
            let output = tempfile::tempfile_in(&cache.directory)?;
            output.set_permissions(fs::Permissions::from_mode(0o600))?; // independent of the umask
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
                    known.clear(); // each of them is then compiled at most once more
                }
                known.insert(component, refused);
            }
            return Err(error);
        }
        let (cache, engine) = (Arc::clone(self), engine.clone());
        blocking(move || cache.take_in(&engine, component, &output)).await?
    }

    /// Finds a valid file for the component. Invalid files that come before it in the directory are removed.
    fn find(&self, engine: &Engine, component: Hash) -> Result<Option<Compiled>, CompiledError> {
        let unseen = |path: &Path, source| CompiledError::File { operation: "inspect", path: path.to_owned(), source };
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if passing::is_temporary(&error) => return Err(unseen(&self.directory, error)),
            Err(_) => return Ok(None), // compiling creates the directory, or reports the error
        };
        let prefix = format!("{}-", hex::encode(component));
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
                Err(Rejection::Unfit(_)) => {
                    tracing::info!(
                        path = %path.display(),
                        "compiled plugin is damaged or from another version; compiling it again"
                    );
                    remove_unused(&path); // if this fails, the next search skips the file again
                }
                Err(Rejection::Removed) => {}
                Err(Rejection::Unseen(error)) => not_seen = Some(unseen(&path, error)),
            }
        }
        not_seen.map_or(Ok(None), Err)
    }

    /// Names the file that the compiler wrote, and loads it.
    fn take_in(&self, engine: &Engine, component: Hash, output: &File) -> Result<Compiled, CompiledError> {
        let file = |operation, path: &Path, source| CompiledError::File { operation, path: path.to_owned(), source };
        let own = hash_of(output).map_err(|source| file("read", &self.directory, source))?;
        let own = hex::encode(own);
        let path = self.directory.join(format!("{}-{own}.{}", hex::encode(component), self.compiler.code.extension()));
        let mut taken = Err(Rejection::Removed);
        match give_name(output, &path) {
            Ok(()) => {}
            // Another process compiled the component in the meantime, or an invalid file could not be removed
            // before.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                taken = accept(engine, &path, &own);
                if matches!(taken, Err(Rejection::Unfit(_) | Rejection::Removed)) {
                    copy(output, &path).map_err(|source| file("write", &path, source))?;
                }
            }
            // The file system cannot name an unnamed file.
            Err(_) => copy(output, &path).map_err(|source| file("write", &path, source))?,
        }
        if !matches!(taken, Ok(_) | Err(Rejection::Unseen(_))) {
            taken = accept(engine, &path, &own);
        }
        let compiled = taken.map_err(|why| match why {
            Rejection::Unfit(why) => {
                remove_unused(&path);
                CompiledError::Load(why)
            }
            Rejection::Removed => file("open", &path, io::Error::other("another process is removing the file")),
            Rejection::Unseen(source) => file("open", &path, source),
        })?;
        if let Err(error) = self.sweep() {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, directory = %self.directory.display(), "could not remove unused compiled plugins");
        }
        Ok(compiled)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Links an unnamed file (open(2), `O_TMPFILE`) to a path. Works on Linux and some of its file systems.
fn give_name(file: &File, path: &Path) -> io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    nix::unistd::linkat(AT_FDCWD, own.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW).map_err(io::Error::from)
}

/// Copies a file that cannot be linked to a path.
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

/// Opens a regular file that only this user can write.
fn open_own(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK; // do not follow a symlink, do not block on a FIFO
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    let own = metadata.uid() == nix::unistd::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if metadata.is_file() && own {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "not a regular file that only this user can write"))
    }
}

/// Removes a file unless a process runs it. Reports whether the file was removed.
fn remove_unused(path: &Path) -> bool {
    let file = open_own(path).map(InUse); // no process runs a file that fails these checks
    if let Ok(file) = &file
        && matches!(file.0.try_lock(), Err(TryLockError::WouldBlock))
    {
        return false;
    }
    fs::remove_file(path).is_ok()
}

/// Computes the hash of the whole file, independent of the current file position.
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

/// Why a file of the cache was not accepted.
enum Rejection {
    /// The file belongs to another user, does not match the hash in its name, or is rejected by wasmtime.
    Unfit(Box<dyn std::error::Error + Send + Sync>),
    /// The file does not exist any more, or another process is removing it.
    Removed,
    /// The file could not be checked for a temporary reason.
    Unseen(io::Error),
}

impl From<io::Error> for Rejection {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Removed,
            _ if passing::is_temporary(&error) => Self::Unseen(error),
            _ => Self::Unfit(error.into()),
        }
    }
}

impl From<wasmtime::Error> for Rejection {
    fn from(error: wasmtime::Error) -> Self {
        let of_the_system = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
        match of_the_system.filter(|error| passing::is_temporary(error)).and_then(io::Error::raw_os_error) {
            Some(number) => Self::Unseen(io::Error::from_raw_os_error(number)),
            None => Self::Unfit(error.into()),
        }
    }
}

/// Loads a file if it belongs to this user, matches the hash in its name, and wasmtime accepts it.
fn accept(engine: &Engine, path: &Path, own: &str) -> Result<Compiled, Rejection> {
    let file = InUse(open_own(path)?);
    if let Err(TryLockError::WouldBlock) = file.0.try_lock_shared() {
        return Err(Rejection::Removed);
    }
    if hex::encode(hash_of(&file.0)?) != own {
        return Err(Rejection::Unfit("the content does not match the hash in the file name".into()));
    }
    let component = load_file(engine, path)?;
    let _ = file.0.set_modified(SystemTime::now()); // time of last use; a failure only makes removal earlier
    Ok(Compiled { component, _in_use: file })
}

#[allow(unsafe_code, reason = "native code is mapped and run without further checks")]
fn load_file(engine: &Engine, path: &Path) -> wasmtime::Result<Component> {
    // SAFETY: wasmtime requires that it wrote the file itself and that the file does not change while mapped.
    // Only this user can access the directory (mode 0700, owner checked when the cache was opened). The
    // content's hash is part of the file's name and was checked just before. A file is only ever replaced by a
    // rename or removed, which leaves existing mappings intact. A process that can write to the directory
    // already runs as this user.
    unsafe { Component::deserialize_file(engine, path) }
}

/// Runs blocking work on tokio's blocking pool. A panic in the work propagates to the caller.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, CompiledError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => Ok(value),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(CompiledError::Ending),
    }
}
