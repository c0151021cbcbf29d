//! doctor: what can be checked of agentd and its installation, and what to do about what is not as it should be.
//!
//! The installation is looked at from here, so that there is an answer where no daemon runs; what the daemon alone knows is asked of it. No
//! daemon is started for it, except where a manager listens for one: then that is what is tried.

mod cgroups;
mod installation;
mod isolation;
mod lock;
mod process;
mod storage;

use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_api::Code;
use agentd_api::configuration::ConfigurationCheck;
use agentd_api::doctor::{Check, Command, DoctorView, Finding, shell_word};
use agentd_api::prerequisite::Outcome;
use nix::unistd::User;

use super::service::host::Host;
use super::service::manager::Service;
use super::service::survey::Units;
use super::service::{ServiceError, launchd, lingers, own_directory, survey};
use super::tool::ask_of;
use super::{Context, default_socket, print};
use crate::args::DoctorArgs;
use crate::args::service::WhichArgs;
use crate::client::Client;
use crate::error::{Error, exit};
use crate::table::{Cut, Table};
use crate::terminal::{Look, Screen};
use crate::way::Way;

/// How long a daemon that is well takes for an answer.
const MOMENT: Duration = Duration::from_secs(5);

/// Whose agentd is looked at.
struct Subject {
    host: Host,
    client: Client,
    socket: PathBuf,
    /// The user is not the one who asks.
    is_other: bool,
}

/// 1 where something fails.
pub(super) async fn doctor(context: &Context, args: &DoctorArgs) -> Result<u8, Error> {
    let host = Host::this().map_err(Error::Setup)?;
    let subject = match &args.user {
        Some(user) => Subject::of_user(&host, user)?,
        None => Subject::own(context, host),
    };
    let checks = examine(&subject).await?;
    if context.json {
        let document = serde_json::to_string(&DoctorView { checks: checks.clone() }).map_err(Error::Request)?;
        print(&format!("{document}\n"))?;
    } else {
        let screen = Screen::stdout();
        Context::table(&table(&checks, screen))?;
        let user = subject.is_other.then_some(subject.host.user.as_str());
        print(&remarks(&checks, screen, context.verbose, user))?;
    }
    Ok(if checks.iter().any(|check| check.outcome == Outcome::Fail) { exit::FAILED } else { 0 })
}

impl Subject {
    fn own(context: &Context, host: Host) -> Self {
        // Over TCP it is asked all the same how the socket stands: that is a part of the installation.
        let socket = match context.client.way() {
            Way::Socket(socket) => socket.clone(),
            Way::Tcp { .. } => default_socket(),
        };
        Self { host, client: context.client.clone(), socket, is_other: false }
    }

    /// The administrator's for a user, as root.
    fn of_user(host: &Host, user: &str) -> Result<Self, Error> {
        if host.uid != 0 {
            return Err(ServiceError::NotRoot.into());
        }
        let found = User::from_name(user).map_err(|errno| Error::Setup(errno.into()))?;
        let host = host.of_user(&found.ok_or_else(|| ServiceError::NoUser { user: user.to_owned() })?);
        let socket = Path::new(agentd_api::paths::OF_ADMINISTRATOR).join(user).join(agentd_api::paths::CONTROL_SOCKET);
        Ok(Self { client: Client::new(socket.clone()), socket, host, is_other: true })
    }
}

async fn examine(subject: &Subject) -> Result<Vec<Check>, Error> {
    let Subject { host, client, socket, is_other } = subject;
    let from = own_directory()?;
    let service = Service::find(host, &WhichArgs::default()).await;
    let (installed, administrators) =
        tokio::join!(installation::look(host, &service, &from), survey::administrators(host));
    let answer = client.version().await;
    let running = answer.as_ref().ok().map(|document| &document.value);
    let mut checks = Vec::new();
    let units =
        match (administrators, &service, &installed) {
            (Ok(Some(units)), ..) => {
                checks.push(installation::administrators(&units));
                Some(units)
            }
            (Ok(None), ..) if *is_other => {
                let check = Check::new("service", Outcome::Fail, format!("agentd@{}.socket is not enabled", host.user));
                checks.push(check.run(Command::of_root(format!(
                    "agentctl service install --system --user {}",
                    shell_word(&host.user)
                ))));
                None
            }
            (_, Ok(service), Ok(installed)) => {
                checks.push(installation::service(&Ok(service.clone()), Ok(installed)));
                installed.units(service)
            }
            _ => {
                checks.push(installation::service(&service, installed.as_ref().map_err(Option::as_ref)));
                None
            }
        };
    if matches!(&service, Ok(Service::User)) || units.as_ref().is_some_and(Units::are_administrators) {
        checks.push(installation::linger(lingers(host, &host.user).await, &host.user));
        let manager = cgroups::manager(host).await;
        checks.push(cgroups::check(&host.path("/sys/fs/cgroup"), manager.trim_start_matches('/'), host.uid));
    }

    let places = storage::places(running, socket, is_other.then_some(host.home.as_path()))?;
    let holder = match storage::state(&places) {
        Some(state) => lock::look(host, state).await,
        None => None,
    };
    let pid = running.map(|running| running.pid);
    let is_well = match holder.as_ref().and_then(|holder| holder.elsewhere(socket)) {
        Some(elsewhere) => answers(&Client::new(elsewhere.to_owned())).await,
        None => !answer.as_ref().is_err_and(Error::is_absence),
    };
    let peer = process::peer(socket).await;
    let held = holder.is_some() && pid.is_none();
    checks.push(process::socket(socket, answer.as_ref().err(), peer, host.uid, units.as_ref(), held));
    checks.push(lock::check(holder.as_ref(), pid, is_well, socket, units.as_ref()));
    let is_job = matches!(&service, Ok(Service::Launchd)) && launchd::plist(host).exists();
    let renewal = process::Renewal::of(host, units.as_ref(), is_job, pid.unwrap_or_default());
    checks.extend(running.map(|running| process::process(host, running.pid, running.program.as_deref(), &renewal)));
    let beside = process::beside(host, &from).await;
    checks.push(process::versions(running.map(|running| running.version.as_str()), &beside, &renewal));

    checks.push(storage::directories(&places, host.uid));
    checks.push(storage::disk(&storage::volumes(&places)));
    checks.push(storage::path_length(&places[0].path, host.os));

    if !is_other {
        // For another user the kernel may say something else.
        checks.extend(isolation::look(&from).await.map(|survey| isolation::check(&survey, host.os)));
    }
    if running.is_none() && !is_other {
        checks.push(configuration().await);
    }
    if running.is_some() {
        match client.doctor().await {
            Ok(view) => checks.extend(view.checks),
            Err(error) => {
                let summary = format!("agentd does not answer about itself: {}", crate::error::told(&error));
                let check = Check::new("daemon", Outcome::Unknown, summary);
                checks.push(if error.code() == Some(Code::NoSuchPath) {
                    let remedy = "this agentd is older than `agentctl doctor`; sessions go on while it is replaced";
                    check.remedy(remedy).run_all(&renewal.install)
                } else {
                    check
                });
            }
        }
    }
    Ok(checks)
}

