//! Who holds the lock of the state directory: the daemon that answers, one that does not, or one beside the service.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use agentd_api::doctor::{Check, Finding, shell_word};
use agentd_api::lock::{self, Record};
use agentd_api::prerequisite::Outcome;

use super::super::service::host::{Host, unit_of};
use super::super::service::repair;
use super::super::service::survey::Units;

/// The daemon that holds the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pid: u32,
    /// The unit or the job that it is; nothing where no service manager started it.
    unit: Option<String>,
    /// The socket that it serves, where it says so.
    socket: Option<PathBuf>,
    /// The name of the program that it is instead of agentd. A process may have the lock of an agentd that has ended, or its pid.
    other: Option<String>,
}

impl Holder {
    /// The socket that it serves, if that is another than this.
    pub(super) fn elsewhere(&self, socket: &Path) -> Option<&Path> {
        self.socket.as_deref().filter(|other| *other != socket)
    }
}

/// The holder of the lock in this state directory, as far as the system shows it.
pub(super) async fn look(host: &Host, state: &Path) -> Option<Holder> {
    let path = state.join(lock::FILE);
    let record = Record::read(&std::fs::read_to_string(&path).ok()?);
    let recorded = record.as_ref().map(|record| record.pid);
    let pid = if host.os == "linux" {
        let metadata = std::fs::metadata(&path).ok()?;
        let locks = std::fs::read_to_string(host.path("/proc/locks")).ok()?;
        lock::holder(&locks, metadata.dev(), metadata.ino(), recorded)?
    } else {
        // macOS shows no locks: a process of this pid that may be signalled is taken for the holder.
        let process = nix::unistd::Pid::from_raw(i32::try_from(recorded?).ok()?);
        nix::sys::signal::kill(process, None).ok().and(recorded)?
    };
    let record = record.filter(|record| record.pid == pid).unwrap_or_default();
    let other = program_name(host, pid).await.filter(|name| name != "agentd");
    Some(Holder { pid, unit: record.unit.or_else(|| unit_of(host, pid)), socket: record.socket, other })
}

/// The name of a process's program, where the system shows it.
async fn program_name(host: &Host, pid: u32) -> Option<String> {
    if host.os == "linux" {
        let name = std::fs::read_to_string(host.path(&format!("/proc/{pid}/comm"))).ok()?;
        return Some(name.trim_end().to_owned());
    }
    let said = host.said(&["ps", "-o", "comm=", "-p", &pid.to_string()]).await?;
    Some(said.rsplit('/').next().unwrap_or_default().trim().to_owned())
}

/// The commands that end a daemon that answers, and start another.
pub(super) fn orderly_end(pid: u32) -> [String; 2] {
    let end = format!("kill {pid} && while kill -0 {pid} 2>/dev/null; do sleep 0.1; done");
    [end, "agentctl ls".to_owned()]
}

