//! Sessions that are not interactive: they complete when their prompts are done.

mod command;
mod kills;
mod limits;
mod schema;
mod uses;
mod waiting;

use std::fs;
use std::sync::Arc;

use agentd_api::completion::{Completion, Outcome};
use agentd_api::session::{Phase, SessionSpec, SessionView};
use agentd_api::spec::Workspace;
use agentd_api::{Body, Code};
use serde_json::json;

use crate::harness::{Daemon, Session, process};

/// Builds the specification of a batch session with this prompt.
pub(super) fn batch(daemon: &Daemon, prompt: &str) -> SessionSpec {
    SessionSpec { interactive: false, initial_prompt: Some(prompt.to_owned()), ..daemon.scripted(&[]) }
}

/// Waits for the session's result.
pub(super) async fn result(session: &Session) -> (SessionView, Arc<Completion>) {
    let view = session.wait_for("its result", |view| view.status.completion.is_some()).await;
    let done = view.status.completion.clone().unwrap();
    assert!(view.status.phase.is_over(), "{view:#?}");
    assert_eq!(done.exit_status, done.outcome.exit_status());
    (view, done)
}

/// Creates a batch session and waits for its result.
pub(super) async fn run(daemon: &Daemon, spec: &SessionSpec) -> (Session, SessionView, Arc<Completion>) {
    let session = daemon.create(spec).await;
    let (view, done) = result(&session).await;
    (session, view, done)
}

#[tokio::test]
async fn a_batch_session_completes_with_its_answer_its_cost_and_its_artifacts() {
    let daemon = Daemon::start().await;
    let prompt = "say I look at it\n\
                  do cd artifacts; printf a > a.txt; mkdir d; printf b > d/b; ln -s /etc/passwd link\n\
                  cost 0.25 USD\ntokens 7\nsay the answer";
    let spec = SessionSpec { workspace: Some(Workspace::New), directory: "".into(), ..batch(&daemon, prompt) };
    let (session, view, done) = run(&daemon, &spec).await;
    assert_eq!((view.status.phase, done.outcome, done.exit_status), (Phase::Completed, Outcome::Completed, 0));
    assert_eq!(done.answer.as_deref(), Some("the answer"), "{done:#?}");
    assert!(!done.answer_cut && done.structured.is_none());
    assert_eq!(done.cost.as_ref().map(ToString::to_string).as_deref(), Some("0.25 USD"));
    assert_eq!((done.usage.total_tokens, done.usage.context_size), (Some(7), Some(100)));
    let artifacts: Vec<_> = done.artifacts.iter().map(|file| (file.path.as_str(), file.size)).collect();
    assert_eq!((artifacts, &done.artifacts_cut), (vec![("a.txt", 1), ("d/b", 1)], &None));
    let digest = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
    assert_eq!(done.artifacts[0].sha256.as_deref(), Some(digest));
    assert!(view.status.ended_at.is_some() && view.status.agent_pid.is_none() && view.status.interactive);
    let ready = view.status.conditions.iter().find(|condition| format!("{:?}", condition.kind) == "Ready").unwrap();
    assert_eq!((ready.reason.as_str(), ready.message.as_str()), ("Completed", "the session has done its prompts"));
    let started = view.status.conditions.iter().find(|of| format!("{:?}", of.kind) == "AgentStarted").unwrap();
    assert_eq!(started.reason, "Completed");
    let records = session.journal();
    let count = |kind: &str| records.iter().filter(|event| event.body.kind() == kind).count();
    assert_eq!((count("session.completing"), count("session.completed"), count("agent.exited")), (1, 1, 1));
    assert!(process::of(daemon.root()).len() == 1, "only the daemon is left");
}

#[tokio::test]
async fn all_queued_prompts_are_done_first_and_the_last_answer_counts() {
    let daemon = Daemon::start().await;
    let session = daemon.create(&batch(&daemon, "count 20 5\nsay first")).await;
    session.prompt("say second").await;
    let (_, done) = result(&session).await;
    assert_eq!(
        (done.answer.as_deref(), done.turn.as_ref().map(agentd_api::TurnId::as_str)),
        (Some("second"), Some("t2"))
    );
    let ended = session.journal().iter().filter(|event| matches!(event.body, Body::TurnEnded(_))).count();
    assert_eq!(ended, 2);
    // A session without a prompt waits for its first one.
    let spec = SessionSpec { initial_prompt: None, ..batch(&daemon, "") };
    let session = daemon.session(&spec).await;
    assert!(!session.view().await.status.interactive);
    session.prompt("say only").await;
    assert_eq!(result(&session).await.1.answer.as_deref(), Some("only"));
}

