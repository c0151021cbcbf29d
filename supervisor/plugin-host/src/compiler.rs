//! Runs the compiler as a child process in its own process group. The child inherits only its two files and
//! ends at its limits.
//!
//! The time limit is processor time, which the child sets for itself. By wall-clock time the child is killed
//! only if it reports no progress for a while. It reports progress whenever it used processor time.
//!
//! When [`Compiler::run`] returns or its future is dropped, the child and its process group are dead. Its
//! stderr is kept up to a bound and always drained, so the child never blocks on it.

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::Instant;

use crate::cache::CompiledError;
use crate::code::Code;
use crate::compile::{MEMORY_VARIABLE, NO_MEMORY, OUTPUT_VARIABLE, PROGRESS, TIME_VARIABLE, UNFIT, seconds};

/// Resource limits for compiling one component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// Processor time of the child. A busy machine prolongs the compilation without using up this limit.
    pub time: Duration,
    /// Maximum wall-clock time without progress.
    pub stall: Duration,
    /// Address space in bytes.
    pub memory: u64,
    /// Size of the compiled code in bytes.
    pub output: u64,
}

impl Default for CompileLimits {
    /// Returns limits that suffice for a component with a Python interpreter (18 MB, 15 s on a CPU of 2024).
    fn default() -> Self {
        Self { time: Duration::from_mins(2), stall: Duration::from_mins(1), memory: 2 << 30, output: 256 << 20 }
    }
}

/// Maximum number of stderr bytes that are kept.
const WORDS: usize = 16 << 10;
/// How long to read the rest of stderr after the compiler ended. The rest is in the pipe already. A process
/// that left the group could keep the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The compiler program with its limits.
#[derive(Debug)]
pub(crate) struct Compiler {
    pub(crate) program: PathBuf,
    pub(crate) code: Code,
    pub(crate) limits: CompileLimits,
}

/// The process group of a child. Dropping this value kills the group.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The id still belongs to the group. The child was not reaped yet, or only just now, and the kernel
        // reuses ids only after all others.
        if let Some(group) = self.0 {
            let _ = killpg(group, Signal::SIGKILL); // the group may be empty already
        }
    }
}

/// The child's stderr: its message up to a bound, and the time of its last output.
struct CompilerOutput {
    stderr: Option<ChildStderr>,
    words: Vec<u8>,
    heard: Instant,
}

impl CompilerOutput {
    /// Reads until the pipe is closed. Output beyond the bound is discarded, so that the child does not block.
    async fn listen(&mut self) {
        let mut block = [0; 4096];
        while let Some(stderr) = &mut self.stderr {
            match stderr.read(&mut block).await {
                Ok(0) => self.stderr = None,
                Ok(read) => {
                    self.heard = Instant::now();
                    let words = block[..read].iter().filter(|byte| **byte != PROGRESS);
                    self.words.extend(words.take(WORDS.saturating_sub(self.words.len())));
                }
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "could not read the compiler's output");
                    self.stderr = None;
                }
            }
        }
    }
}

impl Compiler {
    /// Compiles the component from one file into the other. Both files are used from their current positions.
    pub(crate) async fn run(&self, input: File, output: File) -> Result<(), CompiledError> {
        let run = |source| CompiledError::Run { compiler: self.program.clone(), source };
        let mut child = Command::new(&self.program)
            .args(["compile", "--code", self.code.as_str()])
            .env_clear()
            .env(MEMORY_VARIABLE, self.limits.memory.to_string())
            .env(TIME_VARIABLE, seconds(self.limits.time).to_string())
            .env(OUTPUT_VARIABLE, self.limits.output.to_string())
            .stdin(input)
            .stdout(output)
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(run)?;
        let group = Group::of(&child);
        let mut said = CompilerOutput { stderr: child.stderr.take(), words: Vec::new(), heard: Instant::now() };
        let status = loop {
            let patience = said.heard + self.limits.stall;
            let listens = said.stderr.is_some();
            tokio::select! {
                // Handle output before the timeout: this process may have been stopped for longer than the
                // limit.
                biased;
                status = child.wait() => break status.map_err(run)?,
                () = said.listen(), if listens => {}
                () = tokio::time::sleep_until(patience) => {
                    // Output that arrived in the meantime extended the limit.
                    if said.heard + self.limits.stall <= Instant::now() {
                        drop(group);
                        let _ = child.kill().await; // also reaps the child, which may have ended just now
                        return Err(CompiledError::Stalled(self.limits.stall));
                    }
                }
            }
        };
        drop(group);
        let _ = tokio::time::timeout(LAST_WORDS, said.listen()).await; // the message is what has arrived by then
        self.judge(status, &said.words)
    }

    /// Turns the child's exit status and message into a result.
    fn judge(&self, status: ExitStatus, words: &[u8]) -> Result<(), CompiledError> {
        if status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(words).trim().to_owned();
        Err(match status.signal().map(Signal::try_from) {
            Some(Ok(Signal::SIGXCPU)) => CompiledError::Time(self.limits.time),
            Some(Ok(Signal::SIGXFSZ)) => CompiledError::Output(self.limits.output),
            // Rust's allocator prints this and aborts.
            Some(_) if words.contains("memory allocation of") => CompiledError::Memory(self.limits.memory),
            _ if status.code() == Some(i32::from(NO_MEMORY)) => CompiledError::Memory(self.limits.memory),
            _ if status.code() == Some(i32::from(UNFIT)) => CompiledError::Refused(words),
            _ if words.is_empty() => CompiledError::Failed(status.to_string()),
            Some(_) => CompiledError::Failed(format!("{status}: {words}")),
            None => CompiledError::Failed(words),
        })
    }
}
