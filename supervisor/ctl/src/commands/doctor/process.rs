//! Checks which process listens on the socket, which program it runs, and whether the versions match.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use agentd_api::doctor::{Check, Command, Finding, shell_word};
use agentd_api::prerequisite::Outcome;
use tokio::net::UnixStream;

use super::lock::orderly_end;
use crate::service::host::{Host, Program, line};
use crate::service::manager::Service;
use crate::service::repair;
use crate::service::survey::Units;
use agentd_client::{Error as ClientError, nobody_listens};

/// Returns the user of the listening process, as the kernel reports it.
pub(super) async fn peer(socket: &Path) -> Option<u32> {
    let stream = UnixStream::connect(socket).await.ok()?;
    stream.peer_cred().ok().map(|peer| peer.uid())
}

/// Checks the socket. `units` belong to the manager that runs agentd; `held` states whether a running agentd
/// does not answer here.
pub(super) fn socket(
    path: &Path,
    error: Option<&ClientError>,
    peer: Option<u32>,
    uid: u32,
    units: Option<&Units>,
    held: bool,
) -> Check {
    let check = |findings: &[Finding]| {
        Check::of("socket", findings, "agentd answers").fact("socket", path.display().to_string())
    };
    if let Some(other) = peer.filter(|peer| *peer != uid && *peer != 0) {
        let summary = format!("user {other} listens on the socket, not you");
        let remedy = format!("remove {}, and find its origin", path.display());
        return check(&[Finding::new(Outcome::Fail, summary, remedy)]);
    }
    let finding = match error {
        None => return check(&[]),
        Some(ClientError::Unreachable { source, .. }) if nobody_listens(source) && held => {
            Finding::new(Outcome::Fail, format!("no process listens, although an agentd runs: {source}"), "see lock")
        }
        Some(ClientError::Unreachable { source, .. }) if nobody_listens(source) => match units {
            None => {
                let summary = "agentd does not run; agentctl starts it with the next command";
                let remedy = "under systemd or launchd, agentctl service install lets the manager run agentd";
                Finding::new(Outcome::Warn, summary, remedy).run("agentctl ls")
            }
            Some(units) => {
                let finding =
                    Finding::bare(Outcome::Fail, format!("no process listens, although agentd is installed: {source}"));
                let commands = repair::listens(&units.service, &units.socket, &units.unit);
                repair::by(finding, &units.service, &commands.unwrap_or_else(|commands| commands))
            }
        },
        Some(error) => {
            let finding =
                Finding::new(Outcome::Fail, agentd_api::chain(error), "agentctl service logs may show the reason");
            match units {
                Some(units) => {
                    let restart = units.service.systemctl(&["restart", &units.name()]);
                    repair::by(finding, &units.service, &[restart])
                }
                None => finding,
            }
        }
    };
    check(&[finding])
}

/// Commands that put another build of agentd in force. They depend on the way agentd is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Renewal {
    /// Commands for the build that is installed already.
    restart: Vec<Command>,
    /// Commands for the build of this agentctl.
    pub(super) install: Vec<Command>,
}

impl Renewal {
    /// Selects the commands. `units` belong to the manager that runs agentd; `is_job` states whether launchd
    /// runs it.
    pub(super) fn of(host: &Host, units: Option<&Units>, is_job: bool, pid: u32) -> Self {
        const INSTALL: &str = "agentctl service install";
        match units {
            Some(units) => {
                let restart = line(&units.service.systemctl(&["restart", &units.name()]));
                match &units.service {
                    Service::System { .. } => {
                        let install = format!("{INSTALL} --system --user {}", shell_word(&host.user));
                        Self { restart: vec![Command::of_root(restart)], install: vec![Command::of_root(install)] }
                    }
                    _ => Self { restart: vec![restart.into()], install: vec![INSTALL.into()] },
                }
            }
            None if is_job => {
                let restart = line(&["launchctl", "kickstart", "-k", &Service::target(host)]);
                Self { restart: vec![restart.into()], install: vec![INSTALL.into()] }
            }
            // agentctl starts the agentd in its own directory.
            None => {
                let again: Vec<Command> = orderly_end(pid).into_iter().map(Command::from).collect();
                Self { restart: again.clone(), install: again }
            }
        }
    }
}

