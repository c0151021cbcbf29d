//! Starts keepers, as systemd units or as detached processes, and connects to running ones.
//!
//! A keeper is never part of the daemon. Under systemd it is a transient unit of its own, so the daemon's end and
//! sandbox do not affect it. Otherwise it is a child that makes itself the leader of its own process session.

mod connection;
mod detached;
mod keepers;
mod link;
mod standby;
mod systemd;
mod timers;
mod unit;
mod warm;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use agentd_api::{ByteString, SessionId};
use agentd_caller::UNIT_PREFIX;
use agentd_keeper::cli::ROOM;
use agentd_keeper::protocol::{Begin, HoldArgs};
use async_recursion::async_recursion as boxed;

pub(crate) use connection::Connection;
pub use keepers::Keepers;
pub use link::{KeeperLimits, Link, LinkError};
pub(crate) use timers::{ScheduleTimer, TimerNames};
pub use unit::Unit;
pub(crate) use warm::WarmKeeper;

use crate::pulse;
use agentd_config::Manager;
use agentd_host::directories::{DirectoryError, make_private};
use agentd_host::platform;
use standby::{ReservedProcess, Standby, Standbys};
use systemd::ReservedUnit;

/// Starts keepers.
#[derive(Debug)]
pub struct Launcher {
    keeper: PathBuf,
    backend: Backend,
    standbys: Standbys,
    keepers: Keepers,
    /// Why the service manager that runs the sessions did not answer the last test.
    trouble: Mutex<Option<String>>,
}

#[derive(Debug)]
enum Backend {
    Detached,
    Systemd(systemd::Units),
}

/// A keeper that waits for the session of one launch. Dropping the value ends a keeper that was not used.
#[derive(Debug)]
pub(crate) enum Reservation {
    Process(Box<ReservedProcess>),
    Unit(ReservedUnit),
}

/// Error of the start of a keeper.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("cannot run the keeper {keeper:?}")]
    Spawn { keeper: PathBuf, source: std::io::Error },
    #[error("cannot reach the systemd manager that runs agentd")]
    Bus { source: zbus::Error },
    #[error(
        "cannot reach the systemd manager of user {uid}, which runs the sessions; it runs while the user is logged in, \
         and always after `loginctl enable-linger`: {address}"
    )]
    NoUserManager { uid: u32, address: String, source: zbus::Error },
    #[error("systemd refused the request for the unit {unit}")]
    Unit { unit: String, source: zbus::Error },
    #[error("the keeper was started but did not answer on {socket:?} within {seconds} s{log}")]
    Silent { socket: PathBuf, seconds: u64, log: String },
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot use the keeper's socket")]
    Link(#[from] LinkError),
}

/// Time that the service manager has to answer a test.
const MANAGER_ANSWERS: Duration = Duration::from_secs(5);
/// Time that a keeper has until it listens. It needs a few milliseconds.
const LISTENS: Duration = Duration::from_secs(10);

impl Launcher {
    pub fn new(manager: Manager, keeper: PathBuf) -> Self {
        let by_systemd = match manager {
            Manager::Detached => false,
            Manager::Systemd => true,
            Manager::Auto => platform::is_of_systemd(),
        };
        let backend = if by_systemd { Backend::Systemd(systemd::Units::new()) } else { Backend::Detached };
        Self {
            standbys: Standbys::new(keeper.clone()),
            keeper,
            backend,
            keepers: Keepers::default(),
            trouble: Mutex::default(),
        }
    }

    /// Returns the keepers that this daemon has talked to.
    pub fn keepers(&self) -> &Keepers {
        &self.keepers
    }

