//! Runs a keeper as a transient unit, by D-Bus requests to systemd (org.freedesktop.systemd1(5)). The unit is
//! outside of the daemon's cgroup, mount namespace and sandbox, and ends with its whole cgroup.
//!
//! **Which manager.** Sessions belong to the user, so the user's own manager runs them. When agentd is the user's
//! service, the environment names that manager's bus. When agentd is a system service with `User=`, the bus has
//! its usual path. Root's agentd outside of a user manager uses the system manager.

use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::SessionId;
use agentd_caller::UNIT_PREFIX;
use agentd_keeper::cli;
use agentd_keeper::protocol::HoldArgs;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use zbus::conn::Builder;
use zbus::{Connection, Fd, Message, Variant};

use super::{LaunchError, Unit, standby};

/// Connection to the manager that runs the keepers. It is opened on demand. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Units {
    bus: Arc<Mutex<Option<Connection>>>,
}

/// A unit whose keeper waits for its session on stdin ([`agentd_keeper::standby`]). Dropping the value ends the unit,
/// since the keeper exits when the connection is closed.
#[derive(Debug)]
pub(crate) struct ReservedUnit {
    stream: UnixStream,
    started: JoinHandle<Result<(), LaunchError>>,
}

/// Time that the manager has to end a unit of the same name, whose keeper got no session.
const ENDS: Duration = Duration::from_secs(2);
/// Pause before the manager is asked again.
const AGAIN: Duration = Duration::from_millis(10);

/// The slice of all session units, so that they can be limited and accounted together. It exists also without its
/// file, units/systemd/user/agentd-sessions.slice.
const SLICE: &str = "agentd-sessions.slice";

pub(super) fn unit_name(id: &SessionId) -> String {
    format!("{UNIT_PREFIX}{id}.service")
}

/// `ExecStart=` in D-Bus form: the program, its argv, and whether a failure is ignored.
pub(super) type ExecStart<'a> = (&'a str, Vec<&'a str>, bool);

/// Location of a manager's bus.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Bus {
    /// The session bus that the environment names.
    Session,
    System,
    /// The bus at this address.
    Address(String),
}

/// Chooses the bus. Only a user manager sets `MANAGERPID` (systemd.exec(5)).
fn bus(of_user_manager: bool, uid: u32) -> Bus {
    match (of_user_manager, uid) {
        (true, _) => Bus::Session,
        (false, 0) => Bus::System,
        (false, uid) => Bus::Address(format!("unix:path=/run/user/{uid}/bus")),
    }
}

impl Units {
    pub(super) fn new() -> Self {
        Self { bus: Arc::default() }
    }

    /// Returns the connection to the manager, and reconnects when it was closed: a user manager may end while
    /// agentd runs.
    async fn bus(&self) -> Result<Connection, LaunchError> {
        let mut line = self.bus.lock().await;
        if let Some(connection) = line.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let uid = nix::unistd::getuid().as_raw();
        let bus = bus(std::env::var_os("MANAGERPID").is_some(), uid);
        let connected = match &bus {
            Bus::Session => Connection::session().await,
            Bus::System => Connection::system().await,
            Bus::Address(address) => Builder::address(address.as_str()).build().await,
        };
        let connection = connected.map_err(|source| match bus {
            Bus::Address(address) => LaunchError::NoUserManager { uid, address, source },
            Bus::Session | Bus::System => LaunchError::Bus { source },
        })?;
        Ok(line.insert(connection).clone())
    }

    /// Calls a method of the manager (org.freedesktop.systemd1(5), "The Manager Object").
    pub(super) async fn call<A>(&self, unit: &str, method: &str, arguments: &A) -> Result<Message, LaunchError>
    where
        A: serde::Serialize + zbus::Type,
    {
        let manager = "org.freedesktop.systemd1";
        let interface = Some("org.freedesktop.systemd1.Manager");
        let bus = self.bus().await?;
        bus.call_method(Some(manager), "/org/freedesktop/systemd1", interface, method, arguments)
            .await
            .map_err(|source| LaunchError::Unit { unit: unit.to_owned(), source })
    }

    /// Tests whether the manager answers.
    pub(super) async fn ping(&self) -> Result<(), LaunchError> {
        let bus = self.bus().await?;
        let (manager, peer) = ("org.freedesktop.systemd1", Some("org.freedesktop.DBus.Peer"));
        let answered = bus.call_method(Some(manager), "/org/freedesktop/systemd1", peer, "Ping", &()).await;
        answered.map(drop).map_err(|source| LaunchError::Bus { source })
    }

