//! Selects the service manager, and builds its commands.

use std::path::PathBuf;

use super::ServiceError;
use super::host::Host;
use crate::args::service::{ManagerName, WhichArgs};

/// Service that a command acts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Service {
    /// Service of this user's own systemd.
    User,
    /// Template of the system's systemd, or the instance of a named user.
    System { user: Option<String> },
    /// `LaunchAgent` of this user.
    Launchd,
}

/// Label of the launchd job.
pub(crate) const LABEL: &str = "dev.agentd.agentd";

impl Service {
    /// Returns the service that the command line selects, otherwise the service of the running manager.
    pub(crate) async fn find(host: &Host, which: &WhichArgs) -> Result<Self, ServiceError> {
        let manager = match which.manager {
            Some(manager) => Some(manager),
            None if host.os == "macos" => Some(ManagerName::Launchd),
            None if host.path("/run/systemd/system").is_dir() => Some(ManagerName::Systemd),
            None => None,
        };
        match manager {
            None => Err(ServiceError::NoManager),
            Some(ManagerName::Launchd) if which.system => Err(ServiceError::NoTemplate),
            Some(ManagerName::Launchd) => Ok(Self::Launchd),
            Some(ManagerName::Systemd) if which.system => Ok(Self::System { user: which.user.clone() }),
            Some(ManagerName::Systemd) => {
                // `show` succeeds with failed units too; such a manager is usable.
                let ran = host.run(&["systemctl", "--user", "show", "--property=Version"]).await?;
                if ran.success { Ok(Self::User) } else { Err(ServiceError::NoUserManager { said: ran.complaint }) }
            }
        }
    }

    /// Builds a call of systemctl.
    pub(crate) fn systemctl(&self, words: &[&str]) -> Vec<String> {
        let user = matches!(self, Self::User).then_some("--user");
        ["systemctl"].into_iter().chain(user).chain(words.iter().copied()).map(str::to_owned).collect()
    }

    /// Returns the socket unit; `None` for the template without a user, and for launchd.
    pub(crate) fn socket_unit(&self) -> Option<String> {
        match self {
            Self::User => Some("agentd.socket".to_owned()),
            Self::System { user } => user.as_ref().map(|user| format!("agentd@{user}.socket")),
            Self::Launchd => None,
        }
    }

    pub(crate) fn service_unit(&self) -> Option<String> {
        self.socket_unit().map(|socket| socket.replace(".socket", ".service"))
    }

    /// Returns the default directory of the programs.
    pub(crate) fn default_programs(&self, host: &Host) -> PathBuf {
        match self {
            Self::System { .. } => host.path("/usr/local/bin"),
            Self::User | Self::Launchd => host.home.join(".local/bin"),
        }
    }

    /// Returns the path of the record of installed files.
    pub(crate) fn record(&self, host: &Host) -> PathBuf {
        match self {
            Self::System { .. } => host.path("/var/lib/agentd/installed.json"),
            Self::User | Self::Launchd => host.home.join(".local/share/agentd/installed.json"),
        }
    }

    /// Returns launchctl's name of the job.
    pub(crate) fn target(host: &Host) -> String {
        Self::target_of(host.uid)
    }

    pub(crate) fn target_of(uid: u32) -> String {
        format!("gui/{uid}/{LABEL}")
    }

    /// Returns the name for users.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::User => "systemd, for this user",
            Self::System { .. } => "systemd, for named users",
            Self::Launchd => "launchd",
        }
    }
}
