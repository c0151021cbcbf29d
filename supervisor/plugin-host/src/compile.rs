//! Compiles a component. This runs only in the short-lived child process `agentd compile`.
//!
//! The component arrives on stdin and the code goes to stdout. Both are unnamed files, so a killed compiler
//! leaves no file behind.
//!
//! Before the child reads anything it limits its own address space, processor time and output size. The limits
//! come from environment variables that the parent sets, or from defaults if a person runs the command.
//!
//! Each second in which the child used processor time, it writes a NUL byte to stderr. The parent takes this
//! byte as progress.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs, io, thread};

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike as _;
use wasmtime::Engine;

use crate::code::Code;
use crate::compiler::CompileLimits;

/// Environment variable with the memory limit in bytes.
pub(crate) const MEMORY_VARIABLE: &str = "AGENTD_COMPILE_MEMORY";
/// Environment variable with the limit of the code's size in bytes.
pub(crate) const OUTPUT_VARIABLE: &str = "AGENTD_COMPILE_OUTPUT";
/// Environment variable with the limit of processor time in whole seconds.
pub(crate) const TIME_VARIABLE: &str = "AGENTD_COMPILE_SECONDS";

/// Byte on stderr that reports progress.
pub(crate) const PROGRESS: u8 = 0;
/// Interval between two checks for progress.
const LOOK: Duration = Duration::from_secs(1);
/// Minimum processor time between two checks, in microseconds, that counts as progress. The check itself uses
/// less.
const USED: i64 = 500;
/// Stack size of the progress thread in bytes.
const STACK: usize = 64 << 10;

/// Exit status for a component that cannot be compiled (`EX_DATAERR` of sysexits(3)).
pub(crate) const UNFIT: u8 = 65;
/// Exit status for a compilation that needs more memory than it may have (`EX_OSERR` of sysexits(3)).
pub(crate) const NO_MEMORY: u8 = 71;

