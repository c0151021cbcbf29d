//! service: agentd as a service of systemd or launchd: installed, upgraded in place, looked at and removed.
//!
//! It speaks to the managers through their own programs, as a person would. What it put where is written down ([`record`]): only
//! that is ever replaced or removed unasked. Not responsible for sessions: they live on through all of it, unless they are asked to end.

pub(in crate::commands) mod host;
mod install;
pub(in crate::commands) mod launchd;
mod logs;
pub(in crate::commands) mod manager;
mod material;
mod record;
pub(in crate::commands) mod repair;
mod status;
mod step;
pub(in crate::commands) mod survey;
#[cfg(test)]
mod tests;
mod uninstall;

use std::io;
use std::path::{Path, PathBuf};

use host::Host;
pub(in crate::commands) use install::lingers;
pub(in crate::commands) use logs::last_lines;
pub(in crate::commands) use record::Standing;

use super::{Context, print};
use crate::args::service::ServiceCommand;
use crate::error::Error;
use crate::terminal::Screen;

/// Why the service could not be installed, removed or looked at.
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
    #[error("agentd runs for you as {unit}, which the administrator looks after")]
    Administrators { unit: String },
    #[error("there is no user {user:?}")]
    NoUser { user: String },
    #[error("{user} has an agentd of their own, at {}", socket.display())]
    OwnAgentd { user: String, socket: PathBuf },
    #[error("there is no {} to install", path.display())]
    NoProgram { path: PathBuf },
    #[error("{} cannot be named in a unit", path.display())]
    Directory { path: PathBuf },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot change {}", path.display())]
    Put { path: PathBuf, source: io::Error },
    #[error("the record of what was installed, {}, cannot be used: {reason}", path.display())]
    Record { path: PathBuf, reason: String },
    #[error("cannot write down what was installed")]
    Encode(#[source] io::Error),
    #[error("not as an install left it: {}", list(paths))]
    Foreign { paths: Vec<PathBuf> },
    #[error("the new build cannot take over: {}", reasons.join("; "))]
    CannotTakeOver { reasons: Vec<String> },
    #[error("it was interrupted")]
    Interrupted,
    #[error("cannot execute `{command}`")]
    Execute { command: String, source: io::Error },
    #[error("`{command}` did not end within {seconds} s")]
    Hangs { command: String, seconds: u64 },
    #[error("`{command}` failed: {said}")]
    Failed { command: String, said: String },
    #[error("cannot end the agentd that runs (pid {pid})")]
    End { pid: u32, source: io::Error },
    #[error("agentd {version} does not answer: {found}")]
    NotThere { version: String, found: String },
    #[error("cannot {step}, and {}", left_over(left))]
    Undone { step: String, source: Box<ServiceError>, left: Vec<String> },
    #[error("agentd is installed, and {user} cannot be let linger: {said}")]
    NoLinger { user: String, said: String },
    #[error("nothing is installed that could be removed: there is no {}", record.display())]
    NotInstalled { record: PathBuf },
    #[error("the session {session:?} did not stop; nothing was removed")]
    Drain { session: String },
    #[error("there is no session {given:?}")]
    NoSession { given: String },
    #[error("the log of launchd's agentd is a file without times that could be looked for")]
    NoSince,
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn left_over(left: &[String]) -> String {
    if left.is_empty() {
        "everything is again as it was".to_owned()
    } else {
        format!("not all of what was done before could be undone: {}", left.join("; "))
    }
}

impl ServiceError {
    pub(crate) fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoManager => "agentd runs without one too: agentctl starts it, or `agentd serve` from what starts your container".into(),
            Self::NoUserManager { .. } => {
                "log in as the user rather than with su or sudo; for a user who never logs in: loginctl enable-linger".into()
            }
            Self::Administrators { .. } => "two of them would not share your sessions: as root, agentctl service install --system, or uninstall --system --user NAME".into(),
            Self::OwnAgentd { user, .. } => format!("two of them would not share the sessions: first, as {user}, agentctl service uninstall"),
            Self::NotRoot => "sudo agentctl service install --system --user NAME".into(),
            Self::NoProgram { .. } => "agentd, agentd-keeper and agentctl of one build belong in one directory".into(),
            Self::Directory { .. } => "choose an absolute path without quotes, backslashes and control characters: systemd runs no program of such a path".into(),
            Self::Foreign { .. } => {
                "--force takes the place of what is there; your own settings belong in a drop-in (systemctl edit), which stays".into()
            }
            Self::CannotTakeOver { .. } => {
                "nothing was changed; stop these sessions first, or keep the build that is there until they have ended".into()
            }
            Self::NoLinger { user, .. } => format!("ask an administrator for `loginctl enable-linger {user}`"),
            Self::Undone { source, .. } => return source.hint(),
            Self::NoSince => "use --lines".into(),
            Self::Drain { session } => format!("agentctl show {session}"),
            _ => return None,
        })
    }
}

pub(super) async fn service(context: &Context, command: ServiceCommand) -> Result<u8, Error> {
    let host = Host::this().map_err(Error::Setup)?;
    on(context, &host, &own_directory()?, command).await
}

/// On this machine, with the build in the directory `from`.
async fn on(context: &Context, host: &Host, from: &Path, command: ServiceCommand) -> Result<u8, Error> {
    match command {
        ServiceCommand::Install(args) => install::install(context, host, from, args).await,
        ServiceCommand::Uninstall(args) => uninstall::uninstall(context, host, args).await,
        ServiceCommand::Status(which) => status::status(context, host, from, &which).await,
        ServiceCommand::Logs(args) => logs::logs(context, host, args).await,
    }
}

/// The directory of this program, with links resolved: its siblings lie there.
pub(in crate::commands) fn own_directory() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().and_then(std::fs::canonicalize).map_err(Error::Setup)?;
    Ok(own.parent().map(PathBuf::from).unwrap_or_default())
}

/// Tells what would be done.
fn foretell(steps: &[String]) -> Result<(), Error> {
    let screen = Screen::stdout();
    steps.iter().try_for_each(|step| print(&format!("would {}\n", screen.line(step))))
}

/// Tells what is done now.
fn report(quiet: bool, step: &str) -> Result<(), Error> {
    if quiet { Ok(()) } else { print(&format!("{}\n", Screen::stdout().line(step))) }
}
