//! Starts a keeper without systemd, as a child process that creates its own process session.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use super::LaunchError;

/// Starts the keeper with an empty environment. Output from before it listens goes to `log`.
pub(super) fn start(keeper: &Path, arguments: &[OsString], log: &Path) -> Result<(), LaunchError> {
    let failed = |source| LaunchError::Spawn { keeper: keeper.to_owned(), source };
    let log = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(log).map_err(failed)?;
    // No `pre_exec`: it would prevent `posix_spawn`, and the cost of a fork grows with the daemon's size. The
    // keeper calls setsid itself.
    let mut child = Command::new(keeper)
        .args(arguments)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(false)
        .spawn()
        .map_err(failed)?;
    // This daemon is the parent while it lives, and must collect the exit status.
    tokio::spawn(async move { child.wait().await });
    Ok(())
}
