//! Checks which process holds the lock of the state directory: the answering daemon, a silent daemon, or a
//! daemon beside the service.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use agentd_api::doctor::{Check, Finding, shell_word};
use agentd_api::lock::{self, Record};
use agentd_api::prerequisite::Outcome;

use crate::service::host::{Host, unit_of};
use crate::service::repair;
use crate::service::survey::Units;

/// Process that holds the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pid: u32,
    /// Unit or job of the daemon; `None` if it was started without a service manager.
    unit: Option<String>,
    /// Socket of the daemon, if the lock names it.
    socket: Option<PathBuf>,
    /// Name of the program, if it is not agentd. A process can hold the lock of an agentd that has ended, or
    /// have its pid.
    other: Option<String>,
}

impl Holder {
    /// Returns the daemon's socket, if it differs from `socket`.
    pub(super) fn elsewhere(&self, socket: &Path) -> Option<&Path> {
        self.socket.as_deref().filter(|other| *other != socket)
    }
}

/// Returns the holder of the lock in this state directory, as far as the system shows it.
pub(super) async fn look(host: &Host, state: &Path) -> Option<Holder> {
    let path = state.join(lock::FILE);
    let record = Record::read(&std::fs::read_to_string(&path).ok()?);
    let recorded = record.as_ref().map(|record| record.pid);
    let pid = if host.os == "linux" {
        let metadata = std::fs::metadata(&path).ok()?;
        let locks = std::fs::read_to_string(host.path("/proc/locks")).ok()?;
        lock::holder(&locks, metadata.dev(), metadata.ino(), recorded)?
    } else {
        // macOS shows no locks: a process with this pid that may be signalled counts as the holder.
        let process = nix::unistd::Pid::from_raw(i32::try_from(recorded?).ok()?);
        nix::sys::signal::kill(process, None).ok().and(recorded)?
    };
    let record = record.filter(|record| record.pid == pid).unwrap_or_default();
    let other = program_name(host, pid).await.filter(|name| name != "agentd");
    Some(Holder { pid, unit: record.unit.or_else(|| unit_of(host, pid)), socket: record.socket, other })
}

/// Returns the name of a process's program, if the system shows it.
async fn program_name(host: &Host, pid: u32) -> Option<String> {
    if host.os == "linux" {
        let name = std::fs::read_to_string(host.path(&format!("/proc/{pid}/comm"))).ok()?;
        return Some(name.trim_end().to_owned());
    }
    let said = host.said(&["ps", "-o", "comm=", "-p", &pid.to_string()]).await?;
    Some(said.rsplit('/').next().unwrap_or_default().trim().to_owned())
}

/// Returns the commands that end an answering daemon and start another.
pub(super) fn orderly_end(pid: u32) -> [String; 2] {
    let end = format!("kill {pid} && while kill -0 {pid} 2>/dev/null; do sleep 0.1; done");
    [end, "agentctl ls".to_owned()]
}

/// Checks the holder of the lock. `answering` is the pid of the daemon that answers at `socket`; `is_well`
/// states whether the holder answers at any socket.
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
        let remedy = "identify the process and end it: it inherited the lock from an agentd that has ended";
        return Check::new(NAME, Outcome::Fail, summary).remedy(remedy).run(format!("ps -f -p {pid}"));
    }
    let is_stray = unit.is_none();
    let who = match unit {
        Some(unit) => format!("agentd (pid {pid}, {unit})"),
        None => format!("agentd (pid {pid}), started without a service manager,"),
    };
    let finding = if answering == Some(*pid) {
        match units.filter(|_| is_stray) {
            None => {
                return Check::new(NAME, Outcome::Pass, format!("{who} holds the state directory"));
            }
            Some(units) => {
                let summary = format!("{who} runs instead of {}, and no manager restarts it", units.name());
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
        let finding = Finding::new(Outcome::Fail, summary, "its sessions continue meanwhile");
        match units {
            Some(units) if is_stray => repair::by(finding, &units.service, &repair::starts(units)),
            Some(units) => {
                let commands = repair::listens(&units.service, &units.socket, &units.unit);
                repair::by(finding, &units.service, &commands.unwrap_or_else(|commands| commands))
            }
            None if is_well => orderly_end(*pid).into_iter().fold(finding, Finding::run),
            // The daemon is stuck. Killing it loses nothing: the keepers hold the sessions and journals.
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
    use super::*;
    use crate::service::manager::Service;
    use crate::service::survey::UnitState;

    #[test]
    fn a_stray_daemon_is_told_from_the_service_and_from_one_that_cannot_be_reached() {
        let socket = Path::new("/run/user/1000/agentd/control.sock");
        let state = |active: &str| UnitState { active: active.into(), ..UnitState::default() };
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
        assert_eq!(by_hand.summary, "agentd (pid 7), started without a service manager, holds the state directory");
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
