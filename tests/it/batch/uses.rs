//! Batch sessions among the other parts: schedules, continuations, removal and attached clients.

use agentd_api::schedule::{RunOutcome, ScheduleView};
use agentd_api::session::{Phase, SessionSpec};
use serde_json::json;

use super::{batch, run};
use crate::harness::ctl::{agentctl, ctl, end_of};
use crate::harness::{Daemon, within};

#[tokio::test]
async fn the_result_of_a_scheduled_session_is_the_outcome_of_its_run() {
    let daemon = Daemon::start().await;
    for (name, prompt, outcome) in
        [("good", "say done", RunOutcome::Succeeded), ("bad", "say begun\nexit 3", RunOutcome::Failed)]
    {
        let spec = json!({ "name": name, "at": "2199-01-01T00:00:00Z", "session": batch(&daemon, prompt) });
        daemon.client.post("/v1/schedules", &spec).await.expect::<ScheduleView>(201);
        assert_eq!(daemon.client.call("POST", &format!("/v1/schedules/{name}/run"), "").await.status.as_u16(), 200);
        let last = within("the run is over", async {
            loop {
                let view: ScheduleView = daemon.client.get(&format!("/v1/schedules/{name}")).await.expect(200);
                if let Some(last) = view.last.filter(|last| !last.outcome.is_active()) {
                    return last;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        })
        .await;
        assert_eq!(last.outcome, outcome, "{last:?}");
        let view = daemon.client.view(last.session.unwrap().as_str()).await;
        assert!(view.status.completion.is_some(), "the run is over when the result is there");
        if outcome == RunOutcome::Failed {
            assert!(last.reason.unwrap().contains("status 3"));
        }
    }
}

#[tokio::test]
async fn a_completed_session_is_continued_by_another_and_pruned_by_its_phase() {
    let daemon = Daemon::start().await;
    let (session, ..) = run(&daemon, &batch(&daemon, "say done")).await;
    // The agent copies no conversation, so it must not be in use.
    let child = json!({ "parent": session.id, "interactive": false, "name": "child" });
    let view: agentd_api::session::SessionView = daemon.client.post("/v1/sessions", &child).await.expect(202);
    let words = ["attach", view.id.as_str()];
    daemon.client.wait_for(view.id.as_str(), "idle", |view| view.status.phase == Phase::Idle).await;
    let attached = agentctl(&daemon, &words).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let prompt = json!({ "prompt": "remember" });
    daemon.client.post(&format!("/v1/sessions/{}/prompt", view.id), &prompt).await;
    let done = daemon.client.wait_for("child", "its result", |view| view.status.completion.is_some()).await;
    assert_eq!(done.status.completion.unwrap().answer.as_deref(), Some("[\"say done\"]"));
    let said = end_of(attached).await;
    assert!(said.status == Some(0) && said.err.contains("the session has completed"), "{said:?}");
    daemon.session(&SessionSpec { name: Some("talk".parse().unwrap()), ..daemon.scripted(&[]) }).await;
    let said = ctl(&daemon, &["prune", "--phase", "completed", "--yes"]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    let (_, left, _) = ctl(&daemon, &["get", "-o", "name"]).await.parts();
    assert_eq!(left, "talk\n");
}
