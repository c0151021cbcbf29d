//! Which manager the service is under, and how it is spoken to.

use std::path::PathBuf;

use super::ServiceError;
use super::host::Host;
use crate::args::service::{ManagerName, WhichArgs};

/// The service that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) enum Service {
    /// Of the user who asks, under the user's own systemd.
    User,
    /// The template of the system's systemd; where a user is named, that user's instance.
    System { user: Option<String> },
    /// A `LaunchAgent` of the user who asks.
    Launchd,
}

/// The label of the launchd job.
pub(super) const LABEL: &str = "dev.agentd.agentd";

impl Service {
    /// The one that the command line names, else that of the manager which runs.
    pub(in crate::commands) async fn find(host: &Host, which: &WhichArgs) -> Result<Self, ServiceError> {
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
                // Asked for one property and not whether it is well: a manager with a failed unit can be used.
                let ran = host.run(&["systemctl", "--user", "show", "--property=Version"]).await?;
                if ran.success { Ok(Self::User) } else { Err(ServiceError::NoUserManager { said: ran.complaint }) }
            }
        }
    }

    /// The beginning of a call of systemctl.
    pub(in crate::commands) fn systemctl(&self, words: &[&str]) -> Vec<String> {
        let user = matches!(self, Self::User).then_some("--user");
        ["systemctl"].into_iter().chain(user).chain(words.iter().copied()).map(str::to_owned).collect()
    }

    /// The unit with the socket; of the template nobody's where no user is named.
    pub(in crate::commands) fn socket_unit(&self) -> Option<String> {
        match self {
            Self::User => Some("agentd.socket".to_owned()),
            Self::System { user } => user.as_ref().map(|user| format!("agentd@{user}.socket")),
            Self::Launchd => None,
        }
    }

    pub(in crate::commands) fn service_unit(&self) -> Option<String> {
        self.socket_unit().map(|socket| socket.replace(".socket", ".service"))
    }

    /// Where the programs go if nothing else is said.
    pub(super) fn default_programs(&self, host: &Host) -> PathBuf {
        match self {
            Self::System { .. } => host.path("/usr/local/bin"),
            Self::User | Self::Launchd => host.home.join(".local/bin"),
        }
    }

    /// Where it stands what was installed.
    pub(super) fn record(&self, host: &Host) -> PathBuf {
        match self {
            Self::System { .. } => host.path("/var/lib/agentd/installed.json"),
            Self::User | Self::Launchd => host.home.join(".local/share/agentd/installed.json"),
        }
    }

    /// As launchctl names the job.
    pub(in crate::commands) fn target(host: &Host) -> String {
        Self::target_of(host.uid)
    }

    pub(super) fn target_of(uid: u32) -> String {
        format!("gui/{uid}/{LABEL}")
    }

    /// For people.
    pub(in crate::commands) fn name(&self) -> &'static str {
        match self {
            Self::User => "systemd, for this user",
            Self::System { .. } => "systemd, for named users",
            Self::Launchd => "launchd",
        }
    }
}