    /// Begins to start the unit of a keeper that waits for its session.
    ///
    /// # Errors
    ///
    /// There is no socket pair. That the unit cannot be started is an error of [`ReservedUnit::connection`].
    pub(super) fn reserve(
        &self,
        id: &SessionId,
        keeper: &Path,
        args: &HoldArgs,
        of: &Unit,
    ) -> std::io::Result<ReservedUnit> {
        let (stream, theirs) = standby::pair()?;
        let (units, id, keeper, of) = (self.clone(), id.clone(), keeper.to_owned(), of.clone());
        let arguments = cli::standby_for(args);
        let started = tokio::spawn(async move { units.start(&id, (&keeper, &arguments), &of, Some(theirs)).await });
        Ok(ReservedUnit { stream, started })
    }

    /// Starts a unit. Its stdin is `stdin`, or else empty.
    pub(super) async fn start(
        &self,
        id: &SessionId,
        (keeper, arguments): (&Path, &[OsString]),
        of: &Unit,
        stdin: Option<OwnedFd>,
    ) -> Result<(), LaunchError> {
        let unit = unit_name(id);
        let program = keeper.display().to_string();
        let argv: Vec<&str> = std::iter::once(program.as_str())
            .chain(arguments.iter().map(|argument| argument.to_str().unwrap_or_default()))
            .collect();
        let exec: Vec<ExecStart<'_>> = vec![(&program, argv, false)];
        // These fields are for output of the keeper before it writes to journald itself. A user manager does not
        // set them (systemd 252).
        let fields = vec![format!("AGENTD_SESSION={id}").into_bytes()];
        let mut properties: Vec<(&str, Variant<'_>)> = vec![
            ("Description", of.description.as_str().into()),
            ("Slice", SLICE.into()),
            ("ExecStart", exec.into()),
            ("Type", "exec".into()),
            // A stop of the unit sends SIGTERM to the keeper alone, which ends its agent gracefully. The remaining
            // processes are killed.
            ("KillMode", "mixed".into()),
            ("TimeoutStopUSec", 30_000_000_u64.into()),
            // When the kernel kills a process of the session for lack of memory, the keeper survives and reports
            // it.
            ("OOMPolicy", "continue".into()),
            // An ended session leaves no entry in `systemctl list-units`, failed or not.
            ("CollectMode", "inactive-or-failed".into()),
            ("StandardOutput", "journal".into()),
            ("StandardError", "journal".into()),
            ("SyslogIdentifier", "agentd-keeper".into()),
            ("LogExtraFields", fields.into()),
        ];
        // systemd.resource-control(5). The limits include the keeper, which needs very little.
        properties.extend(of.memory.map(|bytes| ("MemoryMax", bytes.into())));
        properties.extend(of.tasks.map(|tasks| ("TasksMax", tasks.into())));
        properties.extend(of.cpu_weight.map(|weight| ("CPUWeight", u64::from(u16::from(weight)).into())));
        properties.extend(stdin.as_ref().map(|fd| ("StandardInputFileDescriptor", Fd::from(fd.as_fd()).into())));
        let auxiliary: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
        let arguments = (unit.as_str(), "fail", properties, auxiliary);
        let begun = Instant::now();
        loop {
            match self.call(&unit, "StartTransientUnit", &arguments).await {
                Err(error) if exists(&error) && begun.elapsed() < ENDS => tokio::time::sleep(AGAIN).await,
                started => return started.map(drop),
            }
        }
    }

    /// Stops the unit. That the unit does not exist is the usual case.
    pub(super) async fn stop(&self, id: &SessionId) {
        let unit = unit_name(id);
        if let Err(error) = self.call(&unit, "StopUnit", &(unit.as_str(), "replace")).await {
            let error: &dyn std::error::Error = &error;
            tracing::debug!(agentd.session = %id, error, "no unit to stop");
        }
    }

    /// Kills every process of the unit, if it exists.
    pub(super) async fn kill(&self, id: &SessionId) {
        let unit = unit_name(id);
        let kill = nix::libc::SIGKILL;
        if let Err(error) = self.call(&unit, "KillUnit", &(unit.as_str(), "all", kill)).await {
            let error: &dyn std::error::Error = &error;
            tracing::debug!(agentd.session = %id, error, "no unit to kill");
        }
    }
}

impl ReservedUnit {
    /// Returns the connection to the keeper when the manager has accepted the unit.
    pub(super) async fn connection(self) -> Result<UnixStream, LaunchError> {
        match self.started.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(started) => started.map(|()| self.stream),
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime is ending, and this task with it.
            Err(Err(_cancelled)) => std::future::pending().await,
        }
    }
}

/// Reports whether the manager still has a unit of this name.
fn exists(error: &LaunchError) -> bool {
    let LaunchError::Unit { source: zbus::Error::MethodError(name, ..), .. } = error else { return false };
    name.as_str() == "org.freedesktop.systemd1.UnitExists"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_a_user_are_units_of_the_users_own_manager() {
        assert_eq!(bus(true, 1000), Bus::Session);
        assert_eq!(bus(false, 1000), Bus::Address("unix:path=/run/user/1000/bus".to_owned()));
        assert_eq!((bus(true, 0), bus(false, 0)), (Bus::Session, Bus::System));
    }
}
