//! Keepers in standby: processes that wait for a session, so that a launch does not wait for the start of a process
//! ([`agentd_keeper::standby`]).
//!
//! A launch reserves a keeper before it builds the environment. It gets the spare keeper, or starts another meanwhile.
//! The spare is started again when no launch has been in progress for a moment.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agentd_keeper::cli::standby_arguments;
use agentd_keeper::protocol::{Attributes, HoldArgs};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// Time without a launch in progress, after which the spare keeper is started.
const QUIET: Duration = Duration::from_millis(20);
/// Time limit for the end of a process with its agent. An agent has 1 s after SIGTERM.
const ENDED: Duration = Duration::from_secs(5);
/// Time limit for the end of a killed process.
const KILLED: Duration = Duration::from_secs(1);

/// The keepers in standby. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Standbys(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    keeper: PathBuf,
    state: Mutex<StandbyState>,
}

#[derive(Debug, Default)]
struct StandbyState {
    spare: Option<Standby>,
    /// Whether a spare is kept at all.
    keeps_spare: bool,
    /// Number of launches that hold a reservation.
    launches: usize,
    /// Number of the last reservation that ended.
    ended: u64,
}

/// A process that waits for its session. Dropping the value ends it.
#[derive(Debug)]
pub(super) struct Standby {
    pub(super) process: StandbyProcess,
    /// Attributes that the process has inherited.
    pub(super) inherited: Attributes,
    /// Connection to the process.
    pub(super) stream: UnixStream,
    /// Arguments of the session for which the process keeps an agent warm.
    pub(super) begun: Option<HoldArgs>,
}

/// The process of a keeper that was started in standby. This daemon is the parent while it lives, and collects the exit
/// status. Dropping the value does not end the process.
#[derive(Debug)]
pub(super) struct StandbyProcess {
    child: Option<Child>,
    pub(super) pid: u32,
}

impl Standby {
    /// Closes the connection, and waits until the process has ended its agent and itself.
    pub(super) async fn end(self) {
        let Self { mut process, stream, .. } = self;
        drop(stream);
        if let Some(child) = &mut process.child
            && tokio::time::timeout(ENDED, child.wait()).await.is_err()
        {
            tracing::warn!(pid = process.pid, "a keeper with a warm agent does not end and is killed");
            process.kill().await;
        }
    }
}

impl StandbyProcess {
    /// Kills a process that does not answer, and waits for its end.
    pub(super) async fn kill(mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = child.start_kill();
        if tokio::time::timeout(KILLED, child.wait()).await.is_err() {
            self.child = Some(child);
        }
    }
}

impl Drop for StandbyProcess {
    fn drop(&mut self) {
        // Without a runtime, the daemon is ending.
        if let Some(mut child) = self.child.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { child.wait().await });
        }
    }
}

/// A keeper's process for one launch. Dropping the value ends a process that was not used.
#[derive(Debug)]
pub(crate) struct ReservedProcess {
    standbys: Standbys,
    standby: Option<Standby>,
}

impl Standbys {
    pub(super) fn new(keeper: PathBuf) -> Self {
        Self(Arc::new(Shared { keeper, state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, StandbyState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether a spare keeper is kept. Must be called within a runtime.
    pub(super) fn keep_spare(&self, keeps: bool) {
        let mut state = self.state();
        state.keeps_spare = keeps;
        if keeps {
            self.start_spare_later(&state);
        } else {
            state.spare = None;
        }
    }

    /// Takes the spare keeper, or starts one.
    pub(super) fn reserve(&self) -> ReservedProcess {
        let spare = {
            let mut state = self.state();
            state.launches += 1;
            // The limits of the daemon may have been changed meanwhile (prlimit(1)).
            state.spare.take().filter(|spare| spare.inherited == Attributes::inherited())
        };
        let standby = spare.or_else(|| match start(&self.0.keeper) {
            Ok(standby) => Some(standby),
            Err(error) => {
                // The launch starts a keeper later, and reports its error.
                tracing::debug!(%error, "cannot start a keeper in standby");
                None
            }
        });
        ReservedProcess { standbys: self.clone(), standby }
    }

    /// Makes a reservation of this keeper.
    pub(super) fn reservation_of(&self, standby: Standby) -> ReservedProcess {
        self.state().launches += 1;
        ReservedProcess { standbys: self.clone(), standby: Some(standby) }
    }

    /// Starts the spare keeper in a task, unless a launch begins before the time is over.
    fn start_spare_later(&self, state: &StandbyState) {
        if state.launches > 0 || state.spare.is_some() || !state.keeps_spare {
            return;
        }
        let (standbys, ended) = (self.clone(), state.ended);
        // Without a runtime, the daemon is ending.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(QUIET).await;
            let mut state = standbys.state();
            if state.launches == 0 && state.ended == ended && state.spare.is_none() && state.keeps_spare {
                state.spare = start(&standbys.0.keeper).ok();
            }
        });
    }
}

impl ReservedProcess {
    /// Returns the keeper, if it could be started.
    pub(super) fn take(&mut self) -> Option<Standby> {
        self.standby.take()
    }
}

impl Drop for ReservedProcess {
    fn drop(&mut self) {
        let mut state = self.standbys.state();
        state.launches -= 1;
        state.ended += 1;
        self.standbys.start_spare_later(&state);
    }
}

/// Makes a connection: this daemon's end, and the stdin of a keeper in standby.
pub(super) fn pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((UnixStream::from_std(ours)?, theirs.into()))
}

/// Starts a process in standby with an empty environment.
pub(super) fn start(keeper: &Path) -> io::Result<Standby> {
    let (stream, theirs) = pair()?;
    // No `pre_exec`: see `detached`.
    let child = Command::new(keeper)
        .args(standby_arguments())
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(false)
        .spawn()?;
    let pid = child.id().ok_or_else(|| io::Error::other("the keeper has ended"))?;
    let process = StandbyProcess { child: Some(child), pid };
    Ok(Standby { process, inherited: Attributes::inherited(), stream, begun: None })
}
