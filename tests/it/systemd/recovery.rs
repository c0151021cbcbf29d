//! A service that was stopped, that failed, or whose state a stray daemon holds. The service becomes active again, and
//! no session ends.

use std::process::{Child, Stdio};

use agentd_api::SessionId;
use serde_json::{Value, json};

use super::{begin_to_count, counted, turn_ends};
use crate::harness::lab::{Lab, login};
use crate::harness::{require, until};

/// Start limits of older units, with shorter delays.
pub(super) const OLD_LIMITS: &str =
    "[Unit]\nStartLimitIntervalSec=30\nStartLimitBurst=5\n[Service]\nRestartSec=100ms\n";

pub(super) fn property(lab: &Lab, unit: &str, name: &str) -> String {
    lab.systemctl(&["show", "--value", "-p", name, unit]).trim().to_owned()
}

/// Asserts that the user's service answers, that its socket listens, and that the session has the same agent.
pub(super) fn the_service_runs(lab: &Lab, id: &SessionId, agent: &Value) {
    let version = lab.agentctl(&["version"]);
    assert_eq!(version["daemon"]["pid"].to_string(), property(lab, "agentd.service", "MainPID"), "{version:#}");
    for unit in ["agentd.socket", "agentd.service"] {
        assert_eq!(property(lab, unit, "ActiveState"), "active", "{unit}");
    }
    session_lives_on(lab, id, agent);
}

fn session_lives_on(lab: &Lab, id: &SessionId, agent: &Value) {
    let view = lab.agentctl(&["show", id.as_str()]);
    assert_eq!((&view["status"]["agent_pid"], &view["status"]["launches"]), (agent, &json!(1)), "{view:#}");
}

/// Starts a session that counts, and returns its id and its agent's pid.
pub(super) async fn counting(lab: &Lab) -> (SessionId, Value) {
    let id = lab.session();
    let agent = lab.agentctl(&["show", id.as_str()])["status"]["agent_pid"].clone();
    begin_to_count(lab, &id, 5).await;
    (id, agent)
}

pub(super) async fn counted_to_the_end(lab: &Lab, id: &SessionId) {
    turn_ends(lab, id).await;
    assert_eq!(counted(lab, id), (1..=300).collect::<Vec<u32>>());
}

