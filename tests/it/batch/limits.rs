//! The limits of a turn, of a session's active time and of its cost.

use agentd_api::completion::Outcome;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionSpec, SessionView};
use serde_json::json;

use super::{batch, result, run};
use crate::harness::{Daemon, Session};

fn limits_checked(view: &SessionView) -> Option<&Condition> {
    view.status.conditions.iter().find(|condition| condition.kind == ConditionType::LimitsChecked)
}

#[tokio::test]
async fn a_turn_over_its_limit_is_cancelled_and_an_agent_that_ignores_that_is_ended() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config + "\n[limits]\ncancel = \"500ms\"\n");
    daemon.run().await;
    // The agent of the second prompt sees no cancel while its tool runs.
    for prompt in ["hang", "do sleep 600"] {
        let mut spec = batch(&daemon, prompt);
        spec.limits.turn_seconds = Some(1);
        let (_, view, done) = run(&daemon, &spec).await;
        assert_eq!((done.outcome, done.exit_status), (Outcome::Limit, 5), "{prompt}: {done:#?}");
        assert_eq!(view.status.phase, Phase::Failed);
        assert!(done.reason.contains("limits.turn"), "{done:#?}");
    }
}

#[tokio::test]
async fn a_session_over_its_active_time_is_ended_and_its_idle_time_does_not_count() {
    let mut daemon = Daemon::start().await;
    let mut spec = batch(&daemon, "hang");
    spec.limits.session_seconds = Some(2);
    let session = daemon.create(&spec).await;
    session.wait_for_phase(Phase::Busy).await;
    // The time is in the journal, and the next daemon continues it.
    daemon.kill9();
    daemon.run().await;
    let (view, done) = result(&session).await;
    assert_eq!((done.outcome, done.exit_status, view.status.phase), (Outcome::Limit, 5, Phase::Failed));
    assert!(done.reason.contains("limits.session_seconds"), "{done:#?}");
    assert!(view.status.active_seconds >= 2, "{view:#?}");
    // An interactive session has the same limit, and is stopped. A change takes effect at once.
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.prompt("hang").await;
    session.wait_for_phase(Phase::Busy).await;
    let patch = json!({ "limits": { "session_seconds": 1 } });
    assert_eq!(daemon.client.patch(&session.path(""), &patch, None).await.status.as_u16(), 200);
    let view = session.wait_for_phase(Phase::Stopped).await;
    assert!(view.status.completion.is_none(), "{view:#?}");
    let mut idle = daemon.scripted(&[]);
    idle.limits.session_seconds = Some(3600);
    let idle: Session = daemon.session(&idle).await;
    assert!(idle.view().await.status.active_seconds < 60);
}

#[tokio::test]
async fn a_session_over_its_cost_is_ended_and_a_cost_that_is_not_reported_is_said() {
    let daemon = Daemon::start().await;
    let limited = |prompt: &str| {
        let mut spec = batch(&daemon, prompt);
        spec.limits.cost = Some("1 USD".parse().unwrap());
        spec
    };
    let (_, view, done) = run(&daemon, &limited("cost 0.5 USD\ncost 1.5 USD\nhang")).await;
    assert_eq!((done.outcome, done.exit_status, view.status.phase), (Outcome::Limit, 5, Phase::Failed));
    assert!(done.reason.contains("the session cost 1.5 USD, and its limit is 1 USD"), "{done:#?}");
    assert_eq!(done.cost, view.status.cost);
    // Below the limit all is well.
    let (_, view, done) = run(&daemon, &limited("cost 0.5 USD\nsay cheap")).await;
    assert_eq!((done.outcome, limits_checked(&view)), (Outcome::Completed, None));
    for (prompt, reason) in [("say free", "CostUnknown"), ("cost 9 EUR\nsay dear", "CurrencyDiffers")] {
        let (_, view, done) = run(&daemon, &limited(prompt)).await;
        let condition = limits_checked(&view).expect("it is said");
        assert_eq!(done.outcome, Outcome::Completed, "it does not fail");
        assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, reason), "{condition:?}");
    }
    // A cost that is reported later clears the condition.
    let spec = SessionSpec { interactive: true, ..limited("say free") };
    let session = daemon.session(&spec).await;
    session.wait_for("it is said", |view| limits_checked(view).is_some()).await;
    session.turn("cost 0.5 USD").await;
    let is_true = |view: &SessionView| limits_checked(view).is_some_and(|of| of.status == ConditionStatus::True);
    session.wait_for("it is checked", is_true).await;
}
