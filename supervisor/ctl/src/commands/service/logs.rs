//! Implements `agentctl service logs`: runs the manager's own log program with the arguments that select
//! agentd's lines.

use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use agentd_api::{Code, SessionId};
use nix::unistd::User;
use tokio::time::timeout;

use super::super::{Context, print};
use crate::args::service::LogsArgs;
use crate::error::{Error, exit};
use crate::service::ServiceError;
use crate::service::host::{Host, line};
use crate::service::journal::has_user_journal;
use crate::service::manager::Service;
use crate::service::{material, survey};
use agentd_client::Absence as _;
use agentd_screen::terminal::Screen;

/// Time limit for the daemon to identify the session.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pattern of the units of all sessions.
const SESSIONS: &str = "agentd-session-*.service";

pub(super) async fn logs(context: &Context, host: &Host, args: LogsArgs) -> Result<u8, Error> {
    let service = Service::find(host, &args.which).await?;
    if matches!(service, Service::System { user: None }) && args.session.is_some() {
        return Err(Error::Usage {
            detail: "with --system, --session needs the user of the session".to_owned(),
            hint: "add --user NAME".to_owned(),
        });
    }
    let session = match &args.session {
        None => None,
        Some(given) => Some(session_of(context, host, &service, given).await?),
    };
    if service == Service::Launchd {
        return of_a_file(host, &service, &args, session.as_ref());
    }
    let command = journalctl(host, &service, &args, session.as_ref(), context.json).await;
    let status = host.command(&command).status().await;
    let status = status.map_err(|source| ServiceError::Execute { command: line(&command), source })?;
    Ok(ended(status))
}

/// Finds a session by id, name, or unambiguous prefix of its id. If no daemon answers in time, the session
/// directories are searched: a log is wanted most when the daemon fails.
async fn session_of(context: &Context, host: &Host, service: &Service, given: &str) -> Result<SessionId, Error> {
    let none = || Error::from(ServiceError::NoSession { given: given.to_owned() });
    let (client, state) = match service {
        Service::System { user: Some(user) } => {
            (survey::client_of(host, service, user).await, state_of(host, Some(user)))
        }
        _ => (Some(context.client.clone()), state_of(host, None)),
    };
    if let Some(client) = client
        && let Ok(found) = timeout(PATIENCE, client.find(given)).await
    {
        match found {
            Ok(view) => return Ok(view.value.id),
            Err(error) if error.problem_code() == Some(Code::NoSuchSession) => {
                // A session that was set aside has no view.
                let unreadable = client.list(None).await?.value.unreadable;
                let unreadable: Vec<_> = unreadable.into_iter().map(|session| (session.id, None)).collect();
                return one_of(given, &unreadable)?.ok_or_else(none);
            }
            Err(error) if error.is_absence() => {}
            Err(error) => return Err(error.into()),
        }
    }
    one_of(given, &kept(&state.join("sessions")))?.ok_or_else(none)
}

/// Finds the session in a list of ids and names.
fn one_of(given: &str, sessions: &[(String, Option<String>)]) -> Result<Option<SessionId>, Error> {
    let exactly = sessions.iter().find(|(id, name)| id == given || name.as_deref() == Some(given));
    let beginning: Vec<&String> = sessions.iter().map(|(id, _)| id).filter(|id| id.starts_with(given)).collect();
    let id = match (exactly, beginning.as_slice()) {
        (Some((id, _)), _) => id,
        (None, [id]) => id,
        (None, []) => return Ok(None),
        (None, several) => {
            let candidates = several.iter().map(|&id| id.clone()).collect();
            return Err(agentd_client::Error::Ambiguous { given: given.to_owned(), candidates }.into());
        }
    };
    Ok(id.parse().ok())
}

/// Lists the stored sessions, with their readable names.
fn kept(directory: &Path) -> Vec<(String, Option<String>)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let name = |path: PathBuf| -> Option<String> {
        let document: serde_json::Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        document.pointer("/spec/name")?.as_str().map(str::to_owned)
    };
    let each = entries
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), name(entry.path().join("session.json"))));
    each.collect()
}