/// Returns the pids of all daemons of the user.
pub(super) fn daemons(lab: &Lab) -> Vec<String> {
    let found = lab.try_worker(&["pgrep", "-U", "worker", "-x", "agentd"]);
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

/// Starts a daemon without a service manager.
pub(super) fn daemon_by_hand(lab: &Lab) -> Child {
    lab.as_worker(&login(), &["/home/worker/.local/bin/agentd", "serve"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nsenter runs")
}

#[tokio::test]
async fn sockets_that_were_stopped_by_hand_are_started_by_the_next_command_and_no_daemon_beside_the_service() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let (id, agent) = counting(&lab).await;
    lab.systemctl(&["stop", "agentd.socket", "agentd.service"]);
    lab.agentctl(&["ls"]);
    the_service_runs(&lab, &id, &agent);
    assert_eq!(daemons(&lab).len(), 1);
    counted_to_the_end(&lab, &id).await;
}

#[tokio::test]
async fn a_service_that_failed_until_its_socket_failed_too_is_started_by_the_next_command() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let (id, agent) = counting(&lab).await;
    // A drop-in has a mistake, and the start limits are those of older units.
    let drop_in = "/home/worker/.config/systemd/user/agentd.service.d/typo.conf";
    lab.write(drop_in, &format!("{OLD_LIMITS}ExecStart=\nExecStart=/home/worker/.local/bin/agentd serv\n"));
    lab.systemctl(&["daemon-reload"]);
    let _ = lab.try_worker(&["systemctl", "--user", "restart", "agentd.service"]);
    let _ = lab.try_worker(&["agentctl", "--no-start", "ls"]);
    until("the socket has failed too", || property(&lab, "agentd.socket", "ActiveState") == "failed").await;
    // While the mistake exists, the command names the failed unit and starts no daemon.
    let refused = lab.try_worker(&["agentctl", "ls"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    assert!(said.contains("agentd.service fails at each start"), "the unit is not named: {said}");
    assert_eq!(daemons(&lab), Vec::<String>::new());

    lab.write(drop_in, OLD_LIMITS);
    lab.systemctl(&["daemon-reload"]);
    lab.agentctl(&["ls"]);
    the_service_runs(&lab, &id, &agent);
    assert_eq!(daemons(&lab).len(), 1);
    counted_to_the_end(&lab, &id).await;
}

#[tokio::test]
async fn under_the_template_no_command_of_the_users_starts_a_daemon_and_what_it_says_repairs_it() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    lab.administer();
    let (id, agent) = counting(&lab).await;
    for fails in [false, true] {
        lab.root(&["systemctl", "stop", "agentd@worker.socket", "agentd@worker.service"]);
        let drop_in = lab.path("/etc/systemd/system/agentd@.service.d/typo.conf");
        if fails {
            let typo = format!("{OLD_LIMITS}ExecStart=\nExecStart=/usr/local/bin/agentd serv\n");
            std::fs::create_dir_all(drop_in.parent().expect("it is in a directory")).expect("root may");
            std::fs::write(&drop_in, typo).expect("root may");
            lab.root(&["systemctl", "daemon-reload"]);
            lab.root(&[
                "sh",
                "-c",
                "systemctl start agentd@worker.socket; systemctl start agentd@worker.service || true",
            ]);
            let failed = || lab.try_worker(&["systemctl", "is-failed", "agentd@worker.socket"]).status.success();
            let _ = lab.try_worker(&["agentctl", "--no-start", "ls"]);
            until("the socket has failed too", failed).await;
            std::fs::remove_file(&drop_in).expect("root may");
            lab.root(&["systemctl", "daemon-reload"]);
        }
        let refused = lab.try_worker(&["agentctl", "ls"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!((refused.status.code(), daemons(&lab)), (Some(3), Vec::new()), "{refused:?}");
        // Runs the printed command as root, unchanged.
        let command = said.lines().find_map(|line| line.trim().strip_prefix("hint: as root: ")).unwrap_or_default();
        assert!(command.starts_with("systemctl "), "no command for the administrator: {said}");
        lab.root(&["sh", "-c", command]);
        session_lives_on(&lab, &id, &agent);
        assert_eq!(lab.root(&["systemctl", "is-active", "agentd@worker.service"]), "active\n");
    }
    assert_eq!(daemons(&lab).len(), 1);
    counted_to_the_end(&lab, &id).await;
}

#[tokio::test]
async fn a_service_takes_over_from_a_stray_daemon_and_one_that_is_started_by_hand_is_refused_with_the_holders_pid() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    lab.systemctl(&["stop", "agentd.socket", "agentd.service"]);
    let mut stray = daemon_by_hand(&lab);
    let socket = "/run/user/4711/agentd/control.sock";
    until("the stray daemon answers", || lab.try_worker(&["agentctl", "--no-start", "ls"]).status.success()).await;
    let (id, agent) = counting(&lab).await;
    let pid = daemons(&lab).join(" ");

    // A second daemon that a user starts does not take the state from the first.
    let second = lab.try_worker(&["/home/worker/.local/bin/agentd", "serve", "--runtime-dir", "/home/worker/run"]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains(&format!("pid {pid}")), "the holder is not named: {said}");
    assert!(said.contains(&format!("kill {pid}")), "nothing to type: {said}");
    assert!(stray.try_wait().expect("it can be waited for").is_none());

    lab.systemctl(&["start", "agentd.socket"]);
    the_service_runs(&lab, &id, &agent);
    until("the stray daemon has ended", || stray.try_wait().expect("it can be waited for").is_some()).await;
    assert_eq!(property(&lab, "agentd.service", "NRestarts"), "0", "it looped on the lock");
    assert!(lab.path(socket).exists(), "the stray daemon took the service's socket with it");
    counted_to_the_end(&lab, &id).await;

    // A daemon beside the service is refused too, with the unit's name.
    let second = lab.try_worker(&["/home/worker/.local/bin/agentd", "serve", "--runtime-dir", "/home/worker/run"]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("agentd.service"), "the unit is not named: {said}");
}

/// Starts a client that follows a session, with its output in pipes.
fn follower(lab: &Lab, id: &SessionId) -> Child {
    lab.as_worker(&login(), &["agentctl", "events", id.as_str(), "--last", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nsenter runs")
}

/// Kills the daemon after the removal of its socket's file. No request then starts its unit, and the unit does not
/// restart it.
fn crash_with_the_socket(lab: &Lab, ask: impl Fn(&[&str]) -> String, unit: &str, socket: &str) {
    let kill = |signal: &str| ask(&["kill", "-s", signal, "--kill-who", "main", unit]);
    kill("STOP");
    lab.root(&["rm", socket]);
    kill("KILL");
}

const NO_RESTART: &str = "[Service]\nRestart=no\n";

#[tokio::test]
async fn a_client_that_follows_has_the_manager_start_the_service_again_and_starts_no_daemon_beside_it() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    lab.write("/home/worker/.config/systemd/user/agentd.service.d/no-restart.conf", NO_RESTART);
    lab.systemctl(&["daemon-reload"]);
    let (id, agent) = counting(&lab).await;
    let mut follower = follower(&lab, &id);
    let mut first = [0; 1];
    std::io::Read::read_exact(follower.stdout.as_mut().expect("it is a pipe"), &mut first).expect("it follows");
    let socket = "/run/user/4711/agentd/control.sock";
    let killed = daemons(&lab);
    crash_with_the_socket(&lab, |words| lab.systemctl(words), "agentd.service", socket);
    // The killed daemon may need some time to exit.
    until("another daemon runs", || daemons(&lab).iter().any(|pid| !killed.contains(pid))).await;
    lab.agentctl(&["--no-start", "version"]);
    the_service_runs(&lab, &id, &agent);
    assert_eq!(daemons(&lab).len(), 1);
    assert!(follower.try_wait().expect("it can be waited for").is_none(), "the client goes on");
    follower.kill().expect("it runs");
    follower.wait().expect("it was killed");
    counted_to_the_end(&lab, &id).await;
}

#[tokio::test]
async fn under_the_template_a_client_that_follows_starts_nothing_and_ends_with_what_the_administrator_is_to_type() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    lab.administer();
    lab.write_as_root("/etc/systemd/system/agentd@.service.d/no-restart.conf", NO_RESTART);
    lab.root(&["systemctl", "daemon-reload"]);
    let (id, agent) = counting(&lab).await;
    let mut follower = follower(&lab, &id);
    let mut first = [0; 1];
    std::io::Read::read_exact(follower.stdout.as_mut().expect("it is a pipe"), &mut first).expect("it follows");
    let ask = |words: &[&str]| lab.root(&[&["systemctl"], words].concat());
    let socket = "/run/agentd/worker/control.sock";
    crash_with_the_socket(&lab, ask, "agentd@worker.service", socket);
    let ended = tokio::task::spawn_blocking(|| follower.wait_with_output()).await.expect("no panic").expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!((ended.status.code(), daemons(&lab)), (Some(3), Vec::new()), "{said}");
    let command = said.lines().find_map(|line| line.trim().strip_prefix("hint: as root: ")).unwrap_or_default();
    assert!(command.starts_with("systemctl "), "no command for the administrator: {said}");
    lab.root(&["sh", "-c", command]);
    session_lives_on(&lab, &id, &agent);

    // Only the socket's file is removed. Without the file, `agentctl` would look for a daemon of the user's own, but
    // finds the template's daemon again.
    lab.root(&["rm", socket]);
    lab.agentctl(&["ls"]);
    session_lives_on(&lab, &id, &agent);
}

#[tokio::test]
async fn a_unit_that_systemd_refuses_and_a_user_without_a_name_are_no_failures_of_another_kind() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    lab.systemctl(&["stop", "agentd.socket", "agentd.service"]);
    lab.write("/home/worker/.config/systemd/user/agentd.socket.d/typo.conf", "[Socket]\nListenStream=\n");
    lab.systemctl(&["daemon-reload"]);
    let refused = lab.try_worker(&["agentctl", "ls"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.code(), daemons(&lab)), (Some(3), Vec::new()), "{said}");
    assert!(said.contains("  hint: "), "no remedy: {said}");

    // The user database does not know this user, as in many containers.
    lab.root(&["sh", "-c", "cp /home/worker/.local/bin/agent* /opt/ && mkdir -m 700 /tmp/h && chown 60123 /tmp/h"]);
    let words = ["setpriv", "--reuid", "60123", "--regid", "60123", "--clear-groups", "/opt/agentctl", "ls"];
    let mut command = lab.command(words);
    let listed = command.env("HOME", "/tmp/h").output().expect("nsenter runs");
    assert!(listed.status.success(), "{listed:?}");
    let words = ["setpriv", "--reuid", "60123", "--regid", "60123", "--clear-groups", "/opt/agentctl", "doctor"];
    let doctor = lab.command(words).env("HOME", "/tmp/h").output().expect("nsenter runs");
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("socket "), "{doctor:?}");
}
