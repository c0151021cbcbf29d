//! Compiling a component: the work of the short-lived child, `agentd compile IN OUT`, and of nothing else.
//!
//! The child limits itself before it reads anything: address space, processor time and the size of what it writes, from the
//! environment variables that its parent sets, or from defaults when a person runs it.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, io};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use wasmtime::Engine;

use crate::code::Code;
use crate::compiler::CompileLimits;

/// How the parent hands down the limits: bytes, and whole seconds.
pub(crate) const MEMORY_VARIABLE: &str = "AGENTD_COMPILE_MEMORY";
pub(crate) const OUTPUT_VARIABLE: &str = "AGENTD_COMPILE_OUTPUT";
pub(crate) const TIME_VARIABLE: &str = "AGENTD_COMPILE_SECONDS";

/// Why a component was not compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    #[error("{name} is {value:?}, not a whole number")]
    Variable { name: &'static str, value: String },
    #[error("could not limit the compiler's {what} to {limit}")]
    Limit { what: &'static str, limit: u64, source: io::Error },
    #[error("could not read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("could not prepare the compiler")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{path} is not a component that can be compiled")]
    Component { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("could not write {path}")]
    Write { path: PathBuf, source: io::Error },
}

/// Reads the component at `input`, compiles it, and writes what came of it to `output`. Where that fails, what is in `output` is nothing to be used.
///
/// Lowers the limits of the whole process: it is meant for a process that does nothing else.
pub fn compile(input: &Path, output: &Path, code: Code) -> Result<(), CompileError> {
    let defaults = CompileLimits::default();
    limit(Resource::RLIMIT_AS, "memory", variable(MEMORY_VARIABLE)?.unwrap_or(defaults.memory), 0)?;
    // A second between the two, so that the end is SIGXCPU, which says why, and not SIGKILL, which does not.
    limit(Resource::RLIMIT_CPU, "time", variable(TIME_VARIABLE)?.unwrap_or(seconds(defaults.time)), 1)?;
    limit(Resource::RLIMIT_FSIZE, "output", variable(OUTPUT_VARIABLE)?.unwrap_or(defaults.output), 0)?;
    // An end at a limit leaves no image of the memory in somebody's directory.
    limit(Resource::RLIMIT_CORE, "core", 0, 0)?;
    let config = code.engine_config(true).map_err(|error| CompileError::Engine(error.into()))?;
    let engine = Engine::new(&config).map_err(|error| CompileError::Engine(error.into()))?;
    let bytes = fs::read(input).map_err(|source| CompileError::Read { path: input.to_owned(), source })?;
    let code = engine
        .precompile_component(&bytes)
        .map_err(|error| CompileError::Component { path: input.to_owned(), source: error.into() })?;
    fs::write(output, &code).map_err(|source| CompileError::Write { path: output.to_owned(), source })
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
