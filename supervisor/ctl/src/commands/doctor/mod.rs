//! Implements `agentctl doctor`: checks agentd and its installation, with a remedy for each problem.
//!
//! This process checks the installation, so there is an answer without a daemon. Only the daemon can check its
//! own state, and is asked for it. No daemon is started for that, except through a manager that listens for
//! requests.

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

use super::{Context, default_socket, print};
use crate::args::DoctorArgs;
use crate::args::service::WhichArgs;
use crate::error::{Error, exit};
use crate::service::host::Host;
use crate::service::manager::Service;
use crate::service::survey::Units;
use crate::service::survey::lingers;
use crate::service::{ServiceError, launchd, own_directory, survey};
use crate::tool::ask_of;
use agentd_client::{Absence, Client};
use agentd_screen::table::{Cut, Table};
use agentd_screen::terminal::{Screen, TextStyle};

/// Time limit of a healthy daemon's answer.
const MOMENT: Duration = Duration::from_secs(5);

/// User and service to check.
struct Subject {
    host: Host,
    client: Client,
    socket: PathBuf,
    /// The user is not the calling user.
    is_other: bool,
}

/// Runs the checks. Returns exit status 1 if a check fails.
pub(super) async fn doctor(context: &Context, args: &DoctorArgs) -> Result<u8, Error> {
    let host = Host::this().map_err(Error::Setup)?;
    let subject = match &args.user {
        Some(user) => Subject::of_user(&host, user)?,
        None => Subject::own(context, host),
    };
    let checks = examine(&subject).await?;
    if context.json {
        context.print_value(&DoctorView { checks: checks.clone() })?;
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
        // The socket belongs to the installation, so it is checked over TCP too.
        let socket = match context.client.way().socket() {
            Some(socket) => socket.to_owned(),
            None => default_socket(),
        };
        Self { host, client: context.client.clone(), socket, is_other: false }
    }

    /// Selects the administrator's agentd for a user, as root.
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
        None => !answer.as_ref().is_err_and(Absence::is_absence),
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
        // The kernel's answer may differ for another user.
        checks.extend(isolation::look(&from).await.map(|survey| isolation::check(&survey, host.os)));
    }
    if running.is_none() && !is_other {
        checks.push(configuration().await);
    }
    if running.is_some() {
        match client.doctor().await {
            Ok(view) => checks.extend(view.checks),
            Err(error) => {
                let summary = format!("agentd cannot report its own state: {}", agentd_api::chain(&error));
                let check = Check::new("daemon", Outcome::Unknown, summary);
                checks.push(if error.problem_code() == Some(Code::NoSuchPath) {
                    let remedy = "this agentd is older than `agentctl doctor`; sessions continue while it is replaced";
                    check.remedy(remedy).run_all(&renewal.install)
                } else {
                    check
                });
            }
        }
    }
    Ok(checks)
}

/// Reports whether a daemon answers in time.
async fn answers(client: &Client) -> bool {
    tokio::time::timeout(MOMENT, client.health()).await.is_ok_and(|answered| answered.is_ok())
}

/// Checks the configuration without a daemon.
async fn configuration() -> Check {
    match ask_of::<ConfigurationCheck>("config-tool", ["check"]).await {
        Ok(document) => {
            let found = document.value.mistakes.iter().map(|mistake| {
                let summary = format!("{mistake}; {}", mistake.consequence.explained());
                Finding::new(Outcome::Fail, summary, "correct the mistake, and check again")
                    .run("agentctl config check")
            });
            Check::of("configuration", &found.collect::<Vec<_>>(), "no mistakes")
        }
        Err(error) => Check::new("configuration", Outcome::Unknown, agentd_api::chain(&error)),
    }
}

fn table(checks: &[Check], screen: Screen) -> Table {
    let mut table = Table::new(&[("CHECK", Cut::Never), ("OUTCOME", Cut::Never), ("SUMMARY", Cut::End)]);
    for check in checks {
        table.row([screen.line(&check.name), check.outcome.as_str().to_owned(), screen.line(&check.summary)]);
    }
    table
}

/// Formats the facts and the remedy of each check that did not pass, or of all checks. `other` is the user of
/// the agentd, unless it is the calling user.
fn remarks(checks: &[Check], screen: Screen, all: bool, other: Option<&str>) -> String {
    let mut text = Vec::new();
    for check in checks {
        let look = match check.outcome {
            Outcome::Pass if !all || check.facts.is_empty() => continue,
            Outcome::Pass => TextStyle::Good,
            Outcome::Warn => TextStyle::Ask,
            Outcome::Fail | Outcome::Unknown => TextStyle::Bad,
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
