//! Defines the errors of `agentctl service` and of a service that does not start.

use std::io;
use std::path::PathBuf;

/// Reason why the service could not be installed, removed or inspected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error("no service manager runs here: neither systemd nor launchd")]
    NoManager,
    #[error("your user's systemd cannot be reached: {said}")]
    NoUserManager { said: String },
    #[error("this manager has no units for named users")]
    NoTemplate,
    #[error("only root can install for all users")]
    NotRoot,
    #[error("agentd runs for you as {unit}, which belongs to the administrator")]
    Administrators { unit: String },
    #[error("there is no user {user:?}")]
    NoUser { user: String },
    #[error("{user} already runs an agentd, at {}", socket.display())]
    OwnAgentd { user: String, socket: PathBuf },
    #[error("cannot install {}: no such program", path.display())]
    NoProgram { path: PathBuf },
    #[error("{} cannot be named in a unit", path.display())]
    Directory { path: PathBuf },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot change {}", path.display())]
    Put { path: PathBuf, source: io::Error },
    #[error("cannot use the record of installed files {}: {reason}", path.display())]
    Record { path: PathBuf, reason: String },
    #[error("cannot encode the record of installed files")]
    Encode(#[source] io::Error),
    #[error("cannot generate the completion scripts and man pages")]
    Documents(#[source] io::Error),
    #[error("changed since the install, or of another origin: {}", list(paths))]
    Foreign { paths: Vec<PathBuf> },
    #[error("the new build cannot take over: {}", reasons.join("; "))]
    CannotTakeOver { reasons: Vec<String> },
    #[error("interrupted")]
    Interrupted,
    #[error("cannot execute `{command}`")]
    Execute { command: String, source: io::Error },
    #[error("`{command}` did not end within {seconds} s")]
    Hangs { command: String, seconds: u64 },
    #[error("`{command}` failed: {said}")]
    Failed { command: String, said: String },
    #[error("cannot end the running agentd (pid {pid})")]
    End { pid: u32, source: io::Error },
    #[error("agentd {version} did not answer: {found}")]
    NotThere { version: String, found: String },
    #[error("cannot {step}, and {}", left_over(left))]
    Undone { step: String, source: Box<ServiceError>, left: Vec<String> },
    #[error("agentd is installed, but cannot enable lingering for {user}: {said}")]
    NoLinger { user: String, said: String },
    #[error("agentd is not installed: there is no {}", record.display())]
    NotInstalled { record: PathBuf },
    #[error("session {session:?} did not stop; nothing was removed")]
    Drain { session: String },
    #[error("there is no session {given:?}")]
    NoSession { given: String },
    #[error("cannot select by time: the log of agentd under launchd is a plain file")]
    NoSince,
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn left_over(left: &[String]) -> String {
    if left.is_empty() {
        "every earlier step was undone".to_owned()
    } else {
        format!("some earlier steps could not be undone: {}", left.join("; "))
    }
}

impl ServiceError {
    pub(crate) fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoManager => "agentd runs without a manager too: agentctl starts it, or run `agentd serve` \
                 from the start script of your container"
                .into(),
            Self::NoUserManager { .. } => {
                "log in as the user rather than with su or sudo; for a user who never logs in: loginctl \
                     enable-linger"
                    .into()
            }
            Self::Administrators { .. } => "two daemons cannot share your sessions: as root, agentctl service \
                 install --system, or uninstall --system --user NAME"
                .into(),
            Self::OwnAgentd { user, .. } => format!(
                "two daemons cannot share the sessions: first, as {user}, \
                 agentctl service uninstall"
            ),
            Self::NotRoot => "sudo agentctl service install --system --user NAME".into(),
            Self::NoProgram { .. } => "agentd, agentd-keeper and agentctl of one build belong in one directory".into(),
            Self::Directory { .. } => "choose an absolute path without quotes, backslashes and control \
                 characters: systemd runs no program of such a path"
                .into(),
            Self::Foreign { .. } => {
                "--force replaces these files; your own settings belong in a drop-in (systemctl edit), which \
                     stays"
                    .into()
            }
            Self::CannotTakeOver { .. } => {
                "nothing was changed; stop these sessions first, or keep the installed build until they have \
                     ended"
                    .into()
            }
            Self::NoLinger { user, .. } => format!("ask an administrator for `loginctl enable-linger {user}`"),
            Self::Undone { source, .. } => return source.hint(),
            Self::NoSince => "use --lines".into(),
            Self::Drain { session } => format!("agentctl show {session}"),
            _ => return None,
        })
    }
}
