//! Runs one program under `agentd-keeper run`, on this machine or on a place. The keeper kills the program and its
//! whole tree at the request's deadline, when this daemon exits, or when the future is dropped.
//!
//! This module does not interpret the program or its result.

use std::io;
use std::path::Path;
use std::time::Duration;

use agentd_keeper::protocol::{RunRequest, RunResult};
use async_recursion::async_recursion as boxed;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin};

use crate::frame;
use crate::keeper_program::{KeeperProgram, Role};

/// Time limit for a keeper to kill its tree after the future is dropped; longer than the keeper tries. A keeper that
/// hangs, because the directory or the program does not answer, is then killed.
const END_TIME: Duration = Duration::from_secs(10);

/// A keeper that is stopped and reaped when this value is dropped.
struct KeeperProcess {
    child: Option<Child>,
    stdin: Option<ChildStdin>,
}

/// Runs the request on this machine. Dropping the future kills the program with all its descendants.
#[boxed]
pub async fn run(keeper: &Path, request: &RunRequest) -> io::Result<RunResult> {
    run_by(&KeeperProgram::here(keeper.to_owned()), request).await
}

/// Runs the request where the keeper is. Dropping the future kills the program with all its descendants.
#[boxed]
pub async fn run_by(keeper: &KeeperProgram, request: &RunRequest) -> io::Result<RunResult> {
    let Role { mut child, preamble } = keeper.start(&["run"])?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let mut keeper_process = KeeperProcess { child: Some(child), stdin };
    let (Some(stdin), Some(mut stdout)) = (keeper_process.stdin.as_mut(), stdout) else {
        return Err(io::Error::other("the process has no pipes"));
    };
    let asked = async {
        stdin.write_all(&preamble).await?;
        frame::write(stdin, request).await?;
        frame::read(&mut stdout).await
    };
    let result = match asked.await {
        Ok(Some(result)) => result,
        Ok(None) => return Err(keeper.explain(stderr, "it exited without a result").await),
        Err(error) => return Err(keeper.explain(stderr, &error.to_string()).await),
    };
    keeper_process.stdin = None;
    if let Some(child) = keeper_process.child.as_mut() {
        let _ = child.wait().await;
    }
    keeper_process.child = None;
    Ok(result)
}

impl Drop for KeeperProcess {
    fn drop(&mut self) {
        // The end of its stdin tells the keeper to stop.
        self.stdin = None;
        // Without a runtime, the daemon is exiting.
        let (Some(mut child), Ok(runtime)) = (self.child.take(), tokio::runtime::Handle::try_current()) else { return };
        runtime.spawn(async move {
            if tokio::time::timeout(END_TIME, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        });
    }
}