/// Checks the daemon's process, as far as this system shows it. `said` is the program's file as the daemon
/// reports it: other processes cannot inspect a process in a sandbox.
pub(super) fn process(host: &Host, pid: u32, said: Option<&Path>, renewal: &Renewal) -> Check {
    let owner = std::fs::metadata(host.path(&format!("/proc/{pid}"))).map(|metadata| metadata.uid()).ok();
    let check = |outcome, summary: String| Check::new("process", outcome, summary).fact("pid", pid.to_string());
    let program = host.program_of(pid).or_else(|| said.filter(|_| host.os == "linux").map(Program::of_link));
    let check = match (owner, program) {
        (Some(owner), _) if owner != host.uid => {
            check(Outcome::Fail, format!("agentd is a process of user {owner}, not yours"))
                .remedy("as root, end this process, then start your own agentd; its sessions still belong to that user")
                .run(Command::of_root(format!("kill {pid}")))
                .run("agentctl ls")
        }
        (_, Some(program)) if program.replaced => {
            check(Outcome::Warn, format!("{} was replaced since agentd started", program.path.display()))
                .remedy("sessions continue meanwhile")
                .run_all(&renewal.restart)
        }
        (_, Some(program)) => check(Outcome::Pass, "the running program is the installed file".to_owned())
            .fact("program", program.path.display().to_string()),
        // Systems without proc(5), or processes that cannot be inspected.
        (_, None) => check(Outcome::Unknown, "the system does not show the program's file".to_owned()),
    };
    match owner {
        Some(owner) => check.fact("user", owner.to_string()),
        None => check,
    }
}

/// Asks the programs beside this program for their versions.
pub(super) async fn beside(host: &Host, directory: &Path) -> Vec<(&'static str, Option<String>)> {
    let mut versions = Vec::new();
    for name in ["agentd", "agentd-keeper"] {
        let program = directory.join(name);
        let said = host.said(&[program.as_os_str(), "--version".as_ref()]).await;
        versions.push((name, said.and_then(|said| said.strip_prefix(name).map(|version| version.trim().to_owned()))));
    }
    versions
}