#[tokio::test]
async fn a_failed_agent_turn_or_launch_is_a_failure_with_its_reason() {
    let daemon = Daemon::start().await;
    for (prompt, reason, status) in [
        ("exit 3", "the agent exited with status 3", Some(3)),
        ("error", "as you asked: an error", None),
        ("stop-reason refusal\nsay no", "the agent ended the turn with \"refusal\"", None),
    ] {
        let (_, view, done) = run(&daemon, &batch(&daemon, prompt)).await;
        assert_eq!((view.status.phase, done.outcome, done.exit_status), (Phase::Failed, Outcome::Failed, 1));
        assert!(done.reason.contains(reason), "{prompt}: {done:#?}");
        assert_eq!(view.status.message.as_deref(), Some(done.reason.as_str()));
        if status.is_some() {
            assert_eq!(done.agent_status, status, "{prompt}");
        }
        assert!(view.status.next_restart_at.is_none() && view.status.launches == 1, "it is not restarted");
    }
    // A failed turn drops the prompts behind it.
    let session = daemon.create(&batch(&daemon, "count 20 5\nerror")).await;
    session.prompt("say never").await;
    let (view, _) = result(&session).await;
    assert!(view.status.queue.is_empty());
    // A launch that fails before the first turn keeps its prompt, for a resume.
    let mut spec = batch(&daemon, "say later");
    let script = daemon.root().join("works");
    spec.env_setup = Some(format!("test -e '{}' || exit 3", script.display()));
    let (session, view, done) = run(&daemon, &spec).await;
    assert_eq!((view.status.phase, view.status.queue.len()), (Phase::Failed, 1), "{done:#?}");
    fs::write(script, "").unwrap();
    session.resume().await;
    session.wait_for("the prompt is done", |view| view.status.idle_since.is_some()).await;
}

#[tokio::test]
async fn a_stop_or_a_cancelled_turn_is_the_outcome_cancelled() {
    let daemon = Daemon::start().await;
    for path in ["/stop", "/cancel"] {
        let session = daemon.create(&batch(&daemon, "say begun\nhang")).await;
        session.wait_for_phase(Phase::Busy).await;
        session.post(path, &json!({})).await;
        let (view, done) = result(&session).await;
        assert_eq!((done.outcome, done.exit_status, view.status.phase), (Outcome::Cancelled, 130, Phase::Stopped));
    }
}

#[tokio::test]
async fn a_completed_session_is_interactive_after_a_resume_or_a_prompt() {
    let daemon = Daemon::start().await;
    let (_, _, done) = run(&daemon, &batch(&daemon, "env")).await;
    assert!(done.answer.as_ref().unwrap().contains("\"AGENTD_INTERACTIVE\":\"false\""));
    for by_prompt in [false, true] {
        let (session, view, done) = run(&daemon, &batch(&daemon, "say done")).await;
        assert!(!view.spec.interactive && view.status.interactive, "the request stays, and the status is true");
        if !by_prompt {
            session.resume().await;
        }
        assert_eq!(session.turn("remember").await.text, "[\"say done\"]");
        let view = session.wait_for_phase(Phase::Idle).await;
        assert_eq!((view.status.launches, &view.status.completion), (2, &Some(done)), "the result is kept");
        assert!(session.turn("env").await.text.contains("\"AGENTD_INTERACTIVE\":\"true\""));
        assert_eq!(session.stop().await.status.phase, Phase::Stopped);
    }
}

#[tokio::test]
async fn interactive_is_changed_live() {
    let daemon = Daemon::start().await;
    let session = daemon.create(&batch(&daemon, "count 40 5")).await;
    session.wait_for_phase(Phase::Busy).await;
    let patch = |value: bool| json!({ "interactive": value });
    assert_eq!(daemon.client.patch(&session.path(""), &patch(true), None).await.status.as_u16(), 200);
    let view = session.wait_for("idle after its turn", |view| view.status.idle_since.is_some()).await;
    assert!(view.status.interactive && view.status.completion.is_none(), "{view:#?}");
    assert_eq!(daemon.client.patch(&session.path(""), &patch(false), None).await.status.as_u16(), 200);
    session.wait_for("not interactive", |view| !view.status.interactive).await;
    assert_eq!(session.view().await.status.phase, Phase::Idle, "it waits for a prompt");
    session.prompt("say last").await;
    assert_eq!(result(&session).await.1.answer.as_deref(), Some("last"));
}

#[tokio::test]
async fn what_makes_no_sense_in_a_batch_session_is_refused() {
    let daemon = Daemon::start().await;
    let base = serde_json::to_value(batch(&daemon, "say x")).unwrap();
    for (field, value) in [
        ("restart", json!("on-failure")),
        ("limits", json!({ "cost": "5" })),
        ("limits", json!({ "cost": { "amount": 0, "currency": "USD" } })),
        ("interactive", json!("no")),
    ] {
        let mut spec = base.clone();
        spec[field] = value;
        let problem = daemon.client.post("/v1/sessions", &spec).await.problem();
        assert!([Code::InvalidRequest, Code::MalformedRequest].contains(&problem.code), "{field}: {problem:?}");
        assert!(problem.hint.is_some(), "{problem:?}");
    }
}

#[tokio::test]
async fn an_agent_that_exits_before_its_first_prompt_fails() {
    let daemon = Daemon::start().await;
    let spec = SessionSpec { initial_prompt: None, ..batch(&daemon, "") };
    let session = daemon.session(&spec).await;
    let pid = session.view().await.status.agent_pid.unwrap();
    // Without a prompt that is done, the end of the agent is a failure.
    process::kill9(pid);
    let (view, done) = result(&session).await;
    assert_eq!((view.status.phase, done.agent_signal), (Phase::Failed, Some(9)), "{done:#?}");
}
