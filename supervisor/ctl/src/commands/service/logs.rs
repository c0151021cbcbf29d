//! logs: the manager's own program shows its own log; here it is told what of it.

use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use agentd_api::SessionId;
use nix::unistd::User;

use super::super::{Context, print};
use super::ServiceError;
use super::host::{Host, line};
use super::manager::Service;
use super::material;
use crate::args::service::LogsArgs;
use crate::error::{Error, exit};
use crate::terminal::Screen;

/// All units of sessions.
const SESSIONS: &str = "agentd-session-*.service";

pub(super) async fn logs(context: &Context, host: &Host, args: LogsArgs) -> Result<u8, Error> {
    let service = Service::find(host, &args.which).await?;
    let session = match &args.session {
        None => None,
        Some(given) => Some(match given.parse::<SessionId>() {
            Ok(id) => id,
            Err(_) => context.client.find(given).await?.value.id,
        }),
    };
    if service == Service::Launchd {
        return of_a_file(host, &service, &args, session.as_ref());
    }
    let command = journalctl(host, &service, &args, session.as_ref(), context.json).await;
    let status = host.command(&command).status().await;
    let status = status.map_err(|source| ServiceError::Execute { command: line(&command), source })?;
    Ok(ended(status))
}

/// As the program ended whose output it was.
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
        // A field of agentd's own lines and of the keeper's; and whatever else the unit says.
        (Some(id), _) => {
            let unit = format!("_SYSTEMD_USER_UNIT=agentd-session-{id}.service");
            command.extend([format!("AGENTD_SESSION={id}"), "+".to_owned(), unit]);
        }
        (None, Service::System { user: None }) => command.push("--unit=agentd@*.service".to_owned()),
        // The sessions are units of the user's own manager, and `--user-unit` means one's own.
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

/// Where journald keeps nothing over a restart of the machine, users have no journals of their own: their lines are in the system's.
async fn has_user_journal(host: &Host) -> bool {
    let probe = ["journalctl", "--user", "--quiet", "--lines=1", "--output=cat"];
    host.said(&probe).await.is_some_and(|said| !said.is_empty())
}

/// launchd's job writes to a file.
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
