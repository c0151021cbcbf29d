//! The lock on the state directory: one daemon a directory, for as long as its process lives.
//!
//! A daemon that a service manager starts ends a *stray* daemon that holds the lock: one of the same user that no manager started.
//! The stray's sessions live on. A daemon that was started by hand ends nobody, and is told the holder's pid and what the holder is.
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
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::{manager, platform};

/// How long the lock of a daemon that was killed may be held still: a program that it was about to start has it, and its socket, until
/// that program is executed.
const LINGERS: Duration = Duration::from_millis(500);
/// How long a stray daemon may take to end before it is killed, and the kernel to free the lock after that.
const PATIENCE: Duration = Duration::from_secs(30);
const AFTER_KILL: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(25);

/// The lock, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "it is held, not read")] Flock<File>);

/// Why the lock is not ours.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another agentd uses the state directory {state:?}: {holder}")]
    Held { state: PathBuf, holder: Holder },
    #[error("cannot lock the state directory: {path:?}")]
    Lock { path: PathBuf, source: io::Error },
}

/// The process that holds the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// No service manager started it.
    Stray {
        pid: u32,
    },
    Unit {
        pid: u32,
        unit: String,
    },
    /// It has a pid, and is not known to be an agentd of this user.
    Other {
        pid: u32,
    },
    /// The kernel does not say who it is.
    Unknown,
}

/// What to do stands with it: `{0}` is the end of a sentence.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stray { pid } => {
                write!(f, "pid {pid}, which no service manager started; `kill {pid}` ends it, and its sessions go on")
            }
            Self::Unit { pid, unit } => write!(f, "pid {pid}, which is {unit}; only one of the two can run"),
            Self::Other { pid } => write!(f, "pid {pid}, which is not an agentd of yours"),
            Self::Unknown => write!(f, "its pid cannot be found here (it may run in another container)"),
        }
    }
}

/// Takes the lock of the state directory, and writes down who has it and which socket it serves.
pub(crate) async fn take(state: &Path, socket: &Path) -> Result<Lock, LockError> {
    let path = state.join(lock::FILE);
    let failed = |source: io::Error| LockError::Lock { path: path.clone(), source };
    let open = File::options().create(true).truncate(false).read(true).write(true).open(&path);
    let (mut begun, mut file) = (Instant::now(), open.map_err(failed)?);
    let own = Record { pid: std::process::id(), unit: manager::own_unit(), socket: Some(socket.to_owned()) };
    let mut ending: Option<Ending> = None;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(held) => return record(held, &own).map_err(failed),
            Err((file, Errno::EWOULDBLOCK)) => file,
            Err((_, errno)) => return Err(failed(errno.into())),
        };
        if begun.elapsed() >= LINGERS {
            let holder = holder(&mut file);
            match (&holder, &own.unit) {
                (Holder::Stray { pid }, Some(_)) if ending.as_ref().is_none_or(|ending| ending.pid == *pid) => {
                    let ending = ending.get_or_insert_with(|| Ending::begin(*pid));
                    if !ending.go_on() {
                        return Err(LockError::Held { state: state.to_owned(), holder });
                    }
                }
                // It has ended in this moment: what it was about to start may hold its lock still.
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

/// Who holds the lock on this file, by the kernel's word where it gives one.
fn holder(file: &mut File) -> Holder {
    let mut text = String::new();
    // Half a record is none.
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

/// Whether the process is an agentd of this user's.
fn is_own_agentd(pid: u32) -> bool {
    let uid = nix::unistd::getuid().as_raw();
    platform::owner_of(pid) == Some(uid) && platform::name_of(pid).is_some_and(|name| name == "agentd")
}

/// A stray daemon on its way out.
#[derive(Debug)]
struct Ending {
    pid: u32,
    since: Instant,
    killed: bool,
}

impl Ending {
    fn begin(pid: u32) -> Self {
        tracing::warn!(
            pid,
            "agentd (pid {pid}), which no service manager started, uses the state directory; this service ends it and goes on \
             with its sessions"
        );
        manager::status(&format!("waiting for the agentd that no service manager started (pid {pid}) to end"));
        platform::terminate(pid);
        Self { pid, since: Instant::now(), killed: false }
    }

    /// Whether it is still to be waited for.
    fn go_on(&mut self) -> bool {
        if !self.killed && self.since.elapsed() >= PATIENCE {
            tracing::warn!(
                pid = self.pid,
                "agentd (pid {}) did not end within {} s and is killed",
                self.pid,
                PATIENCE.as_secs()
            );
            platform::kill_now(self.pid);
            self.killed = true;
        }
        self.since.elapsed() < PATIENCE + AFTER_KILL
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
