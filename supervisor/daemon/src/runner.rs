//! Runs one program under `agentd-keeper run`, which ends it with its whole tree at the request's deadline, when this daemon ends, or
//! when nobody waits for it any more.
//!
//! Not its job: what is run, and what its result means.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use agentd_keeper::protocol::{RunRequest, RunResult};
use tokio::process::{Child, ChildStdin, Command};

use crate::frame;

/// How long a helper may take to end its tree when nobody waits for it any more; longer than it tries. One that cannot even begin to,
/// because the directory or the program it was given does not answer, is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A helper that is told to end when this is dropped, and is then reaped.
struct Helper {
    child: Option<Child>,
    stdin: Option<ChildStdin>,
}

/// Where this future is dropped, what it ran is ended with everything that it started.
pub(crate) async fn run(keeper: &Path, request: &RunRequest) -> io::Result<RunResult> {
    let mut child = Command::new(keeper)
        .arg("run")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let mut helper = Helper { child: Some(child), stdin };
    let (Some(stdin), Some(mut stdout)) = (helper.stdin.as_mut(), stdout) else {
        return Err(io::Error::other("it has no pipes"));
    };
    frame::write(stdin, request).await?;
    let result = frame::read(&mut stdout).await?;
    let result = result.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without a result"))?;
    helper.stdin = None;
    if let Some(child) = helper.child.as_mut() {
        let _ = child.wait().await;
    }
    helper.child = None;
    Ok(result)
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Its end is how the helper learns that nobody waits.
        self.stdin = None;
        // Without a runtime the daemon itself is ending.
        let (Some(mut child), Ok(runtime)) = (self.child.take(), tokio::runtime::Handle::try_current()) else { return };
        runtime.spawn(async move {
            if tokio::time::timeout(PATIENCE, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        });
    }
}
