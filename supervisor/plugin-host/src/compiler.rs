//! Running the compiler: a child of its own process group, which has nothing of ours but its two files, and ends at its limits.
//!
//! The limit of time is one of processor time, which the child sets for itself. By the wall clock it is ended only if it says nothing
//! for a while, and it says so whenever it has used the processor.
//!
//! Promises: when [`Compiler::run`] is over, or was dropped in the middle, the child and what is in its process group are
//! ended; what it said is kept up to a bound, and it never waits for us to listen.

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
use crate::compile::{MEMORY_VARIABLE, OUTPUT_VARIABLE, PROGRESS, TIME_VARIABLE, UNFIT, seconds};

/// What the compiler may use for one component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// Processor time of the child. A busy machine makes the compilation longer and does not use this up.
    pub time: Duration,
    /// How long the child may go without any progress, by the wall clock.
    pub stall: Duration,
    /// Bytes of address space.
    pub memory: u64,
    /// Bytes of compiled code.
    pub output: u64,
}

impl Default for CompileLimits {
    /// A component with a whole Python interpreter in it (18 MB) takes 15 s of a processor of 2024.
    fn default() -> Self {
        Self { time: Duration::from_mins(2), stall: Duration::from_mins(1), memory: 2 << 30, output: 256 << 20 }
    }
}

/// How much of what the compiler says is kept.
const WORDS: usize = 16 << 10;
/// How long the last words of a compiler that has ended are waited for: they are in the pipe, unless somebody who left its
/// group holds that open.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The program that compiles, and what it may use.
#[derive(Debug)]
pub(crate) struct Compiler {
    pub(crate) program: PathBuf,
    pub(crate) code: Code,
    pub(crate) limits: CompileLimits,
}

/// The process group of a child: it ends with this.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The number still is the group's: either the child was not waited for, or it was just now, and the kernel gives a
        // number again only when it has given all the others.
        if let Some(group) = self.0 {
            let _ = killpg(group, Signal::SIGKILL); // there may be nobody left in it
        }
    }
}

/// What the child says: words up to a bound, and that it makes progress.
struct Said {
    stderr: Option<ChildStderr>,
    words: Vec<u8>,
    heard: Instant,
}

impl Said {
    /// Reads until the pipe is closed. What is beyond the bound is read too, so that the child is not held up.
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
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "what the compiler says could not be read"
                    );
                    self.stderr = None;
                }
            }
        }
    }
}

impl Compiler {
    /// Compiles the component in one file into the other. Both are read and written from where they stand.
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
        let mut said = Said { stderr: child.stderr.take(), words: Vec::new(), heard: Instant::now() };
        let status = loop {
            let patience = said.heard + self.limits.stall;
            let listens = said.stderr.is_some();
            tokio::select! {
                // What it has said counts first: this process may have been stopped for longer than its patience.
                biased;
                status = child.wait() => break status.map_err(run)?,
                () = said.listen(), if listens => {}
                () = tokio::time::sleep_until(patience) => {
                    // What it said meanwhile moved the end of patience.
                    if said.heard + self.limits.stall <= Instant::now() {
                        drop(group);
                        let _ = child.kill().await; // waits for it, too; it may have ended in this very moment
                        return Err(CompiledError::Stalled(self.limits.stall));
                    }
                }
            }
        };
        drop(group);
        let _ = tokio::time::timeout(LAST_WORDS, said.listen()).await; // what came until then is what it said
        self.judge(status, &said.words)
    }

    fn judge(&self, status: ExitStatus, words: &[u8]) -> Result<(), CompiledError> {
        if status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(words).trim().to_owned();
        Err(match status.signal().map(Signal::try_from) {
            Some(Ok(Signal::SIGXCPU)) => CompiledError::Time(self.limits.time),
            Some(Ok(Signal::SIGXFSZ)) => CompiledError::Output(self.limits.output),
            // Rust's allocator says so and aborts.
            Some(_) if words.contains("memory allocation of") => CompiledError::Memory(self.limits.memory),
            _ if status.code() == Some(i32::from(UNFIT)) => CompiledError::Refused(words),
            _ if words.is_empty() => CompiledError::Failed(status.to_string()),
            Some(_) => CompiledError::Failed(format!("{status}: {words}")),
            None => CompiledError::Failed(words),
        })
    }
}
