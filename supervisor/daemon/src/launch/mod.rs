//! Starting keepers, by the operating system's manager or without one, and the line to one that runs.
//!
//! A keeper is never a part of the daemon: under systemd it is a transient unit of its own, so that neither the daemon's end nor
//! its sandbox is the keeper's; without a manager it is a child that makes itself the leader of a process session of its own.

mod detached;
mod keepers;
mod link;
mod systemd;
mod unit;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentd_api::SessionId;
use agentd_keeper::caller::UNIT_PREFIX;
use agentd_keeper::protocol::HoldArgs;

pub(crate) use keepers::Keepers;
pub(crate) use link::{Link, LinkError, Patience};
pub(crate) use unit::Unit;

use crate::config::Manager;
use crate::directories::{DirectoryError, make_private};
use crate::platform;
use crate::pulse;

/// Who starts keepers.
#[derive(Debug)]
pub(crate) struct Launcher {
    keeper: PathBuf,
    how: How,
    keepers: Keepers,
}

#[derive(Debug)]
enum How {
    Detached,
    Systemd(systemd::Units),
}

/// Why a keeper could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("cannot run the keeper {keeper:?}")]
    Spawn { keeper: PathBuf, source: std::io::Error },
    #[error("cannot reach the systemd that runs agentd")]
    Bus { source: zbus::Error },
    #[error(
        "cannot reach the manager of user {uid}, in which its sessions are to run; it runs while the user is logged in, and always \
         after `loginctl enable-linger`: {address}"
    )]
    NoUserManager { uid: u32, address: String, source: zbus::Error },
    #[error("systemd refused what it was asked of the unit {unit}")]
    Unit { unit: String, source: zbus::Error },
    #[error("the keeper was started and did not answer on {socket:?} within {seconds} s{log}")]
    Silent { socket: PathBuf, seconds: u64, log: String },
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("the keeper's socket cannot be used")]
    Link(#[from] LinkError),
}

/// How long a keeper may take to listen; it needs a few milliseconds.
const LISTENS: Duration = Duration::from_secs(10);

impl Launcher {
    pub(crate) fn new(manager: Manager, keeper: PathBuf) -> Self {
        let by_systemd = match manager {
            Manager::Detached => false,
            Manager::Systemd => true,
            Manager::Auto => platform::is_of_systemd(),
        };
        let how = if by_systemd { How::Systemd(systemd::Units::new()) } else { How::Detached };
        Self { keeper, how, keepers: Keepers::default() }
    }

    /// The keepers that are known.
    pub(crate) fn keepers(&self) -> &Keepers {
        &self.keepers
    }

    /// For people: who holds the sessions' processes.
    pub(crate) fn describe(&self) -> &'static str {
        match self.how {
            How::Detached => "detached processes",
            How::Systemd(_) => "systemd units",
        }
    }

    /// Whether each session has a cgroup of its own, and with it limits that the kernel enforces.
    pub(crate) fn has_cgroups(&self) -> bool {
        matches!(self.how, How::Systemd(_))
    }

    /// Starts a keeper and connects to it.
    pub(crate) async fn start(
        &self,
        id: &SessionId,
        args: &HoldArgs,
        unit: &Unit,
        patience: &Patience,
    ) -> Result<Link, LaunchError> {
        let runtime = args.socket.parent().unwrap_or_else(|| Path::new("/"));
        make_private(runtime)?;
        let log = runtime.join("keeper.log");
        match &self.how {
            How::Detached => {
                // The daemon's own limit, which the keeper inherits, is none for an agent.
                let args = HoldArgs { core: agentd_keeper::private::core_limit(), ..args.clone() };
                detached::start(&self.keeper, &args.arguments(), &log)?;
            }
            How::Systemd(units) => {
                let arguments = args.arguments();
                let _ = std::fs::remove_file(&log);
                pulse::elsewhere(units.start(id, &self.keeper, &arguments, unit)).await?;
            }
        }
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            match Link::connect(&args.socket, patience).await {
                Ok(link) => {
                    // A process that answers in a keeper's place may say what it likes of itself.
                    if link.peer == Some(link.hello.pid) {
                        self.keepers.enter(link.hello.pid, link.hello.start_time, id);
                    }
                    return Ok(link);
                }
                Err(LinkError::Connect { .. }) if begun.elapsed() < LISTENS => {}
                Err(LinkError::Connect { .. }) => {
                    let said = std::fs::read_to_string(&log).unwrap_or_default();
                    let log =
                        if said.trim().is_empty() { String::new() } else { format!("; it said: {}", said.trim()) };
                    return Err(LaunchError::Silent { socket: args.socket.clone(), seconds: LISTENS.as_secs(), log });
                }
                Err(error) => return Err(error.into()),
            }
            pulse::elsewhere(tokio::time::sleep(pause)).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Whether a process is in the session's unit or in none of agentd's: a keeper that was started without units has none.
    pub(crate) fn is_at_home(id: &SessionId, pid: u32) -> bool {
        platform::unit_of(pid, UNIT_PREFIX).is_none_or(|unit| unit == systemd::unit_name(id))
    }

    /// Ends what a keeper that is gone may have left in its unit; without a unit there is nothing to ask.
    pub(crate) async fn sweep(&self, id: &SessionId) {
        if let How::Systemd(units) = &self.how {
            pulse::elsewhere(units.stop(id)).await;
        }
    }

    /// Kills everybody in the session's unit; without a unit there is nobody to ask.
    pub(crate) async fn kill(&self, id: &SessionId) {
        if let How::Systemd(units) = &self.how {
            pulse::elsewhere(units.kill(id)).await;
        }
    }
}
