//! A session from its creation to its deletion, and what is refused on the way.

use agentd_api::event::{Body, LaunchReason};
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionView, WholeList};
use agentd_api::{Code, Event};

use crate::harness::{Daemon, session};

#[tokio::test]
async fn a_session_is_created_prompted_stopped_resumed_and_deleted() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;

    let turn = session.turn("say hello\ncwd").await;
    assert_eq!(turn.text, format!("hello{}", daemon.work().display()));
    assert_eq!(turn.ended.stop_reason.as_deref(), Some("end_turn"));

    let view = session.wait_for_phase(Phase::Idle).await;
    assert_eq!(view.status.agent.as_ref().map(|agent| agent.name.as_str()), Some("scripted"));
    assert_eq!(view.status.launches, 1);
    let view = session.stop().await;
    assert_eq!((view.status.agent_pid, view.status.keeper_pid), (None, None));

    let view = session.resume().await;
    assert_eq!(view.status.launches, 2);
    let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    assert_eq!(list.sessions.iter().map(|view| &view.id).collect::<Vec<_>>(), [&session.id]);

    session.stop().await;
    session.journal();
    assert_eq!(daemon.client.call("DELETE", &session.path(""), "").await.status, 204);
    assert_eq!(daemon.client.get(&session.path("")).await.problem().code, Code::NoSuchSession);
    assert!(!session.directory().exists(), "its files are still there");
}

#[tokio::test]
async fn each_step_of_a_launch_is_a_condition_of_the_session_and_a_record_of_its_journal() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let steps = [ConditionType::EnvironmentReady, ConditionType::AgentStarted, ConditionType::ConversationReady];
    let view = session.view().await;
    let events = session.journal();
    let mut place = 0;
    for step in steps {
        let condition = view.status.conditions.iter().find(|condition| condition.kind == step);
        let condition = condition.unwrap_or_else(|| panic!("no condition {step:?}: {view:#?}"));
        assert_eq!(condition.status, ConditionStatus::True, "{condition:?}");
        let is_step = |event: &Event| match &event.body {
            Body::Condition(condition) => condition.kind == step && condition.status == ConditionStatus::True,
            _ => false,
        };
        let found = events[place..].iter().position(is_step);
        place += found.unwrap_or_else(|| panic!("no record of {step:?}, or not in this order"));
    }
    assert!(matches!(events[0].body, Body::SessionCreated(_)), "{:?}", events[0]);
    let launch = events.iter().find_map(|event| match &event.body {
        Body::LaunchStarted(started) => Some((started.launch, started.reason)),
        _ => None,
    });
    assert_eq!(launch, Some((1, LaunchReason::Create)));
}

#[tokio::test]
async fn wait_answers_when_the_session_is_ready() {
    let daemon = Daemon::start().await;
    let response = daemon.client.post("/v1/sessions?wait=60", &daemon.scripted(&["--slow-init", "300"])).await;
    let view: SessionView = response.expect(202);
    assert_eq!(view.status.phase, Phase::Idle, "{view:#?}");
    assert_eq!(response.location.as_deref(), Some(format!("/v1/sessions/{}", view.id).as_str()));
}

#[tokio::test]
async fn a_name_stands_for_its_session_and_is_given_once() {
    let daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&[]);
    spec.name = Some("my-session".parse().unwrap());
    let session = daemon.session(&spec).await;
    assert_eq!(daemon.client.view("my-session").await.id, session.id);
    let problem = daemon.client.post("/v1/sessions", &spec).await.problem();
    assert_eq!(problem.code, Code::NameTaken, "{problem:?}");
    let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    assert_eq!(list.sessions.len(), 1, "a refused session was created");
}

#[tokio::test]
async fn an_active_session_is_deleted_by_force_only() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let agent = session.view().await.status.agent_pid.unwrap();
    let problem = daemon.client.call("DELETE", &session.path(""), "").await.problem();
    assert_eq!(problem.code, Code::WrongPhase, "{problem:?}");
    assert!(crate::harness::process::is_alive(agent), "a refused delete ended the agent");
    assert_eq!(daemon.client.call("DELETE", &session.path("?force=true"), "").await.status, 204);
    crate::harness::process::gone(&[agent]).await;
    assert_eq!(daemon.client.get(&session.path("")).await.problem().code, Code::NoSuchSession);
}

#[tokio::test]
async fn what_the_phase_does_not_allow_is_refused_and_changes_nothing() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let before = session.view().await;
    for path in ["/resume", "/cancel"] {
        let problem = daemon.client.call("POST", &session.path(path), "").await.problem();
        assert_eq!(problem.code, Code::WrongPhase, "{path}: {problem:?}");
    }
    assert_eq!(session.view().await, before);
    session.stop().await;
    let before = session.view().await;
    let problem = session.post("/prompt", &serde_json::json!({ "prompt": "say hello" })).await.problem();
    assert_eq!(problem.code, Code::WrongPhase, "{problem:?}");
    assert_eq!(session.view().await, before);
}

#[tokio::test]
async fn an_agent_that_cannot_be_executed_fails_the_launch_and_says_so() {
    let daemon = Daemon::start().await;
    let session = daemon.create(&session::spec(daemon.work(), vec!["/no/such/agent".to_owned()])).await;
    let is_the_reason = |c: &Condition| c.kind == ConditionType::AgentStarted && c.status == ConditionStatus::False;
    let failed = |view: &SessionView| view.status.conditions.iter().any(is_the_reason);
    let view = session.wait_for("the condition AgentStarted is False", failed).await;
    assert_eq!(view.status.phase, Phase::Failed);
    let message = view.status.message.clone().unwrap_or_default();
    assert!(message.contains("/no/such/agent"), "{view:#?}");
    let exec_error = session.journal().into_iter().find_map(|event| match event.body {
        Body::AgentExited(exited) => exited.exec_error,
        _ => None,
    });
    assert!(exec_error.is_some_and(|error| error.contains("No such file")), "the journal does not say why");
}

#[tokio::test]
async fn an_agent_that_ends_before_it_introduces_itself_fails_the_launch() {
    let daemon = Daemon::start().await;
    let session = daemon.create(&session::spec(daemon.work(), vec!["/bin/false".to_owned()])).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    assert!(view.status.message.is_some(), "{view:#?}");
    let exited = session.journal().into_iter().find_map(|event| match event.body {
        Body::AgentExited(exited) => Some(exited.status),
        _ => None,
    });
    assert_eq!(exited, Some(Some(1)));
}
