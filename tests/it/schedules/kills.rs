//! Kills of the daemon at each step of a run: afterwards everything is as without the kill.
//!
//! The points are read from the binary, as in the fault matrix.

use std::fs;
use std::process::Command;
use std::time::Duration;

use agentd_api::schedule::RunOutcome;
use serde_json::json;

use super::{FAR, add, ended, in_seconds, session, sessions, view};
use crate::faults::set;
use crate::harness::session::said;
use crate::harness::{Daemon, paths, within};

fn points() -> Vec<String> {
    let output = Command::new(paths::agentd()).arg("fault-points").output().unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    names.lines().filter(|name| name.starts_with("daemon.schedule.")).map(str::to_owned).collect()
}

/// Waits until the point is passed, kills the daemon there, and starts it again.
async fn strike(daemon: &mut Daemon, point: &str) {
    let hit = daemon.state().join("faults").join(format!("{point}.hit"));
    within(point, async {
        while !hit.exists() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    daemon.kill9();
    fs::remove_file(&hit).unwrap();
    daemon.run().await;
}

async fn prepared(point: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    fs::create_dir_all(daemon.state().join("faults")).unwrap();
    daemon.run().await;
    set(&daemon.state().join("faults").join(point), "pause");
    daemon
}

#[tokio::test]
async fn a_daemon_that_is_killed_in_a_run_creates_one_session() {
    let mut points = points();
    assert_eq!(points.len(), 3, "{points:?}");
    points.push("daemon.create.journalled".to_owned());
    for point in &points {
        let mut daemon = prepared(point).await;
        let spec = json!({ "name": "once", "at": in_seconds(1), "session": session(&daemon, "say hello") });
        add(&daemon, &spec).await;
        strike(&mut daemon, point).await;
        let run = ended(&daemon.client, "once").await;
        assert_eq!(run.outcome, RunOutcome::Succeeded, "{point}: {run:?}");
        let made = sessions(&daemon.client).await;
        assert_eq!(made.len(), 1, "{point}: {made:#?}");
        assert_eq!((Some(&made[0].id), view(&daemon.client, "once").await.history.len()), (run.session.as_ref(), 1));
    }
}

#[tokio::test]
async fn a_daemon_that_is_killed_in_a_run_sends_one_prompt() {
    for point in points() {
        let mut daemon = prepared(&point).await;
        let target = daemon.session(&daemon.scripted(&[])).await;
        let prompt = json!({ "session": target.id, "text": "say hello" });
        add(&daemon, &json!({ "name": "prompts", "at": FAR, "prompt": prompt })).await;
        let client = daemon.client.clone();
        let asking =
            tokio::spawn(async move { client.attempt("POST", "/v1/schedules/prompts/run", "", Some("k")).await });
        strike(&mut daemon, &point).await;
        let _ = asking.await.unwrap();
        // The client repeats the request that had no answer.
        let again = daemon.client.attempt("POST", "/v1/schedules/prompts/run", "", Some("k")).await;
        assert!(again.is_some_and(|answer| answer.status == 200), "{point}");
        let run = ended(&daemon.client, "prompts").await;
        assert_eq!(run.outcome, RunOutcome::Succeeded, "{point}: {run:?}");
        assert_eq!(view(&daemon.client, "prompts").await.history.len(), 1, "{point}");
        let told = target.journal().iter().filter_map(said).filter(|text| text == "hello").count();
        assert_eq!(told, 1, "{point}");
    }
}
