//! The interface to a service manager, in a booted systemd (tests/systemd/lab): the watchdog, the status line, and
//! restarts that refuse no client.

use std::process::{Child, Stdio};
use std::sync::atomic::Ordering;

use agentd_api::SessionId;
use nix::sys::signal::Signal;

use crate::harness::lab::{Lab, login};
use crate::harness::requests::meanwhile;
use crate::harness::session::said;
use crate::harness::{require, until};

const STATE: &str = "/home/worker/.local/state/agentd";

/// Returns a property of the service from `systemctl show`.
fn property(lab: &Lab, name: &str) -> String {
    lab.systemctl(&["show", "--value", "-p", name, "agentd.service"]).trim().to_owned()
}

/// Returns a lab whose daemon has a watchdog of this number of seconds.
async fn watched(seconds: u32) -> Lab {
    let lab = Lab::boot().await;
    let drop_in = format!("[Service]\nWatchdogSec={seconds}s\n");
    lab.write("/home/worker/.config/systemd/user/agentd.service.d/watchdog.conf", &drop_in);
    // The daemon uses fault points only if this directory exists at its start.
    lab.write(&format!("{STATE}/faults/README"), "");
    lab.systemctl(&["daemon-reload"]);
    lab
}

/// An agentctl that runs in the background.
struct Asking(Child);

