//! Who holds the lock of the state directory: the daemon that answers, one that does not, or one beside the service.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use agentd_api::doctor::{Check, Finding, shell_word};
use agentd_api::lock::{self, Record};
use agentd_api::prerequisite::Outcome;

use super::super::service::host::Host;
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
}

/// The holder of the lock in this state directory, as far as the system shows it.
pub(super) fn look(host: &Host, state: &Path) -> Option<Holder> {
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
    Some(Holder { pid, unit: record.unit.or_else(|| unit_of(host, pid)), socket: record.socket })
}

/// The unit of agentd that the process belongs to, by its cgroups.
fn unit_of(host: &Host, pid: u32) -> Option<String> {
    let cgroups = std::fs::read_to_string(host.path(&format!("/proc/{pid}/cgroup"))).ok()?;
    let is_agentds = |part: &&str| *part == "agentd.service" || part.starts_with("agentd@");
    cgroups.lines().flat_map(|line| line.split('/')).find(is_agentds).map(str::to_owned)
}

/// `answering` is the pid of the daemon that answers at `socket`.
pub(super) fn check(holder: Option<&Holder>, answering: Option<u32>, socket: &Path, units: Option<&Units>) -> Check {
    const NAME: &str = "lock";
    let Some(holder) = holder else { return Check::new(NAME, Outcome::Pass, "no agentd holds the state directory") };
    let Holder { pid, unit, .. } = holder;
    let is_stray = unit.is_none();
    let who = match unit {
        Some(unit) => format!("agentd (pid {pid}, {unit})"),
        None => format!("agentd (pid {pid}), which no service manager started,"),
    };
    let finding = if answering == Some(*pid) {
        match units.filter(|_| is_stray) {
            None => {
                return Check::new(
                    NAME,
                    Outcome::Pass,
                    format!("{} holds the state directory", who.trim_end_matches(',')),
                );
            }
            Some(units) => {
                let summary = format!("{who} runs in the place of {}, and nothing starts it again", units.name());
                repair::by(Finding::bare(Outcome::Warn, summary), &units.service, &repair::starts(units))
            }
        }
    } else {
        let elsewhere = holder.socket.as_deref().filter(|other| *other != socket);
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
            // It may be stuck, and loses nothing by this: sessions and their journals are the keepers'.
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
        let holder = |unit: Option<&str>| Holder { pid: 7, unit: unit.map(str::to_owned), socket: Some(socket.into()) };
        let commands = |check: &Check| check.run.iter().map(|command| command.line.clone()).collect::<Vec<_>>();
        let service = holder(Some("agentd.service"));
        assert_eq!(check(None, None, socket, Some(&own)).outcome, Outcome::Pass);
        assert_eq!(check(Some(&service), Some(7), socket, Some(&own)).outcome, Outcome::Pass);
        assert_eq!(check(Some(&holder(None)), Some(7), socket, None).outcome, Outcome::Pass, "there is no service");

        let stray = check(Some(&holder(None)), Some(7), socket, Some(&own));
        assert_eq!(stray.outcome, Outcome::Warn);
        let expected = ["systemctl --user reset-failed agentd.service", "systemctl --user start agentd.service"];
        assert_eq!(commands(&stray), expected);
        let hidden = check(Some(&holder(None)), None, socket, None);
        assert!(hidden.outcome == Outcome::Fail && hidden.summary.contains("pid 7"), "{hidden:?}");
        assert!(commands(&hidden)[0].starts_with("kill -KILL 7"), "{hidden:?}");
        let kims = check(Some(&holder(Some("agentd@kim.service"))), None, socket, Some(&kims));
        assert!(kims.run.iter().all(|command| command.as_root), "{kims:?}");
        assert_eq!(commands(&kims)[1], "systemctl restart agentd@kim.socket");
        let other = check(Some(&holder(None)), None, Path::new("/elsewhere"), None);
        assert!(other.summary.contains("serves another socket: /run/user/1000"), "{other:?}");
    }
}