/// `answering` is the pid of the daemon that answers at `socket`; `is_well` is whether the holder answers anywhere.
pub(super) fn check(
    holder: Option<&Holder>,
    answering: Option<u32>,
    is_well: bool,
    socket: &Path,
    units: Option<&Units>,
) -> Check {
    const NAME: &str = "lock";
    let Some(holder) = holder else { return Check::new(NAME, Outcome::Pass, "no agentd holds the state directory") };
    let Holder { pid, unit, .. } = holder;
    if let Some(other) = &holder.other {
        let summary = format!("process {pid} ({other}) holds the lock of the state directory, and is not agentd");
        let remedy = "find out what it is, and end it: it has the lock from an agentd that has ended";
        return Check::new(NAME, Outcome::Fail, summary).remedy(remedy).run(format!("ps -f -p {pid}"));
    }
    let is_stray = unit.is_none();
    let who = match unit {
        Some(unit) => format!("agentd (pid {pid}, {unit})"),
        None => format!("agentd (pid {pid}), which no service manager started,"),
    };
    let finding = if answering == Some(*pid) {
        match units.filter(|_| is_stray) {
            None => {
                return Check::new(NAME, Outcome::Pass, format!("{who} holds the state directory"));
            }
            Some(units) => {
                let summary = format!("{who} runs in the place of {}, and nothing starts it again", units.name());
                repair::by(Finding::bare(Outcome::Warn, summary), &units.service, &repair::starts(units))
            }
        }
    } else {
        let elsewhere = holder.elsewhere(socket);
        let place = elsewhere.unwrap_or(socket).display();
        let summary = match elsewhere {
            Some(_) => format!("{who} holds the state directory and serves another socket: {place}"),
            None => format!("{who} holds the state directory and cannot be reached at {place}"),
        };
        let finding = Finding::new(Outcome::Fail, summary, "its sessions go on meanwhile");
        match units {
            Some(units) if is_stray => repair::by(finding, &units.service, &repair::starts(units)),
            Some(units) => {
                let commands = repair::listens(&units.service, &units.socket, &units.unit);
                repair::by(finding, &units.service, &commands.unwrap_or_else(|commands| commands))
            }
            None if is_well => orderly_end(*pid).into_iter().fold(finding, Finding::run),
            // It is stuck, and loses nothing by this: the keepers hold sessions and journals.
            None => finding.run(format!("kill -KILL {pid}")).run("agentctl ls"),
        }
    };
    let check = Check::of(NAME, &[finding], "");
    match &holder.socket {
        Some(socket) => check.fact("socket", shell_word(&socket.to_string_lossy())),
        None => check,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::service::manager::Service;
    use super::super::super::service::survey::State;
    use super::*;

    #[test]
    fn a_stray_daemon_is_told_from_the_service_and_from_one_that_cannot_be_reached() {
        let socket = Path::new("/run/user/1000/agentd/control.sock");
        let state = |active: &str| State { active: active.into(), ..State::default() };
        let units = |service| Units { service, socket: state("active"), unit: state("failed") };
        let (own, kims) = (units(Service::User), units(Service::System { user: Some("kim".into()) }));
        let holder = |unit: Option<&str>| Holder {
            pid: 7,
            unit: unit.map(str::to_owned),
            socket: Some(socket.into()),
            other: None,
        };
        let commands = |check: &Check| check.run.iter().map(|command| command.line.clone()).collect::<Vec<_>>();
        let service = holder(Some("agentd.service"));
        assert_eq!(check(None, None, false, socket, Some(&own)).outcome, Outcome::Pass);
        assert_eq!(check(Some(&service), Some(7), false, socket, Some(&own)).outcome, Outcome::Pass);
        assert_eq!(
            check(Some(&holder(None)), Some(7), false, socket, None).outcome,
            Outcome::Pass,
            "there is no service"
        );

        let by_hand = check(Some(&holder(None)), Some(7), false, socket, None);
        assert_eq!(by_hand.summary, "agentd (pid 7), which no service manager started, holds the state directory");
        let stray = check(Some(&holder(None)), Some(7), false, socket, Some(&own));
        assert_eq!(stray.outcome, Outcome::Warn);
        let expected = ["systemctl --user reset-failed agentd.service", "systemctl --user start agentd.service"];
        assert_eq!(commands(&stray), expected);
        let hidden = check(Some(&holder(None)), None, false, socket, None);
        assert!(hidden.outcome == Outcome::Fail && hidden.summary.contains("pid 7"), "{hidden:?}");
        assert!(commands(&hidden)[0].starts_with("kill -KILL 7"), "{hidden:?}");
        let well = check(Some(&holder(None)), None, true, Path::new("/elsewhere"), None);
        assert!(commands(&well)[0].starts_with("kill 7 &&"), "a daemon that is well ends in order: {well:?}");
        let python = Holder { other: Some("python3".into()), ..holder(None) };
        for units in [None, Some(&own)] {
            let foreign = check(Some(&python), None, false, socket, units);
            assert_eq!(commands(&foreign), ["ps -f -p 7"], "nothing is ended that is not agentd");
        }
        let kims = check(Some(&holder(Some("agentd@kim.service"))), None, false, socket, Some(&kims));
        assert!(kims.run.iter().all(|command| command.as_root), "{kims:?}");
        assert_eq!(commands(&kims)[1], "systemctl restart agentd@kim.socket");
        let other = check(Some(&holder(None)), None, false, Path::new("/elsewhere"), None);
        assert!(other.summary.contains("serves another socket: /run/user/1000"), "{other:?}");
    }
}