impl Asking {
    fn begin(lab: &Lab, arguments: &[&str]) -> Self {
        let mut command = lab.as_worker(&login(), &[&["agentctl"], arguments].concat());
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nsenter can be executed"))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn pid(lab: &Lab, id: &SessionId, which: &str) -> String {
    lab.agentctl(&["show", id.as_str()])["status"][which].to_string()
}

#[tokio::test]
async fn the_watchdog_ends_a_daemon_with_a_stuck_driver_which_the_log_names_before_and_the_sessions_live_on() {
    let Some(()) = require::systemd() else { return };
    let lab = watched(6).await;
    let (stuck, other) = (lab.session(), lab.session());
    let agents = [pid(&lab, &stuck, "agent_pid"), pid(&lab, &other, "agent_pid")];
    let before = property(&lab, "MainPID");
    lab.write(&format!("{STATE}/faults/daemon.apply.after"), "pause");
    let asking = Asking::begin(&lab, &["prompt", "--no-wait", stuck.as_str(), "say nothing"]);
    until("the driver is stuck", || lab.path(&format!("{STATE}/faults/daemon.apply.after.hit")).exists()).await;
    until("systemd has started it again", || property(&lab, "NRestarts") == "1").await;
    drop(asking);
    assert_ne!(property(&lab, "MainPID"), before);
    let named = lab.journalctl(&["_SYSTEMD_USER_UNIT=agentd.service", &format!("AGENTD_SESSION={stuck}")]);
    assert!(named.contains("has been in one step"), "{named}");
    assert!(lab.journalctl(&["-n", "400"]).contains("Watchdog timeout"));

    assert_eq!([pid(&lab, &stuck, "agent_pid"), pid(&lab, &other, "agent_pid")], agents);
    for id in [&stuck, &other] {
        lab.worker(&["agentctl", "prompt", id.as_str(), "say still here"]);
        assert!(lab.journal(id).iter().filter_map(said).any(|text| text == "still here"), "{id}");
        assert_eq!(lab.agentctl(&["show", id.as_str()])["status"]["launches"], 1);
    }
    assert_eq!(property(&lab, "NRestarts"), "1");
}

#[tokio::test]
async fn a_daemon_that_is_busy_or_waits_for_others_is_not_taken_for_stuck() {
    let Some(()) = require::systemd() else { return };
    let lab = watched(3).await;
    let config = "/home/worker/.config/agentd/agentd.toml";
    let text = std::fs::read_to_string(lab.path(config)).expect("it is there");
    let more = "[environment]\ndeadline = \"60s\"\n[plugins.command]\ngrant = { command = [\"/bin/sleep **\"] }\n\
        [prerequisites.hangs]\nplugin = \"command\"\ntime = \"50s\"\n\
        settings = { program = \"/bin/sleep\", arguments = [\"300\"], timeout = \"40s\" }\n\
        [prerequisites.away]\nplugin = \"tcp\"\nsettings = { host = \"127.0.0.1\", port = 9 }\n";
    lab.write(config, &format!("{text}\n{more}"));
    lab.write("/home/worker/slow.sh", "sleep 30\n");
    let sessions: Vec<SessionId> = (0..4).map(|_| lab.session()).collect();
    let before = property(&lab, "MainPID");
    let new = ["new", "--agent", "scripted", "--dir", "/home/worker/project"];
    let asking = [
        Asking::begin(&lab, &["prompt", sessions[0].as_str(), "count 3000 10"]),
        Asking::begin(&lab, &[&new[..], &["--env-setup", "/home/worker/slow.sh", "--ready", "60"]].concat()),
        Asking::begin(&lab, &[&new[..], &["--require", "hangs", "--ready", "60"]].concat()),
        Asking::begin(&lab, &[&new[..], &["--require", "away", "--wait", "--ready", "60"]].concat()),
    ];
    until("one waits for what it needs, and two are being prepared", || {
        let list = lab.agentctl(&["ls"]);
        let views = list["sessions"].as_array().expect("there are sessions");
        let at = |phase: &str| views.iter().filter(|view| view["status"]["phase"] == phase).count();
        assert_eq!(at("failed"), 0, "{list:#}");
        at("waiting") == 1 && at("preparing") == 2 && at("busy") == 1
    })
    .await;
    lab.worker(&["kill", "-STOP", &pid(&lab, &sessions[1], "agent_pid")]);
    lab.worker(&["kill", "-STOP", &pid(&lab, &sessions[2], "keeper_pid")]);
    let held = [
        Asking::begin(&lab, &["prompt", sessions[1].as_str(), "say nothing"]),
        Asking::begin(&lab, &["prompt", sessions[2].as_str(), "say nothing"]),
        Asking::begin(&lab, &["stop", sessions[2].as_str()]),
    ];
    let fed = || property(&lab, "WatchdogTimestampMonotonic").parse::<u64>().unwrap_or(0);
    let begun = fed();
    until("the watchdog was fed over five periods, or the daemon is another", || {
        property(&lab, "MainPID") != before || fed() > begun + 15_000_000
    })
    .await;
    assert_eq!((property(&lab, "MainPID"), property(&lab, "NRestarts").as_str()), (before, "0"));
    let log = lab.journalctl(&["_SYSTEMD_USER_UNIT=agentd.service"]);
    assert!(!log.contains("has been in one step"), "{log}");
    drop((asking, held));
    let phase = || lab.agentctl(&["show", sessions[2].as_str()])["status"]["phase"].clone();
    until("the stop has ended the keeper that hangs", || phase() == "stopped").await;
}

#[tokio::test]
async fn of_a_thousand_requests_none_is_refused_while_the_service_is_restarted_killed_and_replaced_in_mid_turn() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let id = lab.session();
    let agent = pid(&lab, &id, "agent_pid");
    lab.worker(&["agentctl", "prompt", "--no-wait", id.as_str(), "count 3000 10"]);
    lab.journal_shows(&id, "the agent counts", |journal| journal.matches("agent_message_chunk").count() >= 20).await;
    let (socket, path) = (lab.path("/run/user/4711/agentd/control.sock"), format!("/v1/sessions/{id}"));
    let in_order = meanwhile(&socket, &path, 1000, async {
        lab.systemctl(&["restart", "agentd.service"]);
        for program in ["agentd", "agentd-keeper", "agentctl"] {
            let (place, new) = (format!(".local/bin/{program}"), format!(".local/bin/{program}.new"));
            let (place, new) = (format!("/home/worker/{place}"), format!("/home/worker/{new}"));
            lab.worker(&["cp", &place, &new]);
            lab.worker(&["mv", &new, &place]);
        }
        lab.systemctl(&["restart", "agentd.service"]);
    })
    .await;
    assert!(in_order.answered.load(Ordering::Relaxed) >= 1000, "{in_order:?}");
    assert_eq!(in_order.broken.load(Ordering::Relaxed), 0, "a daemon that ends in order answers whoever it let in");
    let before = property(&lab, "MainPID");
    let killed = meanwhile(&socket, &path, 200, async {
        lab.systemctl(&["kill", "-s", Signal::SIGKILL.as_str(), "--kill-who", "main", "agentd.service"]);
        until("another daemon serves", || {
            property(&lab, "ActiveState") == "active" && property(&lab, "MainPID") != before
        })
        .await;
    })
    .await;
    assert!(killed.answered.load(Ordering::Relaxed) >= 200, "{killed:?}");
    lab.journal_shows(&id, "the turn ends", |journal| journal.contains("\"kind\":\"turn.ended\"")).await;
    let counted: Vec<u32> =
        lab.journal(&id).iter().filter_map(said).filter_map(|text| text.trim().parse().ok()).collect();
    assert_eq!(counted, (1..=3000).collect::<Vec<u32>>());
    assert_eq!(pid(&lab, &id, "agent_pid"), agent);
    assert_eq!(lab.agentctl(&["show", id.as_str()])["status"]["launches"], 1);
}

#[tokio::test]
async fn the_status_line_has_the_sessions_by_phase_and_a_drain_ends_their_units() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let ids = [lab.session(), lab.session()];
    lab.worker(&["agentctl", "stop", ids[0].as_str()]);
    until("the status line tells", || property(&lab, "StatusText") == "2 sessions: 1 idle, 1 stopped").await;
    let units = || lab.systemctl(&["list-units", "--plain", "--no-legend", "agentd-session-*"]);
    assert!(units().contains(ids[1].as_str()), "{}", units());
    lab.worker(&["agentctl", "drain"]);
    until("no session's unit is left", || units().is_empty()).await;
    until("the status line tells", || {
        property(&lab, "StatusText") == "2 sessions: 2 stopped; drained: nothing is launched"
    })
    .await;
    let refused = lab.try_worker(&["agentctl", "resume", ids[0].as_str()]);
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    // The next daemon launches again.
    lab.systemctl(&["restart", "agentd.service"]);
    lab.worker(&["agentctl", "resume", ids[0].as_str()]);
}
