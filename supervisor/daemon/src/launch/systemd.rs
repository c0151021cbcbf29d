//! A keeper as a transient unit, asked of systemd over D-Bus (org.freedesktop.systemd1(5)): started outside of the daemon's cgroup,
//! mount namespace and sandbox, and ended with its whole cgroup.

use std::ffi::OsString;
use std::path::Path;

use agentd_api::SessionId;
use tokio::sync::OnceCell;
use zbus::{Connection, Message, Variant};

use super::{LaunchError, UnitLimits};

/// The manager that runs us, reached when it is first needed.
#[derive(Debug)]
pub(super) struct Units {
    bus: OnceCell<Connection>,
}

/// Whether agentd is itself a service of a systemd: `SYSTEMD_EXEC_PID` names the process that it started (systemd.exec(5), since 248).
pub(super) fn is_our_manager() -> bool {
    std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|pid| pid == std::process::id().to_string())
}

/// What the names of all sessions' units begin with.
pub(super) const UNIT_PREFIX: &str = "agentd-session-";

pub(super) fn unit_name(id: &SessionId) -> String {
    format!("{UNIT_PREFIX}{id}.service")
}

/// `ExecStart=` as D-Bus has it: the program, its argv, and whether a failure is ignored.
type ExecStart<'a> = (&'a str, Vec<&'a str>, bool);

impl Units {
    pub(super) fn new() -> Self {
        Self { bus: OnceCell::new() }
    }

    /// Calls a method of the manager (org.freedesktop.systemd1(5), "The Manager Object").
    async fn call<A>(&self, method: &str, arguments: &A) -> Result<Message, zbus::Error>
    where
        A: serde::Serialize + zbus::Type,
    {
        // MANAGERPID is set by a user's manager only (systemd.exec(5)).
        let connect = || async {
            if std::env::var_os("MANAGERPID").is_some() {
                Connection::session().await
            } else {
                Connection::system().await
            }
        };
        let bus = self.bus.get_or_try_init(connect).await?;
        let manager = "org.freedesktop.systemd1";
        bus.call_method(
            Some(manager),
            "/org/freedesktop/systemd1",
            Some("org.freedesktop.systemd1.Manager"),
            method,
            arguments,
        )
        .await
    }

    pub(super) async fn start(
        &self,
        id: &SessionId,
        keeper: &Path,
        arguments: &[OsString],
        limits: UnitLimits,
    ) -> Result<(), LaunchError> {
        let unit = unit_name(id);
        let program = keeper.display().to_string();
        let argv: Vec<&str> = std::iter::once(program.as_str())
            .chain(arguments.iter().map(|argument| argument.to_str().unwrap_or_default()))
            .collect();
        let exec: Vec<ExecStart<'_>> = vec![(&program, argv, false)];
        let description = format!("agentd session {id}");
        let mut properties: Vec<(&str, Variant<'_>)> = vec![
            ("Description", description.as_str().into()),
            ("ExecStart", exec.into()),
            ("Type", "exec".into()),
            // At a stop of the unit the keeper alone gets SIGTERM and ends its agent in order; what is left is killed.
            ("KillMode", "mixed".into()),
            ("TimeoutStopUSec", 30_000_000_u64.into()),
            // Nothing stays behind in `systemctl list-units` when a session has ended, failed or not.
            ("CollectMode", "inactive-or-failed".into()),
            ("StandardOutput", "journal".into()),
            ("StandardError", "journal".into()),
        ];
        // systemd.resource-control(5); the keeper is in the unit too, and needs next to nothing of either.
        properties.extend(limits.memory.map(|bytes| ("MemoryMax", bytes.into())));
        properties.extend(limits.tasks.map(|tasks| ("TasksMax", tasks.into())));
        let auxiliary: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
        let arguments = (unit.as_str(), "fail", properties, auxiliary);
        match self.call("StartTransientUnit", &arguments).await {
            Ok(_) => Ok(()),
            Err(source) => Err(LaunchError::Unit { unit, source }),
        }
    }

    /// Stops the unit, if it is there; that it is not is what one hopes for.
    pub(super) async fn stop(&self, id: &SessionId) {
        if let Err(error) = self.call("StopUnit", &(unit_name(id).as_str(), "replace")).await {
            tracing::debug!(agentd.session = %id, %error, "no unit to stop");
        }
    }
}
