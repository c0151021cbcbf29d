//! Runs a check as a child process with a time limit. When [`check`] returns or its future is dropped, the child is
//! dead.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::libc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::check::{CheckRequest, CheckResult, SECONDS};

/// Longest time of a check. A busy machine gives the child little processor time, which the child limits itself.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest output of the child in bytes.
const OUTPUT: u64 = 1 << 20;

/// Reason why a check has no result.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error("the check of the JSON Schema took longer than {SECONDS} s of processor time")]
    Time,
    #[error("the check of the JSON Schema took longer than {} s", DEADLINE.as_secs())]
    Deadline,
    #[error("the check of the JSON Schema needs too much memory")]
    Memory,
    #[error("the check of the JSON Schema could not be run")]
    Run(#[from] io::Error),
}

impl CheckError {
    /// Reports whether the schema or the answer is at fault, and not the machine.
    pub fn is_by_schema(&self) -> bool {
        !matches!(self, Self::Run(_))
    }
}

/// Checks an answer, or only a schema, in a child process of `agentd`.
///
/// # Errors
///
/// The check exceeded a limit, or the child could not be run.
pub async fn check(agentd: &Path, request: &CheckRequest) -> Result<CheckResult, CheckError> {
    tokio::time::timeout(DEADLINE, run(agentd, request)).await.unwrap_or(Err(CheckError::Deadline))
}

async fn run(agentd: &Path, request: &CheckRequest) -> Result<CheckResult, CheckError> {
    let request = serde_json::to_vec(request).map_err(io::Error::from)?;
    let mut child = Command::new(agentd)
        .arg("check-answer")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A child that ended at a limit reads no more. Its status tells the reason.
            let _ = stdin.write_all(&request).await;
        }
    };
    let (mut result, mut words) = (Vec::new(), Vec::new());
    let read = async {
        match stdout {
            Some(stdout) => stdout.take(OUTPUT).read_to_end(&mut result).await,
            None => Ok(0),
        }
    };
    let listen = async {
        match stderr {
            Some(stderr) => stderr.take(OUTPUT).read_to_end(&mut words).await,
            None => Ok(0),
        }
    };
    let ((), read, _) = tokio::join!(write, read, listen);
    let status = child.wait().await?;
    read?;
    if status.success() {
        return Ok(serde_json::from_slice(&result).map_err(io::Error::from)?);
    }
    let words = String::from_utf8_lossy(&words);
    Err(match status.signal() {
        Some(libc::SIGXCPU | libc::SIGKILL) => CheckError::Time,
        // Rust's allocator and its handler of full stacks print these and abort.
        Some(_) if words.contains("memory allocation of") || words.contains("overflowed its stack") => {
            CheckError::Memory
        }
        _ => CheckError::Run(io::Error::other(format!("{status}: {}", words.trim()))),
    })
}