/// Why a component was not compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// An environment variable with a limit is not a number.
    #[error("{name} is {value:?}, not a whole number")]
    Variable { name: &'static str, value: String },
    /// A call of setrlimit(2) failed.
    #[error("could not limit the compiler's {what} to {limit}")]
    Limit { what: &'static str, limit: u64, source: io::Error },
    /// The component could not be read.
    #[error("could not read {what}")]
    Read { what: String, source: io::Error },
    /// wasmtime's engine could not be configured.
    #[error("could not prepare the compiler")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The component is invalid, or uses features that are not enabled.
    #[error("invalid or unsupported component")]
    Component(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An allocation failed. Most of those in the compiler end the process by SIGABRT instead.
    #[error("out of memory")]
    Memory(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The code could not be written.
    #[error("could not write {what}")]
    Write { what: String, source: io::Error },
}

impl CompileError {
    /// Returns the exit status for the error: 65 if the component is at fault, 71 if memory ran out, otherwise 1.
    pub fn status(&self) -> u8 {
        match self {
            Self::Component(_) => UNFIT,
            Self::Memory(_) => NO_MEMORY,
            _ => 1,
        }
    }

    /// Turns an error of wasmtime into one of memory, if an allocation failed, or else into one of this kind.
    fn of(error: wasmtime::Error, kind: fn(Box<dyn std::error::Error + Send + Sync>) -> Self) -> Self {
        if error.is::<wasmtime::error::OutOfMemory>() { Self::Memory(error.into()) } else { kind(error.into()) }
    }
}

/// Source of the component and destination of its code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompileFiles {
    /// Reads from stdin and writes to stdout. Both are files.
    Standard,
    /// Reads from one file and replaces another. Used by running daemons of older releases.
    Named { input: PathBuf, output: PathBuf },
}

/// Reads a component, compiles it and writes the code. If this fails, the output is unusable.
///
/// Lowers the resource limits of the whole process, so call it only in a process that does nothing else.
pub fn compile(way: &CompileFiles, code: Code) -> Result<(), CompileError> {
    let defaults = CompileLimits::default();
    limit(Resource::RLIMIT_AS, "memory", variable(MEMORY_VARIABLE)?.unwrap_or(defaults.memory), 0)?;
    // One second between the soft and the hard limit ends the process by SIGXCPU, which tells the reason,
    // before SIGKILL.
    limit(Resource::RLIMIT_CPU, "time", variable(TIME_VARIABLE)?.unwrap_or(seconds(defaults.time)), 1)?;
    limit(Resource::RLIMIT_FSIZE, "output", variable(OUTPUT_VARIABLE)?.unwrap_or(defaults.output), 0)?;
    // A process that ends at a limit must leave no core dump.
    limit(Resource::RLIMIT_CORE, "core", 0, 0)?;
    if *way == CompileFiles::Standard {
        // Without this thread, the parent would take a long compilation for a hanging one.
        let _ = thread::Builder::new().stack_size(STACK).spawn(report_progress);
    }
    let bytes = way.read()?;
    let config =
        code.engine_config(Some(bytes.len())).map_err(|error| CompileError::of(error, CompileError::Engine))?;
    let engine = Engine::new(&config).map_err(|error| CompileError::of(error, CompileError::Engine))?;
    let code = engine.precompile_component(&bytes).map_err(|error| CompileError::of(error, CompileError::Component))?;
    way.write(&code)
}

impl CompileFiles {
    fn read(&self) -> Result<Vec<u8>, CompileError> {
        match self {
            Self::Standard => {
                let mut bytes = Vec::new();
                let read = io::stdin().lock().read_to_end(&mut bytes);
                read.map(|_| bytes).map_err(|source| CompileError::Read { what: "the component".to_owned(), source })
            }
            Self::Named { input, output: _ } => {
                fs::read(input).map_err(|source| CompileError::Read { what: input.display().to_string(), source })
            }
        }
    }

    fn write(&self, code: &[u8]) -> Result<(), CompileError> {
        match self {
            // Uses a separate descriptor, because `io::stdout` searches all of the code for the last newline.
            Self::Standard => {
                let stdout = io::stdout().as_fd().try_clone_to_owned().map(fs::File::from);
                let written = stdout.and_then(|mut stdout| stdout.write_all(code));
                written.map_err(|source| CompileError::Write { what: "the compiled code".to_owned(), source })
            }
            Self::Named { input: _, output } => fs::write(output, code)
                .map_err(|source| CompileError::Write { what: output.display().to_string(), source }),
        }
    }
}

/// Writes a byte to stderr for each second in which this process used processor time. Runs until the process
/// ends.
fn report_progress() {
    let used = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
        Some(usage.user_time().num_microseconds().saturating_add(usage.system_time().num_microseconds()))
    };
    let mut known = used();
    loop {
        thread::sleep(LOOK);
        let now = used();
        if now.zip(known).is_none_or(|(now, known)| now.saturating_sub(known) >= USED)
            && io::stderr().write_all(&[PROGRESS]).is_err()
        {
            return;
        }
        known = now;
    }
}

/// Rounds up to whole seconds, at least one, because a limit of zero would mean no limit.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0 || time.is_zero())
}

/// Parses an environment variable as a number. Returns `None` if it is not set.
fn variable(name: &'static str) -> Result<Option<u64>, CompileError> {
    let Some(value) = env::var_os(name) else { return Ok(None) };
    let value = value.to_string_lossy();
    value.parse().map(Some).map_err(|_| CompileError::Variable { name, value: value.into_owned() })
}

/// Lowers the soft limit to `limit` and the hard limit to `limit + grace`. Never raises a limit.
fn limit(resource: Resource, what: &'static str, limit: u64, grace: u64) -> Result<(), CompileError> {
    let failed = |errno: nix::Error| CompileError::Limit { what, limit, source: errno.into() };
    let (_, hard) = getrlimit(resource).map_err(failed)?;
    setrlimit(resource, limit.min(hard), limit.saturating_add(grace).min(hard)).map_err(failed)
}
