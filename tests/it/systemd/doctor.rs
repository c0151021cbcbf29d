//! `agentctl doctor` under a service manager. It finds each fault, and the commands that it prints repair the fault.

use serde_json::Value;

use super::recovery::{daemon_by_hand, daemons, property};
use crate::harness::lab::Lab;
use crate::harness::{require, until};

/// Returns the checks as the user sees them, or with `by_root` as root sees them for the user's instance of the
/// template.
fn checks(lab: &Lab, by_root: bool) -> Vec<Value> {
    let output = if by_root {
        lab.command(["agentctl", "--json", "doctor", "--system", "--user", "worker"]).output().expect("nsenter runs")
    } else {
        lab.try_worker(&["agentctl", "--json", "doctor"])
    };
    let view: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    view["checks"].as_array().expect("a list").clone()
}

pub(super) fn check(lab: &Lab, by_root: bool, name: &str) -> Value {
    checks(lab, by_root).into_iter().find(|check| check["name"] == name).unwrap_or(Value::Null)
}

/// Runs the commands of a check, each as the user that the command names.
pub(super) fn repair(lab: &Lab, found: &Value) {
    let commands = found["run"].as_array().unwrap_or_else(|| panic!("nothing to type: {found:#}"));
    for command in commands {
        let line = command["line"].as_str().expect("a text");
        if command["as_root"] == true {
            lab.root(&["sh", "-c", line]);
        } else {
            lab.worker(&["sh", "-c", line]);
        }
    }
}

/// Asserts that the check `name` finds the fault, and passes after its commands have run.
fn broken(lab: &Lab, what: &str, by_root: bool, name: &str) {
    let found = check(lab, by_root, name);
    assert!(matches!(found["outcome"].as_str(), Some("fail" | "warn")), "{what}: {found:#}");
    repair(lab, &found);
    let after = check(lab, by_root, name);
    assert_eq!(after["outcome"], "pass", "{what}, after {}: {after:#}", found["run"]);
}

#[tokio::test]
async fn a_stopped_socket_a_failed_service_and_a_stray_daemon_are_found_and_repaired_by_what_doctor_prints() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    lab.systemctl(&["stop", "agentd.socket", "agentd.service"]);
    broken(&lab, "stopped by hand", false, "socket");

    let drop_in = "/home/worker/.config/systemd/user/agentd.service.d/typo.conf";
    lab.write(drop_in, &format!("{}ExecStart=\nExecStart=/bin/false\n", super::recovery::OLD_LIMITS));
    lab.systemctl(&["daemon-reload"]);
    let _ = lab.try_worker(&["systemctl", "--user", "restart", "agentd.service"]);
    let _ = lab.try_worker(&["agentctl", "--no-start", "ls"]);
    until("the socket has failed too", || property(&lab, "agentd.socket", "ActiveState") == "failed").await;
    lab.write(drop_in, "");
    lab.systemctl(&["daemon-reload"]);
    broken(&lab, "failed with its socket", false, "service");

    lab.systemctl(&["stop", "agentd.socket", "agentd.service"]);
    let mut stray = daemon_by_hand(&lab);
    until("the stray daemon answers", || lab.try_worker(&["agentctl", "--no-start", "ls"]).status.success()).await;
    broken(&lab, "a stray daemon", false, "lock");
    until("the stray daemon has ended", || stray.try_wait().expect("it can be waited for").is_some()).await;
    assert_eq!(daemons(&lab), [property(&lab, "agentd.service", "MainPID")]);
}

#[tokio::test]
async fn under_the_template_nothing_is_unknown_while_it_is_well_and_what_doctor_prints_repairs_it_for_user_and_root() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    lab.administer();
    lab.agentctl(&["ls"]);
    for by_root in [false, true] {
        let found = checks(&lab, by_root);
        let odd: Vec<&Value> =
            found.iter().filter(|check| check["outcome"] == "fail" || check["outcome"] == "unknown").collect();
        assert!(odd.is_empty(), "by root: {by_root}: {odd:#?}");
        assert!(found.iter().any(|check| check["name"] == "agents"), "the daemon was not asked: {found:#?}");
    }
    for by_root in [false, true] {
        lab.root(&["systemctl", "stop", "agentd@worker.socket", "agentd@worker.service"]);
        let found = check(&lab, by_root, "socket");
        assert_eq!(found["run"][0]["line"], "systemctl start agentd@worker.socket", "{found:#}");
        broken(&lab, "the template is stopped", by_root, "socket");
        assert_eq!(lab.root(&["systemctl", "is-active", "agentd@worker.service"]), "active\n");
    }
    // This user's instance was never enabled.
    let other = lab.command(["agentctl", "doctor", "--system", "--user", "root"]).output().expect("nsenter runs");
    let said = String::from_utf8_lossy(&other.stdout).into_owned();
    assert!(said.contains("run as root: agentctl service install --system --user root"), "{said}");
}