    /// Returns a text that tells backend keepers are started.
    pub fn describe(&self) -> &'static str {
        match self.backend {
            Backend::Detached => "detached processes",
            Backend::Systemd(_) => "systemd units",
        }
    }

    /// Tests whether the service manager that runs the sessions answers. Without one the test does nothing.
    #[boxed]
    pub async fn test_manager(&self) {
        let Backend::Systemd(units) = &self.backend else { return };
        let trouble = match tokio::time::timeout(MANAGER_ANSWERS, units.ping()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(agentd_api::chain(&error)),
            Err(_) => Some(format!("systemd has not answered for {} s", MANAGER_ANSWERS.as_secs())),
        };
        let mut known = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(trouble) = trouble.as_ref().filter(|_| known.is_none()) {
            tracing::error!(%trouble, "the service manager that runs the sessions does not answer");
        }
        *known = trouble;
    }

    /// Returns why the service manager did not answer the last test, if it did not.
    pub fn manager_trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reports whether each session has its own cgroup, with limits that the kernel enforces.
    pub fn has_cgroups(&self) -> bool {
        matches!(self.backend, Backend::Systemd(_))
    }

    /// Sets whether a keeper in standby is kept for the next launch.
    pub fn keep_spare(&self, keeps: bool) {
        // A unit cannot be renamed, and belongs to one session from its start.
        self.standbys.keep_spare(keeps && self.has_processes());
    }

    /// Reports whether keepers are processes that can be started before their session is known.
    fn has_processes(&self) -> bool {
        cfg!(target_os = "linux") && matches!(self.backend, Backend::Detached)
    }

    /// Reserves a keeper for a launch, which then does not wait for the start of a process.
    pub(crate) fn reserve(&self, id: &SessionId, args: &HoldArgs, unit: &Unit) -> Option<Reservation> {
        match &self.backend {
            Backend::Detached => self.has_processes().then(|| Reservation::Process(Box::new(self.standbys.reserve()))),
            // The launch starts a unit later, and reports its error.
            Backend::Systemd(units) => units.reserve(id, &self.keeper, args, unit).ok().map(Reservation::Unit),
        }
    }

    /// Gives the session to a keeper in standby. Returns `None` if that is not possible.
    async fn start_reserved(
        &self,
        reserved: &mut ReservedProcess,
        args: &HoldArgs,
        patience: &KeeperLimits,
    ) -> Result<Option<Link>, LaunchError> {
        let begin = begin(args);
        // The process shows the arguments in place of its own, by which it is found when it does not answer.
        if !has_room(&begin) {
            return Ok(None);
        }
        let Some(standby) = reserved.take() else { return Ok(None) };
        let is_warm = standby.begun.is_some();
        if standby.begun.as_ref().is_some_and(|begun| begun != args) {
            standby.end().await;
            return Ok(None);
        }
        let Standby { process, stream, .. } = standby;
        let link = match Link::begin(stream, Some(process.pid), &begin, &args.socket, patience).await {
            Err(error @ (LinkError::Silent { .. } | LinkError::NoHello { .. })) => {
                tracing::warn!(%error, pid = process.pid, "a keeper in standby does not answer and is killed");
                // Another keeper needs the lock of the journal, which this one may hold.
                process.kill().await;
                None
            }
            link => link?,
        };
        if is_warm && link.is_none() {
            // The agent may have left processes with the mark of this session.
            platform::kill_remains(&args.session).await;
        }
        Ok(link)
    }

    /// Gives the session to the keeper of its unit. Returns `None` if the unit did not start or does not answer.
    async fn start_unit(
        &self,
        (units, reserved): (&systemd::Units, ReservedUnit),
        id: &SessionId,
        args: &HoldArgs,
        patience: &KeeperLimits,
    ) -> Result<Option<Link>, LaunchError> {
        let begun = match pulse::elsewhere(reserved.connection()).await {
            Ok(stream) => Link::begin(stream, None, &begin(args), &args.socket, patience).await,
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "cannot start a unit in standby");
                return Ok(None);
            }
        };
        match begun {
            Ok(Some(mut link)) => {
                // No other process of the unit exists before the agent.
                let pid = link.hello.pid;
                link.peer = (platform::unit_of(pid, UNIT_PREFIX) == Some(systemd::unit_name(id))).then_some(pid);
                Ok(Some(link))
            }
            Ok(None) | Err(LinkError::Silent { .. } | LinkError::NoHello { .. }) => {
                tracing::warn!(agentd.session = %id, "the keeper of a unit does not answer and is killed");
                pulse::elsewhere(units.kill(id)).await;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Starts a keeper and connects to it. A reserved keeper is used if that is possible.
    #[boxed]
    pub(crate) async fn start(
        &self,
        id: &SessionId,
        args: &HoldArgs,
        unit: &Unit,
        patience: &KeeperLimits,
        reserved: Option<Reservation>,
    ) -> Result<Link, LaunchError> {
        let runtime = args.socket.parent().unwrap_or_else(|| Path::new("/"));
        make_private(runtime)?;
        let log = runtime.join("keeper.log");
        match &self.backend {
            Backend::Detached => {
                // The keeper inherits the daemon's limit on core files, which must not apply to an agent.
                let args = HoldArgs { core: agentd_keeper::private::core_limit(), ..args.clone() };
                if let Some(Reservation::Process(mut reserved)) = reserved
                    && let Some(link) = self.start_reserved(&mut reserved, &args, patience).await?
                {
                    self.note_keeper(&link, id);
                    return Ok(link);
                }
                detached::start(&self.keeper, &args.arguments(), &log)?;
            }
            Backend::Systemd(units) => {
                if let Some(Reservation::Unit(reserved)) = reserved
                    && let Some(link) = self.start_unit((units, reserved), id, args, patience).await?
                {
                    self.note_keeper(&link, id);
                    return Ok(link);
                }
                let _ = std::fs::remove_file(&log);
                pulse::elsewhere(units.start(id, (&self.keeper, &args.arguments()), unit, None)).await?;
            }
        }
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            match Link::connect(&args.socket, patience).await {
                Ok(link) => {
                    self.note_keeper(&link, id);
                    return Ok(link);
                }
                Err(LinkError::Connect { .. }) if begun.elapsed() < LISTENS => {}
                Err(LinkError::Connect { .. }) => {
                    let output = std::fs::read_to_string(&log).unwrap_or_default();
                    let log = if output.trim().is_empty() {
                        String::new()
                    } else {
                        format!("; its output: {}", output.trim())
                    };
                    return Err(LaunchError::Silent { socket: args.socket.clone(), seconds: LISTENS.as_secs(), log });
                }
                Err(error) => return Err(error.into()),
            }
            pulse::elsewhere(tokio::time::sleep(pause)).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Enters a keeper that has greeted. A keeper is trusted only if it is the process at the other end.
    fn note_keeper(&self, link: &Link, id: &SessionId) {
        if link.peer == Some(link.hello.pid) {
            self.keepers.enter(link.hello.pid, link.hello.start_time, id);
        }
    }

    /// Makes the timer units with these names equal to `timers`. Returns a result for each timer; `None` without
    /// systemd.
    #[boxed]
    pub(crate) async fn set_timers(
        &self,
        names: &TimerNames,
        timers: &[&ScheduleTimer],
    ) -> Option<Vec<Result<(), LaunchError>>> {
        match &self.backend {
            Backend::Systemd(units) => Some(units.set_timers(names, timers).await),
            Backend::Detached => None,
        }
    }

    /// Reports whether a process runs in the session's unit or in no unit of agentd. A keeper that was started
    /// without systemd has no unit.
    pub fn is_at_home(id: &SessionId, pid: u32) -> bool {
        platform::unit_of(pid, UNIT_PREFIX).is_none_or(|unit| unit == systemd::unit_name(id))
    }

    /// Stops the session's unit, which may contain processes of an ended keeper. Does nothing without systemd.
    #[boxed]
    pub async fn sweep(&self, id: &SessionId) {
        if let Backend::Systemd(units) = &self.backend {
            pulse::elsewhere(units.stop(id)).await;
        }
    }

    /// Kills all processes of the session's unit. Does nothing without systemd.
    #[boxed]
    pub async fn kill(&self, id: &SessionId) {
        if let Backend::Systemd(units) = &self.backend {
            pulse::elsewhere(units.kill(id)).await;
        }
    }
}

/// Returns the message that gives a keeper in standby its session.
fn begin(args: &HoldArgs) -> Begin {
    Begin { arguments: args.arguments().into_iter().map(ByteString::from).collect(), warm: None }
}

/// Reports whether a keeper in standby can show these arguments as its command line.
fn has_room(begin: &Begin) -> bool {
    begin.arguments.iter().map(|argument| argument.as_bytes().len() + 1).sum::<usize>() <= ROOM
}