pub(super) fn versions(running: Option<&str>, beside: &[(&'static str, Option<String>)], renewal: &Renewal) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    let mut findings = Vec::new();
    for (name, version) in beside {
        match version {
            Some(version) if version == own => {}
            Some(version) => findings.push(Finding::new(
                Outcome::Fail,
                format!("the {name} beside this agentctl {own} is {version}"),
                "put the three programs of one build in one directory",
            )),
            None => findings.push(Finding::new(
                Outcome::Fail,
                format!("cannot run {name} beside this agentctl"),
                "agentd, agentd-keeper and agentctl of one build belong in one directory",
            )),
        }
    }
    if let Some(running) = running.filter(|running| *running != own) {
        let summary = format!("agentd {running} is running, but this is agentctl {own}");
        let finding = Finding::new(Outcome::Warn, summary, "sessions continue meanwhile");
        findings.push(finding.run_all(&renewal.install));
    }
    Check::of("versions", &findings, format!("all of {own}"))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;
    use crate::service::survey::UnitState;

    /// Commands for a daemon without a service manager.
    fn by_hand(pid: u32) -> Renewal {
        Renewal::of(&Host::of_kim(), None, false, pid)
    }

    #[test]
    fn what_brings_another_build_in_force_can_be_typed_whoever_starts_agentd() {
        let state = || UnitState { active: "active".into(), ..UnitState::default() };
        let lines =
            |commands: &[Command]| commands.iter().map(|one| (one.line.clone(), one.as_root)).collect::<Vec<_>>();
        for (service, restart, install, root) in [
            (Service::User, "systemctl --user restart agentd.service", "agentctl service install", false),
            (
                Service::System { user: Some("kim".into()) },
                "systemctl restart agentd@kim.service",
                "agentctl service install --system --user kim",
                true,
            ),
        ] {
            let units = Units { service, socket: state(), unit: state() };
            let renewal = Renewal::of(&Host::of_kim(), Some(&units), false, 7);
            assert_eq!(lines(&renewal.restart), [(restart.to_owned(), root)]);
            assert_eq!(lines(&renewal.install), [(install.to_owned(), root)]);
        }
        // `service install` fails without a service manager.
        let by_hand = by_hand(7);
        assert_eq!(by_hand.restart, by_hand.install);
        assert!(by_hand.install[0].line.starts_with("kill 7 && ") && by_hand.install[1].line == "agentctl ls");
        let job = Renewal::of(&Host::of_kim(), None, true, 7);
        assert_eq!(job.restart[0].line, "launchctl kickstart -k gui/1000/dev.agentd.agentd");
    }

    #[test]
    fn a_socket_without_anybody_is_a_fault_only_where_somebody_should_be_there() {
        let path = Path::new("/run/user/1/agentd/control.sock");
        let unreachable =
            |kind: io::ErrorKind| ClientError::Unreachable { place: path.display().to_string(), source: kind.into() };
        let state = || UnitState { active: "inactive".into(), ..UnitState::default() };
        let units = Units { service: Service::System { user: Some("kim".into()) }, socket: state(), unit: state() };
        let of = |error: Option<&ClientError>, peer, managed: bool| {
            socket(path, error, peer, 1000, managed.then_some(&units), false)
        };
        let check = |error: Option<&ClientError>, peer, managed| of(error, peer, managed).outcome;
        assert_eq!(check(None, Some(1000), true), Outcome::Pass);
        let nobody = unreachable(io::ErrorKind::ConnectionRefused);
        assert_eq!(check(Some(&nobody), None, false), Outcome::Warn);
        let down = of(Some(&nobody), None, true);
        assert_eq!(down.outcome, Outcome::Fail);
        let command = &down.run[0];
        assert_eq!((command.line.as_str(), command.as_root), ("systemctl start agentd@kim.socket", true));
        assert_eq!(check(Some(&unreachable(io::ErrorKind::PermissionDenied)), None, false), Outcome::Fail);
        let silent = ClientError::Silent { place: path.display().to_string(), call: "GET /".into(), seconds: 30 };
        assert_eq!(check(Some(&silent), Some(1000), true), Outcome::Fail);
        assert_eq!(check(None, Some(1001), true), Outcome::Fail, "another user's");
    }

    #[test]
    fn a_program_that_was_replaced_and_a_process_of_somebody_else_are_told() {
        let root = tempfile::tempdir().unwrap();
        let own = nix::unistd::getuid().as_raw();
        let host = |uid| Host {
            os: "linux",
            uid,
            user: "kim".into(),
            home: "/home/kim".into(),
            search: "/bin".into(),
            root: root.path().to_owned(),
        };
        let runs = |program: &str| {
            let directory = root.path().join("proc/7");
            std::fs::create_dir_all(&directory).unwrap();
            let _ = std::fs::remove_file(directory.join("exe"));
            symlink(PathBuf::from(program), directory.join("exe")).unwrap();
        };
        runs("/opt/agentd");
        assert_eq!(process(&host(own), 7, None, &by_hand(7)).outcome, Outcome::Pass);
        assert_eq!(process(&host(own + 1), 7, None, &by_hand(7)).outcome, Outcome::Fail);
        runs("/opt/agentd (deleted)");
        let check = process(&host(own), 7, None, &by_hand(7));
        assert!(check.outcome == Outcome::Warn && check.summary.starts_with("/opt/agentd was replaced"), "{check:?}");
        assert_eq!(process(&host(own), 8, None, &by_hand(8)).outcome, Outcome::Unknown);
        // In a sandbox of another user namespace the link is unreadable, and the daemon reports its program.
        assert_eq!(process(&host(own), 8, Some(Path::new("/opt/agentd")), &by_hand(8)).outcome, Outcome::Pass);
        assert_eq!(
            process(&host(own), 8, Some(Path::new("/opt/agentd (deleted)")), &by_hand(8)).outcome,
            Outcome::Warn
        );
    }

    #[test]
    fn programs_of_different_builds_are_told() {
        let own = env!("CARGO_PKG_VERSION").to_owned();
        let beside =
            |keeper: Option<&str>| [("agentd", Some(own.clone())), ("agentd-keeper", keeper.map(str::to_owned))];
        assert_eq!(versions(Some(&own), &beside(Some(&own)), &by_hand(7)).outcome, Outcome::Pass);
        assert_eq!(versions(None, &beside(Some("0.0.1")), &by_hand(7)).outcome, Outcome::Fail);
        assert_eq!(versions(None, &beside(None), &by_hand(7)).outcome, Outcome::Fail);
        assert_eq!(versions(Some("0.0.1"), &beside(Some(&own)), &by_hand(7)).outcome, Outcome::Warn);
    }
}
