//! Compiling a component: the work of the short-lived child, `agentd compile`, and of nothing else.
//!
//! The component comes on stdin and the compiled code goes to stdout; both are files without a name, so a killed compiler leaves none
//! behind. The child limits itself before it reads anything: address space, processor time and the size of what it writes, from the
//! environment variables that its parent sets, or from defaults when a person runs it. On stderr it writes a NUL byte each second in
//! which it used the processor, which tells its parent that it makes progress.

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

/// How the parent hands down the limits: bytes, and whole seconds.
pub(crate) const MEMORY_VARIABLE: &str = "AGENTD_COMPILE_MEMORY";
pub(crate) const OUTPUT_VARIABLE: &str = "AGENTD_COMPILE_OUTPUT";
pub(crate) const TIME_VARIABLE: &str = "AGENTD_COMPILE_SECONDS";

/// What the child writes to stderr when it has made progress.
pub(crate) const PROGRESS: u8 = 0;
/// How often it looks whether it has.
const LOOK: Duration = Duration::from_secs(1);
/// Less processor time than this between two looks, in microseconds, is no progress: looking takes a part of it.
const USED: i64 = 500;
/// The stack of the thread that looks, in bytes.
const STACK: usize = 64 << 10;

/// The status with which the child ends if the component itself is what cannot be compiled (`EX_DATAERR` of sysexits(3)).
pub(crate) const UNFIT: u8 = 65;

/// Why a component was not compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    #[error("{name} is {value:?}, not a whole number")]
    Variable { name: &'static str, value: String },
    #[error("could not limit the compiler's {what} to {limit}")]
    Limit { what: &'static str, limit: u64, source: io::Error },
    #[error("could not read {what}")]
    Read { what: String, source: io::Error },
    #[error("could not prepare the compiler")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("it is not a component that can be compiled")]
    Component(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("could not write {what}")]
    Write { what: String, source: io::Error },
}

impl CompileError {
    /// The status that the compiling process ends with: 65 if the component is at fault, else 1.
    pub fn status(&self) -> u8 {
        if let Self::Component(_) = self { UNFIT } else { 1 }
    }
}

/// Where a component is read from and its code is written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompileFiles {
    /// From stdin to stdout, which are both files.
    Standard,
    /// From one file into another, which is replaced. A daemon of an older release that still runs asks for this.
    Named { input: PathBuf, output: PathBuf },
}

/// Reads a component, compiles it, and writes the code. If that fails, what was written is nothing to be used.
///
/// Lowers the limits of the whole process: it is meant for a process that does nothing else.
pub fn compile(way: &CompileFiles, code: Code) -> Result<(), CompileError> {
    let defaults = CompileLimits::default();
    limit(Resource::RLIMIT_AS, "memory", variable(MEMORY_VARIABLE)?.unwrap_or(defaults.memory), 0)?;
    // A second between the two, so that the end is SIGXCPU, which says why, and not SIGKILL, which does not.
    limit(Resource::RLIMIT_CPU, "time", variable(TIME_VARIABLE)?.unwrap_or(seconds(defaults.time)), 1)?;
    limit(Resource::RLIMIT_FSIZE, "output", variable(OUTPUT_VARIABLE)?.unwrap_or(defaults.output), 0)?;
    // An end at a limit leaves no image of the memory in somebody's directory.
    limit(Resource::RLIMIT_CORE, "core", 0, 0)?;
    if *way == CompileFiles::Standard {
        // Without this thread the parent takes a compilation of more than its patience for one that hangs.
        let _ = thread::Builder::new().stack_size(STACK).spawn(report_progress);
    }
    let config = code.engine_config(true).map_err(|error| CompileError::Engine(error.into()))?;
    let engine = Engine::new(&config).map_err(|error| CompileError::Engine(error.into()))?;
    let bytes = way.read()?;
    let code = engine.precompile_component(&bytes).map_err(|error| CompileError::Component(error.into()))?;
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
            // By a descriptor of its own: `io::stdout` searches all of the code for the last end of a line.
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

/// Writes a byte to stderr each second in which this process used the processor, until the process ends.
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

/// Whole seconds, at least one: the limit of zero would be none at all.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0 || time.is_zero())
}

fn variable(name: &'static str) -> Result<Option<u64>, CompileError> {
    let Some(value) = env::var_os(name) else { return Ok(None) };
    let value = value.to_string_lossy();
    value.parse().map(Some).map_err(|_| CompileError::Variable { name, value: value.into_owned() })
}

/// Lowers both limits; never above what the process was given.
fn limit(resource: Resource, what: &'static str, limit: u64, grace: u64) -> Result<(), CompileError> {
    let failed = |errno: nix::Error| CompileError::Limit { what, limit, source: errno.into() };
    let (_, hard) = getrlimit(resource).map_err(failed)?;
    setrlimit(resource, limit.min(hard), limit.saturating_add(grace).min(hard)).map_err(failed)
}
