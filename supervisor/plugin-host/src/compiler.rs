//! Running the compiler: a child of its own group, with nothing of ours but the two files it is named, ended at its limits.
//!
//! Promises: when [`Compiler::run`] is over, or was dropped in the middle, the child and what is in its process group are
//! ended; what it said is kept up to a bound, and it never waits for us to listen.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, Command};

use crate::cache::CompiledError;
use crate::code::Code;
use crate::compile::{MEMORY_VARIABLE, OUTPUT_VARIABLE, TIME_VARIABLE, seconds};

/// What the compiler may use for one component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// From start to end of the child; its processor time too.
    pub time: Duration,
    /// Bytes of address space.
    pub memory: u64,
    /// Bytes of compiled code.
    pub output: u64,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self { time: Duration::from_mins(1), memory: 2 << 30, output: 256 << 20 }
    }
}

/// How much of what the compiler says is kept.
const WORDS: u64 = 16 << 10;
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

impl Compiler {
    /// Compiles the component in one file into the other.
    pub(crate) async fn run(&self, input: &Path, output: &Path) -> Result<(), CompiledError> {
        let run = |source| CompiledError::Run { compiler: self.program.clone(), source };
        let mut child = Command::new(&self.program)
            .args(["compile", "--code", self.code.as_str()])
            .args([input, output])
            .env_clear()
            .env(MEMORY_VARIABLE, self.limits.memory.to_string())
            .env(TIME_VARIABLE, seconds(self.limits.time).to_string())
            .env(OUTPUT_VARIABLE, self.limits.output.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(run)?;
        let group = Group::of(&child);
        let stderr = child.stderr.take();
        let mut words = Vec::new();
        let ended = {
            let mut listening = std::pin::pin!(listen(stderr, &mut words));
            let work = async {
                let mut over = false;
                let status = loop {
                    tokio::select! {
                        status = child.wait() => break status,
                        () = &mut listening, if !over => over = true,
                    }
                };
                drop(group);
                if !over {
                    let _ = tokio::time::timeout(LAST_WORDS, listening).await; // what came until then is what it said
                }
                status
            };
            tokio::time::timeout(self.limits.time, work).await
        };
        let Ok(status) = ended else {
            let _ = child.kill().await; // waits for it, too; it may have ended in this very moment
            return Err(CompiledError::Time(self.limits.time));
        };
        self.judge(status.map_err(run)?, &words)
    }

    fn judge(&self, status: std::process::ExitStatus, words: &[u8]) -> Result<(), CompiledError> {
        if status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(words).trim().to_owned();
        Err(match status.signal().and_then(|signal| Signal::try_from(signal).ok()) {
            Some(Signal::SIGXCPU) => CompiledError::Time(self.limits.time),
            Some(Signal::SIGXFSZ) => CompiledError::Output(self.limits.output),
            // Rust's allocator says so and aborts.
            Some(_) if words.contains("memory allocation of") => CompiledError::Memory(self.limits.memory),
            _ if words.is_empty() => CompiledError::Refused(status.to_string()),
            _ => CompiledError::Refused(words),
        })
    }
}

/// Keeps the beginning, and reads on so that who writes is not held up.
async fn listen(stderr: Option<ChildStderr>, words: &mut Vec<u8>) {
    let Some(mut stderr) = stderr else { return };
    let read: io::Result<()> = async {
        (&mut stderr).take(WORDS).read_to_end(words).await?;
        tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await?;
        Ok(())
    }
    .await;
    if let Err(error) = read {
        tracing::debug!(error = &error as &dyn std::error::Error, "what the compiler says could not be read");
    }
}
