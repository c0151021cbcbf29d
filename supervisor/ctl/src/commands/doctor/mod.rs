//! doctor: what can be checked of agentd and its installation, and what to do about what is not as it should be.
//!
//! The installation is looked at from here, so that there is an answer where no daemon runs; what the daemon alone knows is asked of it. No
//! daemon is started for it, except where a manager listens for one: then that is what is tried.

mod cgroups;
mod installation;
mod process;
mod storage;

use agentd_api::doctor::{Check, DoctorView};
use agentd_api::prerequisite::Outcome;

use super::service::host::{Host, instance_of};
use super::service::manager::Service;
use super::service::{lingers, own_directory, survey};
use super::{Context, default_socket, print};
use crate::args::service::WhichArgs;
use crate::error::{Error, exit};
use crate::table::{Cut, Table};
use crate::terminal::{Look, Screen};
use crate::way::Way;

/// 1 where something fails.
pub(super) async fn doctor(context: &Context) -> Result<u8, Error> {
    let host = Host::this().map_err(Error::Setup)?;
    let checks = examine(context, &host).await?;
    if context.json {
        let document = serde_json::to_string(&DoctorView { checks: checks.clone() }).map_err(Error::Request)?;
        print(&format!("{document}\n"))?;
    } else {
        let screen = Screen::stdout();
        Context::table(&table(&checks, screen))?;
        print(&remarks(&checks, screen, context.verbose))?;
    }
    Ok(if checks.iter().any(|check| check.outcome == Outcome::Fail) { exit::FAILED } else { 0 })
}

async fn examine(context: &Context, host: &Host) -> Result<Vec<Check>, Error> {
    let service = Service::find(host, &WhichArgs::default()).await;
    let from = own_directory()?;
    let installed = installation::look(host, &service, &from).await;
    let answer = context.client.version().await;
    let running = answer.as_ref().ok().map(|document| &document.value);
    let instance = running.and_then(|running| instance_of(host, running.pid));
    let mut checks = vec![match &instance {
        Some(unit) => installation::administrators(unit),
        None => installation::service(&service, &installed),
    }];
    if let Ok(Service::User) = &service {
        checks.push(installation::linger(lingers(host, &host.user).await, &host.user));
        let manager = cgroups::manager(host).await;
        checks.push(cgroups::check(&host.path("/sys/fs/cgroup"), manager.trim_start_matches('/'), host.uid));
    }

    let listens = matches!(&installed, Ok(found) if found.socket.as_ref().is_some_and(survey::State::is_known));
    // Over TCP it is asked all the same how the socket stands: that is a part of the installation.
    let socket = match context.client.way() {
        Way::Socket(socket) => socket.clone(),
        Way::Tcp { .. } => default_socket(),
    };
    let peer = process::peer(&socket).await;
    checks.push(process::socket(&socket, answer.as_ref().err(), peer, host.uid, listens));
    checks.extend(running.map(|running| process::process(host, running.pid)));
    let beside = process::beside(host, &from).await;
    checks.push(process::versions(running.map(|running| running.version.as_str()), &beside));

    let places = storage::places(running, &socket)?;
    checks.push(storage::directories(&places, host.uid));
    checks.push(storage::disk(&storage::volumes(&places)));
    checks.push(storage::path_length(&places[0].path, host.os));

    if running.is_some() {
        match context.client.doctor().await {
            Ok(view) => checks.extend(view.checks),
            Err(error) => checks.push(
                Check::new("daemon", Outcome::Unknown, format!("agentd did not say how it is: {error}"))
                    .remedy("an agentd of before this command does not know it: agentctl service install"),
            ),
        }
    }
    Ok(checks)
}

fn table(checks: &[Check], screen: Screen) -> Table {
    let mut table = Table::new(&[("CHECK", Cut::Never), ("OUTCOME", Cut::Never), ("SUMMARY", Cut::End)]);
    for check in checks {
        table.row([screen.line(&check.name), check.outcome.as_str().to_owned(), screen.line(&check.summary)]);
    }
    table
}

/// Facts and remedy of each that does not pass; of all of them where everything is to be shown.
fn remarks(checks: &[Check], screen: Screen, all: bool) -> String {
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
        let told = remarks(&checks, SCREEN, false);
        assert!(told.contains("nothing can be kept\n  free: 0 MB\n  remedy: remove something\n"), "{told}");
        assert!(!told.contains("claude") && remarks(&checks, SCREEN, true).contains("  claude: 1.0\n"));
    }
}