/// Returns the state directory of this user, or of another user.
fn state_of(host: &Host, user: Option<&str>) -> PathBuf {
    let other = user.and_then(|user| User::from_name(user).ok().flatten()).map(|user| user.dir);
    let variable = |name: &str| match name {
        "HOME" => Some(other.clone().unwrap_or_else(|| host.home.clone())),
        _ if user.is_some() => None,
        name => std::env::var_os(name).map(PathBuf::from),
    };
    crate::start::state_directory(variable).unwrap_or_default()
}

/// Converts the exit status of the log program.
fn ended(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(exit::FAILED),
        (None, Some(2)) => exit::CANCELLED,
        (None, _) => exit::FAILED,
    }
}

pub(super) async fn journalctl(
    host: &Host,
    service: &Service,
    args: &LogsArgs,
    session: Option<&SessionId>,
    json: bool,
) -> Vec<String> {
    let mut command = vec!["journalctl".to_owned()];
    let user_journal = *service == Service::User && has_user_journal(host).await;
    if user_journal {
        command.push("--user".to_owned());
    }
    if args.follow {
        command.push("--follow".to_owned());
    }
    command.extend(args.lines.map(|lines| format!("--lines={lines}")));
    command.extend(args.since.as_ref().map(|since| format!("--since={since}")));
    if json {
        command.push("--output=json".to_owned());
    }
    match (session, service) {
        // The field selects lines of agentd and of the keeper; the unit selects all other lines of the session.
        (Some(id), _) => {
            let unit = format!("_SYSTEMD_USER_UNIT=agentd-session-{id}.service");
            command.extend([format!("AGENTD_SESSION={id}"), "+".to_owned(), unit]);
        }
        (None, Service::System { user: None }) => command.push("--unit=agentd@*.service".to_owned()),
        // The sessions are units of the user's own manager, but `--user-unit` selects units of the caller.
        (None, Service::System { user: Some(user) }) => {
            let unit = format!("agentd@{user}.service");
            let uid =
                User::from_name(user).ok().flatten().map_or_else(|| "none".to_owned(), |user| user.uid.to_string());
            command.extend([format!("_SYSTEMD_UNIT={unit}"), "+".to_owned(), format!("UNIT={unit}"), "+".to_owned()]);
            command.extend(["_SYSTEMD_USER_SLICE=agentd-sessions.slice".to_owned(), format!("_UID={uid}")]);
        }
        (None, _) if user_journal => {
            command.extend(["agentd.service", SESSIONS].map(|unit| format!("--unit={unit}")));
        }
        (None, _) => command.extend(["agentd.service", SESSIONS].map(|unit| format!("--user-unit={unit}"))),
    }
    command
}

/// Prints the log file of launchd's job.
fn of_a_file(host: &Host, service: &Service, args: &LogsArgs, session: Option<&SessionId>) -> Result<u8, Error> {
    if args.since.is_some() {
        return Err(ServiceError::NoSince.into());
    }
    let units = material::units(host, service, &service.default_programs(host))?;
    let file = units.first().and_then(|unit| material::plist_value(&unit.text, "StandardErrorPath"));
    let file = file.map_or_else(|| host.home.join("Library/Logs/agentd/agentd.log"), PathBuf::from);
    let lines = args.lines.map_or_else(|| "+1".to_owned(), |lines| lines.to_string());
    let mut command = vec!["tail".to_owned(), "-n".to_owned(), lines];
    if args.follow {
        command.push("-F".to_owned());
    }
    command.push(file.to_string_lossy().into_owned());
    let failed = |source: io::Error| ServiceError::Execute { command: line(&command), source };
    let mut child = host.command(&command).into_std().stdout(Stdio::piped()).spawn().map_err(failed)?;
    for text in child.stdout.take().map(BufReader::new).into_iter().flat_map(|stdout| stdout.split(b'\n')) {
        let text = text.map_err(failed)?;
        let text = String::from_utf8_lossy(&text);
        if session.is_none_or(|id| text.contains(id.as_str())) {
            print(&format!("{}\n", Screen::stdout().text(&text)))?;
        }
    }
    Ok(ended(child.wait().map_err(failed)?))
}
