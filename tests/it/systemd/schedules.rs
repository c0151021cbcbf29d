//! Schedules under systemd: real timer units fire, start a daemon that does not run, and follow the schedules.

use jiff::Timestamp;
use serde_json::Value;

use crate::harness::lab::Lab;
use crate::harness::{require, until};

/// Returns the names of the timer units of schedules.
fn timers(lab: &Lab) -> Vec<String> {
    let listed = lab.systemctl(&["list-units", "--plain", "--no-legend", "--all", "agentd-schedule-*.timer"]);
    listed.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn show(lab: &Lab, name: &str) -> Value {
    lab.agentctl(&["schedule", "show", name])
}

fn is_active(lab: &Lab, unit: &str) -> bool {
    lab.try_worker(&["systemctl", "--user", "is-active", unit]).status.success()
}

const NEW: [&str; 5] = ["--agent", "scripted", "--dir", "/home/worker/project", "say hello"];

fn in_seconds(seconds: i64) -> String {
    Timestamp::from_second(Timestamp::now().as_second() + seconds).expect("it is a time").to_string()
}

#[tokio::test]
async fn a_timer_unit_fires_and_starts_a_daemon_that_does_not_run() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let at = in_seconds(8);
    lab.agentctl(&[&["schedule", "add", "once", "--at", &at], &NEW[..]].concat());
    until("systemd waits for the time", || show(&lab, "once")["timer"] == "systemd").await;
    let unit = timers(&lab);
    assert_eq!(unit.len(), 1, "{unit:?}");
    lab.systemctl(&["stop", "agentd.service"]);
    assert!(!is_active(&lab, "agentd.service") && is_active(&lab, "agentd.socket"));
    // Only the timer's request can start the service: nothing else connects to the socket.
    until("the timer starts agentd", || is_active(&lab, "agentd.service")).await;
    assert!(Timestamp::now() >= at.parse().expect("it is a time"), "agentd was started before the time");
    let is_over = || show(&lab, "once")["last"]["outcome"] == "succeeded";
    until("the run succeeds", is_over).await;
    let view = show(&lab, "once");
    assert_eq!(
        (view["history"].as_array().map(Vec::len), &view["last"]["due"]),
        (Some(1), &Value::from(at)),
        "{view:#}"
    );
    until("the timer of a schedule that is over is removed", || timers(&lab).is_empty()).await;
    assert_eq!(lab.agentctl(&["ls", "-a"])["sessions"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_calendar_has_one_timer_unit_whatever_happens_to_the_daemon() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let add = ["schedule", "add", "ticks", "--calendar", "*:*:0/3", "--timezone", "Europe/Berlin", "--history", "200"];
    lab.agentctl(&[&add[..], &NEW[..]].concat());
    let runs = || {
        let view = show(&lab, "ticks");
        let history = view["history"].as_array().cloned().unwrap_or_default();
        history.into_iter().filter(|run| run["outcome"] == "succeeded").collect::<Vec<_>>()
    };
    until("two runs have succeeded", || runs().len() >= 2).await;
    let requests = lab.journalctl(&["-o", "cat", "--grep", "agentd: schedule ticks"]);
    assert!(requests.contains("agentd: schedule ticks"), "the service of the timer did not run: {requests}");
    let before = timers(&lab);
    assert_eq!(before.len(), 1, "{before:?}");
    lab.systemctl(&["restart", "agentd.service"]);
    let seen = runs().len();
    until("runs continue after a restart", || runs().len() > seen).await;
    assert_eq!(timers(&lab), before, "the unit is the same");
    // A timer that was stopped by hand comes back with the next daemon.
    lab.systemctl(&["stop", &before[0]]);
    lab.systemctl(&["restart", "agentd.service"]);
    until("the timer is back", || timers(&lab) == before).await;

    let due: Vec<String> = show(&lab, "ticks")["history"]
        .as_array()
        .expect("it has runs")
        .iter()
        .map(|run| run["due"].to_string())
        .collect();
    let mut distinct = due.clone();
    distinct.dedup();
    assert_eq!(distinct, due, "no time has two runs");
    lab.worker(&["agentctl", "schedule", "rm", "ticks"]);
    until("the timer is removed with the schedule", || timers(&lab).is_empty()).await;
}
