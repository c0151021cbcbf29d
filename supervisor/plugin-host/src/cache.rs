//! The directory of compiled components, and the child that fills it.
//!
//! A compiled component is native code that is run as it is, so nothing in the directory is trusted for being there: a
//! file's name carries the hash of the component it was made of and the hash of its own content, and both must be right.
//! One name, one rename: there is no second file that could disagree. What does not match, and what this version of
//! wasmtime does not take, is compiled again.

use std::collections::HashMap;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use nix::sys::signal::Signal;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::compile::{MEMORY_VARIABLE, TIME_VARIABLE, seconds};
use crate::limits::{Bytes, Seconds};

/// What the compiler may use for one component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// From start to end of the child; its processor time too.
    pub time: Duration,
    /// Bytes of address space.
    pub memory: u64,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self { time: Duration::from_mins(1), memory: 2 << 30 }
    }
}

/// Why there is no compiled code for a component.
#[derive(Debug, thiserror::Error)]
pub enum CompiledError {
    #[error("could not {operation} {path}")]
    File { operation: &'static str, path: PathBuf, source: io::Error },
    #[error("could not run the compiler {compiler}")]
    Run { compiler: PathBuf, source: io::Error },
    #[error("compiling took longer than its {}", Seconds(*.0))]
    Time(Duration),
    #[error("compiling used more than its {} of memory", Bytes(usize::try_from(*.0).unwrap_or(usize::MAX)))]
    Memory(u64),
    /// The compiler's own words.
    #[error("the compiler refused it: {0}")]
    Refused(String),
    #[error("the compiled code was not accepted")]
    Load(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the work was given up because the program ends")]
    Ending,
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

/// From this age on, a file that is not compiled code is nobody's: a compilation takes a minute at most.
const ABANDONED: Duration = Duration::from_hours(1);
/// How much of what the compiler says is read.
const WORDS: u64 = 16 << 10;

#[derive(Debug)]
pub(crate) struct Cache {
    directory: PathBuf,
    compiler: PathBuf,
    limits: CompileLimits,
    /// One lock for each component that is being loaded, so that it is compiled once.
    loading: Mutex<HashMap<Hash, Arc<tokio::sync::Mutex<()>>>>,
}

impl Cache {
    /// Takes a directory that nobody else can write to; makes it if it is not there.
    pub(crate) fn open(directory: PathBuf, compiler: PathBuf, limits: CompileLimits) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let metadata = fs::symlink_metadata(&directory)?;
        if !metadata.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "not a directory"));
        }
        if metadata.uid() != nix::unistd::geteuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the directory belongs to another user"));
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
        }
        let cache = Self { directory, compiler, limits, loading: Mutex::default() };
        cache.sweep()?;
        Ok(cache)
    }

    /// Removes what a process that was killed left in the middle of compiling. Another process may be compiling here right
    /// now: what is not old is let be.
    fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let compiled = entry.path().extension().is_some_and(|extension| extension == "cwasm");
            let age = entry
                .metadata()
                .and_then(|metadata| metadata.modified())
                .map(|time| time.elapsed().unwrap_or_default());
            if !compiled && age.is_ok_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(entry.path()); // gone already, or no file of ours
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
    ) -> Result<Component, CompiledError> {
        let turn = Arc::clone(self.loading().entry(component).or_default());
        let result = {
            let _turn = turn.lock().await;
            self.load_in_turn(engine, bytes, component).await
        };
        // The entry and ours are the last two: nobody waits.
        let mut loading = self.loading();
        if Arc::strong_count(&turn) <= 2 {
            loading.remove(&component);
        }
        result
    }

    fn loading(&self) -> std::sync::MutexGuard<'_, HashMap<Hash, Arc<tokio::sync::Mutex<()>>>> {
        self.loading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn load_in_turn(
        self: &Arc<Self>,
        engine: &Engine,
        bytes: Arc<[u8]>,
        component: Hash,
    ) -> Result<Component, CompiledError> {
        let (cache, its_engine) = (Arc::clone(self), engine.clone());
        if let Some(found) = blocking(move || cache.find(&its_engine, component)).await? {
            return Ok(found);
        }
        let cache = Arc::clone(self);
        let (input, output) = blocking(move || {
            let mut input = tempfile::Builder::new().suffix(".wasm").tempfile_in(&cache.directory)?;
            input.write_all(&bytes)?;
            let output = tempfile::Builder::new().suffix(".new").tempfile_in(&cache.directory)?;
            io::Result::Ok((input.into_temp_path(), output.into_temp_path()))
        })
        .await?
        .map_err(|source| CompiledError::File {
            operation: "write into",
            path: self.directory.clone(),
            source,
        })?;
        self.run_compiler(&input, &output).await?;
        let (cache, engine) = (Arc::clone(self), engine.clone());
        blocking(move || cache.take_in(&engine, component, output)).await?
    }

    /// A file that is what its name says and that wasmtime takes; what was tried before it and is not is removed.
    fn find(&self, engine: &Engine, component: Hash) -> Option<Component> {
        let mut found = None;
        let prefix = format!("{}-", hex(&component));
        for entry in fs::read_dir(&self.directory).ok()?.flatten() {
            let name = entry.file_name();
            let Some(own) = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".cwasm")) else {
                continue;
            };
            let path = entry.path();
            if found.is_none() {
                found = accept(engine, &path, own);
            }
            if found.is_none() {
                tracing::info!(path = %path.display(), "a compiled plugin is of another version or damaged: it is compiled again");
                let _ = fs::remove_file(&path); // what cannot be removed is passed over the same way next time
            }
        }
        found
    }

    /// Gives what the child wrote its name, and loads it.
    fn take_in(
        &self,
        engine: &Engine,
        component: Hash,
        output: tempfile::TempPath,
    ) -> Result<Component, CompiledError> {
        let file = |operation, path: &Path, source| CompiledError::File { operation, path: path.to_owned(), source };
        let code = fs::read(&output).map_err(|source| file("read", &output, source))?;
        let name = format!("{}-{}.cwasm", hex(&component), hex(&hash(&code)));
        let path = self.directory.join(name);
        output.persist(&path).map_err(|error| file("rename to", &path, error.error))?;
        load_file(engine, &path).map_err(|error| CompiledError::Load(error.into()))
    }

    async fn run_compiler(&self, input: &Path, output: &Path) -> Result<(), CompiledError> {
        let run = |source| CompiledError::Run { compiler: self.compiler.clone(), source };
        let mut child = Command::new(&self.compiler)
            .arg("compile")
            .args([input, output])
            .env_clear()
            .env(MEMORY_VARIABLE, self.limits.memory.to_string())
            .env(TIME_VARIABLE, seconds(self.limits.time).to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(run)?;
        let mut stderr = child.stderr.take();
        let work = async {
            let mut words = Vec::new();
            if let Some(stderr) = &mut stderr {
                stderr.take(WORDS).read_to_end(&mut words).await?;
            }
            drop(stderr.take()); // a compiler that says more than we read must not wait for us
            io::Result::Ok((child.wait().await?, words))
        };
        let Ok(ended) = tokio::time::timeout(self.limits.time, work).await else {
            let _ = child.kill().await; // it may have ended in this very moment
            return Err(CompiledError::Time(self.limits.time));
        };
        let (status, words) = ended.map_err(run)?;
        if status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&words).trim().to_owned();
        Err(match status.signal() {
            Some(signal) if signal == Signal::SIGXCPU as i32 => CompiledError::Time(self.limits.time),
            // Rust's allocator says so and aborts.
            Some(_) if words.contains("memory allocation of") => CompiledError::Memory(self.limits.memory),
            _ if words.is_empty() => CompiledError::Refused(status.to_string()),
            _ => CompiledError::Refused(words),
        })
    }
}

/// The component in the file, if its content is what its name says and wasmtime takes it.
fn accept(engine: &Engine, path: &Path, own: &str) -> Option<Component> {
    let content = fs::read(path).ok()?;
    (hex(&hash(&content)) == own).then(|| load_file(engine, path).ok()).flatten()
}

#[allow(unsafe_code, reason = "native code is mapped and run as it stands in the file")]
fn load_file(engine: &Engine, path: &Path) -> wasmtime::Result<Component> {
    // SAFETY: wasmtime asks that the file be one that it wrote, and that it not change while it is mapped. The directory is
    // ours alone (0700, owner checked when it was opened); the content's hash stands in the file's name and was either
    // checked just before or taken from what our own compiler wrote; a file is only ever replaced by a rename, which
    // leaves a mapping of the old one as it is. Whoever can write there runs as this user already.
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
