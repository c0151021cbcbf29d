//! Kills of the daemon and the keeper around the end of a batch session: the result is as without the kill.

use std::fs;
use std::process::Command;

use agentd_api::Body;
use agentd_api::completion::Outcome;
use agentd_api::session::{Phase, SessionSpec};
use serde_json::json;

use super::{batch, result};
use crate::faults::{passed, set};
use crate::harness::{Daemon, Session, paths, process};

fn points() -> Vec<String> {
    let output = Command::new(paths::agentd()).arg("fault-points").output().unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    names.lines().filter(|name| name.starts_with("daemon.complete.")).map(str::to_owned).collect()
}

async fn prepared() -> Daemon {
    let mut daemon = Daemon::prepare();
    fs::create_dir_all(daemon.state().join("faults")).unwrap();
    daemon.run().await;
    daemon
}

fn completions(session: &Session) -> usize {
    session.journal().iter().filter(|event| matches!(event.body, Body::SessionCompleted(_))).count()
}

#[tokio::test]
async fn a_daemon_that_is_killed_in_the_last_turn_or_behind_it_gives_the_same_result() {
    let points = points();
    assert_eq!(points.len(), 2, "{points:?}");
    let others = ["daemon.stop.before", "keeper.stop.before", "keeper.end.recorded"];
    for point in points.iter().map(String::as_str).chain(others) {
        let mut daemon = prepared().await;
        set(&daemon.state().join("faults").join(point), "pause");
        let schema = Some(json!({ "type": "object" }));
        let spec = SessionSpec { answer_schema: schema, ..batch(&daemon, "say {\"ok\":1}") };
        let session = daemon.create(&spec).await;
        let hit = passed(&daemon, point).await;
        daemon.kill9();
        fs::remove_file(hit).unwrap();
        daemon.run().await;
        let (view, done) = result(&session).await;
        assert_eq!((done.outcome, view.status.phase), (Outcome::Completed, Phase::Completed), "{point}: {done:#?}");
        assert_eq!(done.structured, Some(json!({ "ok": 1 })), "{point}");
        assert_eq!(completions(&session), 1, "{point}");
    }
    // In the turn itself: the agent continues, and the next daemon completes the session.
    let mut daemon = prepared().await;
    let session = daemon.create(&batch(&daemon, "count 100 10\ndo true\nsay end")).await;
    session.wait_for_phase(Phase::Busy).await;
    daemon.kill9();
    daemon.run().await;
    let (view, done) = result(&session).await;
    assert_eq!((done.outcome, done.answer.as_deref()), (Outcome::Completed, Some("end")), "{done:#?}");
    assert_eq!(view.status.completed_at, Some(done.completed_at));
}

#[tokio::test]
async fn a_keeper_that_is_killed_before_the_stop_leaves_no_session_in_stopping() {
    for interactive in [false, true] {
        let daemon = prepared().await;
        set(&daemon.state().join("faults").join("daemon.stop.before"), "pause");
        let spec = SessionSpec { interactive, ..batch(&daemon, "say end") };
        let session = daemon.create(&spec).await;
        if interactive {
            session.wait_for("its turn is done", |view| view.status.idle_since.is_some()).await;
            // The daemon may be paused at the point before it has answered.
            let (client, path) = (daemon.client.clone(), session.path("/stop"));
            tokio::spawn(async move { client.attempt("POST", &path, "", None).await });
        }
        let hit = passed(&daemon, "daemon.stop.before").await;
        let keeper = journalled_keeper(&session);
        process::kill9(keeper);
        fs::remove_file(hit).unwrap();
        // No request wakes the session's driver meanwhile: the test waits for an event.
        let wanted = if interactive { Phase::Stopped } else { Phase::Completed };
        session.wait_for_phase(wanted).await;
    }
}

/// Returns the keeper's pid. A daemon that is paused at a point answers no request.
fn journalled_keeper(session: &Session) -> u32 {
    let of = |body: &Body| if let Body::KeeperStarted(keeper) = body { Some(keeper.pid) } else { None };
    session.journal().iter().find_map(|event| of(&event.body)).expect("it has a keeper")
}

#[tokio::test]
async fn an_agent_that_is_gone_after_its_answer_has_done_its_work() {
    let daemon = prepared().await;
    set(&daemon.state().join("faults").join("daemon.stop.before"), "pause");
    let session = daemon.create(&batch(&daemon, "say end")).await;
    let hit = passed(&daemon, "daemon.stop.before").await;
    let of = |body: &Body| if let Body::AgentStarted(agent) = body { Some(agent.pid) } else { None };
    process::kill9(session.journal().iter().find_map(|event| of(&event.body)).expect("it has an agent"));
    fs::remove_file(hit).unwrap();
    let (_, done) = result(&session).await;
    assert_eq!((done.outcome, done.agent_signal), (Outcome::Completed, Some(9)), "{done:#?}");
}
