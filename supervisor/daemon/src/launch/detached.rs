//! A keeper without a manager: a child that leaves our process session by itself.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use super::LaunchError;

/// Starts it with an empty environment; what it says before it listens goes to `log`.
pub(super) fn start(keeper: &Path, arguments: &[OsString], log: &Path) -> Result<(), LaunchError> {
    let failed = |source| LaunchError::Spawn { keeper: keeper.to_owned(), source };
    let log = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(log).map_err(failed)?;
    // No pre_exec: it would leave the posix_spawn path, and a fork of the daemon costs with its size. The keeper does setsid itself.
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
    // While this daemon lives it is the parent, and has to collect the status.
    tokio::spawn(async move { child.wait().await });
    Ok(())
}
