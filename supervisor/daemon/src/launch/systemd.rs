//! A keeper as a transient unit, asked of systemd over D-Bus (org.freedesktop.systemd1(5)): started outside of the daemon's cgroup,
//! mount namespace and sandbox, and ended with its whole cgroup.
//!
//! **Which manager.** Sessions are the user's, so it is the user's own manager that is asked, whoever started agentd: as the user's service
//! it is told where that manager's bus is; as a service that the administrator runs for the user (`User=`) it is told nothing, and
//! the bus is where every user's is. Root's agentd outside of a user manager asks the system's.

use std::ffi::OsString;
use std::path::Path;

use agentd_api::SessionId;
use agentd_keeper::caller::UNIT_PREFIX;
use tokio::sync::Mutex;
use zbus::conn::Builder;
use zbus::{Connection, Message, Variant};

use super::{LaunchError, Unit};

/// The manager that starts sessions, reached when it is first needed.
#[derive(Debug)]
pub(super) struct Units {
    bus: Mutex<Option<Connection>>,
}

/// Where they all are, so that they can be bounded and counted together: units/systemd/user/agentd-sessions.slice, which is there
/// without its file too.
const SLICE: &str = "agentd-sessions.slice";

pub(super) fn unit_name(id: &SessionId) -> String {
    format!("{UNIT_PREFIX}{id}.service")
}

/// `ExecStart=` as D-Bus has it: the program, its argv, and whether a failure is ignored.
type ExecStart<'a> = (&'a str, Vec<&'a str>, bool);

/// Where a manager's bus is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Bus {
    /// As the environment says.
    Session,
    System,
    /// An address.
    At(String),
}

/// `MANAGERPID` is set by a user's manager only (systemd.exec(5)).
fn bus(of_user_manager: bool, uid: u32) -> Bus {
    match (of_user_manager, uid) {
        (true, _) => Bus::Session,
        (false, 0) => Bus::System,
        (false, uid) => Bus::At(format!("unix:path=/run/user/{uid}/bus")),
    }
}

impl Units {
    pub(super) fn new() -> Self {
        Self { bus: Mutex::new(None) }
    }

    /// The line to the manager: a manager may come and go while agentd is the system's.
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
            Bus::At(address) => Builder::address(address.as_str()).build().await,
        };
        let connection = connected.map_err(|source| match bus {
            Bus::At(address) => LaunchError::NoUserManager { uid, address, source },
            Bus::Session | Bus::System => LaunchError::Bus { source },
        })?;
        Ok(line.insert(connection).clone())
    }

    /// Calls a method of the manager (org.freedesktop.systemd1(5), "The Manager Object").
    async fn call<A>(&self, unit: &str, method: &str, arguments: &A) -> Result<Message, LaunchError>
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

    pub(super) async fn start(
        &self,
        id: &SessionId,
        keeper: &Path,
        arguments: &[OsString],
        of: &Unit,
    ) -> Result<(), LaunchError> {
        let unit = unit_name(id);
        let program = keeper.display().to_string();
        let argv: Vec<&str> = std::iter::once(program.as_str())
            .chain(arguments.iter().map(|argument| argument.to_str().unwrap_or_default()))
            .collect();
        let exec: Vec<ExecStart<'_>> = vec![(&program, argv, false)];
        // For what the keeper says before it speaks to journald itself. A user's manager does not pass them on (systemd 252).
        let fields = vec![format!("AGENTD_SESSION={id}").into_bytes()];
        let mut properties: Vec<(&str, Variant<'_>)> = vec![
            ("Description", of.description.as_str().into()),
            ("Slice", SLICE.into()),
            ("ExecStart", exec.into()),
            ("Type", "exec".into()),
            // At a stop of the unit the keeper alone gets SIGTERM and ends its agent in order; what is left is killed.
            ("KillMode", "mixed".into()),
            ("TimeoutStopUSec", 30_000_000_u64.into()),
            // Somebody of the session is killed for want of memory: the keeper lives, knows it and says it.
            ("OOMPolicy", "continue".into()),
            // Nothing stays behind in `systemctl list-units` when a session has ended, failed or not.
            ("CollectMode", "inactive-or-failed".into()),
            ("StandardOutput", "journal".into()),
            ("StandardError", "journal".into()),
            ("SyslogIdentifier", "agentd-keeper".into()),
            ("LogExtraFields", fields.into()),
        ];
        // systemd.resource-control(5); the keeper is in the unit too, and needs next to nothing of any.
        properties.extend(of.memory.map(|bytes| ("MemoryMax", bytes.into())));
        properties.extend(of.tasks.map(|tasks| ("TasksMax", tasks.into())));
        properties.extend(of.cpu_weight.map(|weight| ("CPUWeight", u64::from(u16::from(weight)).into())));
        let auxiliary: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
        let arguments = (unit.as_str(), "fail", properties, auxiliary);
        self.call(&unit, "StartTransientUnit", &arguments).await.map(drop)
    }

    /// Stops the unit, if it is there; that it is not is what one hopes for.
    pub(super) async fn stop(&self, id: &SessionId) {
        let unit = unit_name(id);
        if let Err(error) = self.call(&unit, "StopUnit", &(unit.as_str(), "replace")).await {
            let error: &dyn std::error::Error = &error;
            tracing::debug!(agentd.session = %id, error, "no unit to stop");
        }
    }

    /// Kills every process of the unit, if it is there.
    pub(super) async fn kill(&self, id: &SessionId) {
        let unit = unit_name(id);
        let kill = nix::libc::SIGKILL;
        if let Err(error) = self.call(&unit, "KillUnit", &(unit.as_str(), "all", kill)).await {
            let error: &dyn std::error::Error = &error;
            tracing::debug!(agentd.session = %id, error, "no unit to kill");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sessions_of_a_user_are_units_of_the_users_own_manager_whoever_runs_agentd() {
        assert_eq!(bus(true, 1000), Bus::Session);
        assert_eq!(bus(false, 1000), Bus::At("unix:path=/run/user/1000/bus".to_owned()));
        assert_eq!((bus(true, 0), bus(false, 0)), (Bus::Session, Bus::System));
    }
}
