//! A service whose configuration has a mistake. Sessions that run continue, and the daemon launches no new ones until
//! the mistake is corrected.

use super::doctor::{check, repair};
use super::recovery::{counted_to_the_end, counting, daemons, property, the_service_runs};
use crate::harness::lab::Lab;
use crate::harness::{require, until};

const CONFIG: &str = "/home/worker/.config/agentd/agentd.toml";
const SERVICE: &str = "agentd.service";

/// Asserts that the service runs and serves the session, and that neither unit has failed.
fn nothing_failed(lab: &Lab) {
    for unit in [SERVICE, "agentd.socket"] {
        assert_eq!(property(lab, unit, "Result"), "success", "{unit}");
    }
    assert_eq!(daemons(lab), [property(lab, SERVICE, "MainPID")]);
}

#[tokio::test]
async fn a_service_starts_under_a_mistake_serves_what_runs_refuses_launches_and_recovers_on_reload() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let (id, agent) = counting(&lab).await;
    let right = std::fs::read_to_string(lab.path(CONFIG)).expect("it is there");
    let wrong = format!("{}\n[limits]\nlaunchs = 3\n", right.trim_end());
    lab.write(CONFIG, &wrong);
    let place = format!("{CONFIG}:{}:1: limits.launchs", wrong.lines().count());

    // A user's command, the manager after a crash, and a connection to the socket each start the service.
    lab.systemctl(&["restart", SERVICE]);
    the_service_runs(&lab, &id, &agent);
    let pid = property(&lab, SERVICE, "MainPID");
    lab.systemctl(&["kill", "-s", "KILL", "--kill-who", "main", SERVICE]);
    until("the manager has started it again", || {
        property(&lab, SERVICE, "ActiveState") == "active" && property(&lab, SERVICE, "MainPID") != pid
    })
    .await;
    the_service_runs(&lab, &id, &agent);
    lab.systemctl(&["stop", SERVICE]);
    lab.agentctl(&["--no-start", "ls"]);
    the_service_runs(&lab, &id, &agent);
    nothing_failed(&lab);

    let status = property(&lab, SERVICE, "StatusText");
    assert!(status.contains("agentd.toml"), "the status line does not name the file: {status}");
    let refused =
        lab.try_worker(&["agentctl", "--json", "new", "--agent", "scripted", "--dir", "/home/worker/project"]);
    assert!(!refused.status.success(), "{refused:?}");
    let problem: serde_json::Value = serde_json::from_slice(&refused.stdout).expect("the daemon's document");
    assert_eq!(problem["code"], "configuration-invalid", "{problem:#}");
    assert!(problem["detail"].to_string().contains(&place), "{problem:#}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains(&place), "a person reads it too: {refused:?}");

    // Doctor names the mistake. After its correction, the printed commands repair the service.
    let found = check(&lab, false, "configuration");
    assert!(found["outcome"] == "fail" && found["summary"].to_string().contains(&place), "{found:#}");
    lab.write(CONFIG, &right);
    repair(&lab, &found);
    assert_eq!(check(&lab, false, "configuration")["outcome"], "pass");
    the_service_runs(&lab, &id, &agent);
    nothing_failed(&lab);
    let status = || property(&lab, SERVICE, "StatusText");
    until("the status line names the file no more", || !status().contains("agentd.toml")).await;
    lab.session();
    counted_to_the_end(&lab, &id).await;
}
