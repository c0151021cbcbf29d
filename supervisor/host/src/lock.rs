//! The lock on the state directory, which permits one daemon for each directory while its process lives.
//!
//! A daemon that a service manager started ends a *stray* daemon that holds the lock: a daemon of the same user that no
//! manager started. The sessions of the stray daemon continue. A daemon that was started by hand ends no other daemon.
//! Its error names the holder's pid and kind.
//!
//! ```text
//!   free ───────────────────────────────────────────────────────────────► held by this daemon
//!   held, this is a service, the holder is stray ──SIGTERM──► (30 s) ──SIGKILL──► held by this daemon
//!   held otherwise ──► LockError::Held
//! ```

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentd_api::lock::{self, Record};
use async_recursion::async_recursion as boxed;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::{manager, platform};

/// Time for which the lock of a killed daemon may still be held: a child process holds the lock and the socket
/// between fork and exec.
const FORK_GRACE: Duration = Duration::from_millis(500);
/// Time limit for the exit of a stray daemon after SIGTERM.
const TERM_TIME: Duration = Duration::from_secs(30);
/// Time limit for the release of the lock after SIGKILL.
const KILL_TIME: Duration = Duration::from_secs(5);
/// Pause between attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(25);

/// The lock, which is held until it is dropped.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "it is held, not read")] Flock<File>);

/// Reason why the lock cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error("another agentd uses the state directory {state:?}: {holder}")]
    Held { state: PathBuf, holder: Holder },
    /// The lock file cannot be opened, locked or written.
    #[error("cannot lock the state directory: {path:?}")]
    Lock { path: PathBuf, source: io::Error },
}

/// The process that holds the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// An agentd of this user that no service manager started.
    Stray { pid: u32 },
    /// An agentd that runs as this systemd unit or launchd job.
    Unit { pid: u32, unit: String },
    /// A process that is not known to be an agentd of this user.
    Other { pid: u32 },
    /// The kernel does not report the process.
    Unknown,
}

/// Formats the holder and the remedy for the end of a sentence.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stray { pid } => {
                write!(
                    f,
                    "pid {pid}, which no service manager started; `kill {pid}` ends it, and its sessions continue"
                )
            }
            Self::Unit { pid, unit } => write!(f, "pid {pid}, which is {unit}; only one of the two can run"),
            Self::Other { pid } => write!(f, "pid {pid}, which is not an agentd of yours"),
            Self::Unknown => write!(f, "its pid is not visible here (it may run in another container)"),
        }
    }
}

/// Takes the lock of the state directory, and records this process and the socket that it serves.
#[boxed]
pub async fn take(state: &Path, socket: &Path) -> Result<Lock, LockError> {
    let path = state.join(lock::FILE);
    let failed = |source: io::Error| LockError::Lock { path: path.clone(), source };
    let open = File::options().create(true).truncate(false).read(true).write(true).open(&path);
    let (mut begun, mut file) = (Instant::now(), open.map_err(failed)?);
    let own = Record { pid: std::process::id(), unit: manager::own_unit(), socket: Some(socket.to_owned()) };
    let mut ending: Option<StrayEnding> = None;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(held) => return record(held, &own).map_err(failed),
            Err((file, Errno::EWOULDBLOCK)) => file,
            Err((_, errno)) => return Err(failed(errno.into())),
        };
        if begun.elapsed() >= FORK_GRACE {
            let holder = holder(&mut file);
            match (&holder, &own.unit) {
                (Holder::Stray { pid }, Some(_)) if ending.as_ref().is_none_or(|ending| ending.pid == *pid) => {
                    let ending = ending.get_or_insert_with(|| StrayEnding::begin(*pid));
                    if !ending.keep_waiting() {
                        return Err(LockError::Held { state: state.to_owned(), holder });
                    }
                }
                // The stray daemon has just exited. A child between fork and exec may still hold its lock.
                _ if ending.take().is_some() => begun = Instant::now(),
                _ => return Err(LockError::Held { state: state.to_owned(), holder }),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn record(mut held: Flock<File>, own: &Record) -> io::Result<Lock> {
    held.set_len(0)?;
    held.write_all(&serde_json::to_vec(own).map_err(io::Error::other)?)?;
    Ok(Lock(held))
}

/// Returns the process that holds the lock on this file, as the kernel reports it where possible.
fn holder(file: &mut File) -> Holder {
    let mut text = String::new();
    // An incomplete record is ignored.
    let _ = file.read_to_string(&mut text);
    let _ = io::Seek::rewind(file);
    let recorded = Record::read(&text);
    let Ok(metadata) = file.metadata() else { return Holder::Unknown };
    let pid = recorded.as_ref().map(|record| record.pid);
    let Some(pid) = platform::lock_holder(metadata.dev(), metadata.ino(), pid) else { return Holder::Unknown };
    let unit = recorded.filter(|record| record.pid == pid).and_then(|record| record.unit);
    match unit.or_else(|| platform::unit_of(pid, "agentd.service")).or_else(|| platform::unit_of(pid, "agentd@")) {
        Some(unit) => Holder::Unit { pid, unit },
        None if is_own_agentd(pid) => Holder::Stray { pid },
        None => Holder::Other { pid },
    }
}

/// Reports whether the process is an agentd of this user.
fn is_own_agentd(pid: u32) -> bool {
    let uid = nix::unistd::getuid().as_raw();
    platform::owner_of(pid) == Some(uid) && platform::name_of(pid).is_some_and(|name| name == "agentd")
}

/// A stray daemon that is being ended.
#[derive(Debug)]
struct StrayEnding {
    pid: u32,
    since: Instant,
    killed: bool,
}

impl StrayEnding {
    fn begin(pid: u32) -> Self {
        tracing::warn!(
            pid,
            "ending agentd (pid {pid}), which no service manager started and which holds the state directory; \
             its sessions continue"
        );
        manager::status(&format!("waiting for the exit of agentd (pid {pid}), which no service manager started"));
        platform::terminate(pid);
        Self { pid, since: Instant::now(), killed: false }
    }

    /// Reports whether to wait longer, and kills the daemon when its time limit is exceeded.
    fn keep_waiting(&mut self) -> bool {
        if !self.killed && self.since.elapsed() >= TERM_TIME {
            tracing::warn!(
                pid = self.pid,
                "killing agentd (pid {}), which did not exit within {} s",
                self.pid,
                TERM_TIME.as_secs()
            );
            platform::kill_now(self.pid);
            self.killed = true;
        }
        self.since.elapsed() < TERM_TIME + KILL_TIME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_daemon_is_told_the_pid_of_the_first_and_gets_the_lock_once_that_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let socket = Path::new("/run/x/control.sock");
        let first = take(state.path(), socket).await.unwrap();
        let error = take(state.path(), socket).await.unwrap_err();
        assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
        let text = std::fs::read_to_string(state.path().join(lock::FILE)).unwrap();
        assert_eq!(Record::read(&text).unwrap().socket.as_deref(), Some(socket));
        drop(first);
        take(state.path(), socket).await.unwrap();
    }

    #[test]
    fn each_kind_of_holder_is_named_with_its_pid_and_a_stray_with_what_ends_it() {
        assert!(Holder::Stray { pid: 7 }.to_string().contains("`kill 7`"));
        let unit = Holder::Unit { pid: 7, unit: "agentd@kim.service".into() }.to_string();
        assert!(unit.contains("pid 7") && unit.contains("agentd@kim.service") && !unit.contains("kill"), "{unit}");
        let other = Holder::Other { pid: 7 }.to_string();
        assert!(other.contains("pid 7") && !other.contains("kill"), "{other}");
    }
}