/// Whether a daemon answers here, within a moment.
async fn answers(client: &Client) -> bool {
    tokio::time::timeout(MOMENT, client.health()).await.is_ok_and(|answered| answered.is_ok())
}

/// The mistakes in the configuration, where no daemon runs that could tell them.
async fn configuration() -> Check {
    match ask_of::<ConfigurationCheck>("config-tool", ["check"]).await {
        Ok(document) => {
            let found = document.value.mistakes.iter().map(|mistake| {
                let summary = format!("{mistake}; {}", mistake.consequence.explained());
                Finding::new(Outcome::Fail, summary, "correct it, and have it looked at again")
                    .run("agentctl config check")
            });
            Check::of("configuration", &found.collect::<Vec<_>>(), "it has no mistake")
        }
        Err(error) => Check::new("configuration", Outcome::Unknown, crate::error::told(&error)),
    }
}

fn table(checks: &[Check], screen: Screen) -> Table {
    let mut table = Table::new(&[("CHECK", Cut::Never), ("OUTCOME", Cut::Never), ("SUMMARY", Cut::End)]);
    for check in checks {
        table.row([screen.line(&check.name), check.outcome.as_str().to_owned(), screen.line(&check.summary)]);
    }
    table
}

/// Facts and remedy of each that does not pass; of all of them where everything is to be shown. `other` is the user whose agentd it is,
/// where that is not the one who asks.
fn remarks(checks: &[Check], screen: Screen, all: bool, other: Option<&str>) -> String {
    let mut text = Vec::new();
    for check in checks {
        let look = match check.outcome {
            Outcome::Pass if !all || check.facts.is_empty() => continue,
            Outcome::Pass => Look::Good,
            Outcome::Warn => Look::Ask,
            Outcome::Fail | Outcome::Unknown => Look::Bad,
        };
        let head =
            format!("{} ({}): {}", screen.line(&check.name), check.outcome.as_str(), screen.line(&check.summary));
        text.push(format!("\n{}\n", screen.paint(look, &head)));
        let facts = check.facts.iter().map(|fact| (fact.name.as_str(), fact.value.as_str()));
        let lines = facts.chain(check.remedy.as_deref().map(|remedy| ("remedy", remedy)));
        text.extend(lines.map(|(name, value)| format!("  {}: {}\n", screen.line(name), screen.line(value))));
        for command in &check.run {
            let who = match (command.as_root, other) {
                (true, _) => " as root".to_owned(),
                (false, Some(user)) => format!(" as {user}"),
                (false, None) => String::new(),
            };
            text.push(format!("  run{who}: {}\n", screen.line(&command.line)));
        }
    }
    text.concat()
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    const SCREEN: Screen = Screen { terminal: true, colour: false };

    #[test]
    fn the_table_fits_a_terminal_and_what_does_not_pass_is_told_whole_with_its_remedy() {
        let checks = [
            Check::new("agents", Outcome::Pass, "2 are there").fact("claude", "1.0"),
            Check::new(
                "disk",
                Outcome::Fail,
                "there is no room in /home/kim/.local/state/agentd, and nothing can be kept",
            )
            .fact("free", "0 MB")
            .remedy("remove something"),
        ];
        let text = table(&checks, SCREEN).render(Some(60));
        assert!(text.lines().all(|line| line.width() <= 60), "{text}");
        let told = remarks(&checks, SCREEN, false, None);
        assert!(told.contains("nothing can be kept\n  free: 0 MB\n  remedy: remove something\n"), "{told}");
        assert!(!told.contains("claude") && remarks(&checks, SCREEN, true, None).contains("  claude: 1.0\n"));
    }
}
