//! Limits on a session's resources and time, and restarts of an agent that crashes.

use agentd_api::event::{AnsweredBy, Body, LaunchReason, PermissionOutcome};
use agentd_api::session::{ConditionType, PermissionPolicy, Phase, RestartPolicy, SessionSpec};

use nix::sys::signal::{Signal, kill};

use crate::harness::{Daemon, Session, process, until};

/// Starts a daemon with these changes to its configuration.
async fn daemon_with(changes: &[(&str, &str)], more: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        let config = changes.iter().fold(config, |config, (old, new)| {
            assert!(config.contains(old), "the configuration has no {old:?}");
            config.replace(old, new)
        });
        format!("{config}\n{more}")
    });
    daemon.run().await;
    daemon
}

/// Starts a daemon that restarts crashed agents almost at once.
async fn restarting() -> Daemon {
    let quick = "restart = \"on-failure\"\nrestart_first = \"10ms\"\nrestart_longest = \"20ms\"";
    daemon_with(&[("restart = \"never\"", quick)], "").await
}

fn launches(session: &Session, wanted: LaunchReason) -> usize {
    let is = |event: &&agentd_api::Event| matches!(&event.body, Body::LaunchStarted(launch) if launch.reason == wanted);
    session.journal().iter().filter(is).count()
}

#[tokio::test]
async fn a_crashed_agent_is_started_again_and_knows_its_conversation() {
    let daemon = restarting().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say before").await;
    let pid = session.view().await.status.agent_pid.unwrap();
    process::kill9(pid);
    let view = session
        .wait_for("another agent is ready", |view| {
            view.status.phase == Phase::Idle && view.status.agent_pid.is_some_and(|new| new != pid)
        })
        .await;
    assert_eq!(view.status.launches, 2);
    assert!(session.turn("remember").await.text.contains("say before"));
    assert_eq!(launches(&session, LaunchReason::Restart), 1);
}

#[tokio::test]
async fn an_agent_that_crashes_again_and_again_is_parked_until_somebody_resumes_it() {
    let daemon = restarting().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    // Each prompt kills the agent that gets it. Each launch gets one prompt, and no prompt is sent twice.
    let mut killed = 0;
    loop {
        let view = session
            .wait_for("ready or parked", |view| {
                let parked = view.status.conditions.iter().any(|condition| condition.reason == "Parked");
                view.status.phase == Phase::Idle || (view.status.phase == Phase::Failed && parked)
            })
            .await;
        if view.status.phase == Phase::Failed {
            break;
        }
        let accepted = session.prompt("die").await;
        assert!(session.end_of(&accepted).await.ended.synthetic.is_some());
        killed += 1;
    }
    assert_eq!(killed, 6, "the first and five restarts");
    assert_eq!(launches(&session, LaunchReason::Restart), 5);
    session.resume().await;
    assert!(session.turn("say back").await.text.contains("back"));
}

#[tokio::test]
async fn an_agent_that_never_got_as_far_as_a_conversation_is_not_started_again() {
    let daemon = restarting().await;
    let spec = SessionSpec { command: Some(vec!["/bin/false".to_owned()]), ..SessionSpec::new(daemon.work()) };
    let session = daemon.create(&spec).await;
    session.wait_for_phase(Phase::Failed).await;
    // Another session goes through its whole start meanwhile.
    daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(launches(&session, LaunchReason::Restart), 0);
}

#[tokio::test]
async fn a_session_can_say_that_its_agent_is_not_to_be_started_again() {
    let daemon = restarting().await;
    let spec = SessionSpec { restart: Some(RestartPolicy::Never), ..daemon.scripted(&[]) };
    let session = daemon.session(&spec).await;
    process::kill9(session.view().await.status.agent_pid.unwrap());
    let view = session.wait_for_phase(Phase::Failed).await;
    let started = view.status.conditions.iter().find(|condition| condition.kind == ConditionType::AgentStarted);
    assert_eq!(started.map(|condition| condition.reason.as_str()), Some("AgentExited"));
}

#[tokio::test]
async fn a_session_without_work_is_stopped_when_its_time_is_over_and_not_while_it_works() {
    let daemon = daemon_with(&[], "[limits]\nidle = \"400ms\"").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let turn = session.turn("count 8 100").await;
    assert_eq!(turn.ended.stop_reason.as_deref(), Some("end_turn"), "it was cut short");
    session.wait_for_phase(Phase::Stopped).await;
    let asked = session.journal().into_iter().find_map(|event| match event.body {
        Body::StopRequested(stop) => Some(stop),
        _ => None,
    });
    let asked = asked.expect("the stop is in the journal");
    assert!(asked.reason.contains("idle"), "{asked:?}");
    assert_eq!((asked.cause.limit.as_deref(), asked.cause.requester), (Some("limits.idle"), None));
}

#[tokio::test]
async fn a_turn_over_its_time_is_cancelled_and_the_session_goes_on() {
    let daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&[]);
    spec.limits.turn_seconds = Some(1);
    let session = daemon.session(&spec).await;
    let turn = session.turn("count 1000 100").await;
    assert_eq!(turn.ended.stop_reason.as_deref(), Some("cancelled"), "{:?}", turn.ended);
    assert!(session.turn("say still here").await.text.contains("still here"));
}

#[tokio::test]
async fn an_agent_that_does_not_end_a_cancelled_turn_is_ended() {
    let daemon = daemon_with(&[], "[limits]\ncancel = \"300ms\"").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("hang").await;
    let view = session.wait_for_phase(Phase::Busy).await;
    // A stopped process certainly does not answer.
    kill(process::pid(view.status.agent_pid.unwrap()), Signal::SIGSTOP).unwrap();
    session.post("/cancel", &serde_json::json!({})).await;
    let turn = session.end_of(&accepted).await;
    assert!(turn.ended.synthetic.is_some(), "{:?}", turn.ended);
    let view = session.wait_for_phase(Phase::Failed).await;
    assert!(view.status.message.is_some_and(|message| message.contains("cancelled turn")));
}

#[tokio::test]
async fn a_silent_turn_is_said_to_be_silent_until_the_agent_speaks() {
    let daemon = daemon_with(&[], "[limits]\nsilence = \"200ms\"").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("count 3 600").await;
    session.wait_for("the turn is silent", |view| view.status.turn.as_ref().is_some_and(|turn| turn.silent)).await;
    let turn = session.end_of(&accepted).await;
    assert_eq!(turn.ended.stop_reason.as_deref(), Some("end_turn"), "a silence ends nothing");
    let silences = turn.events.iter().filter(|event| matches!(event.body, Body::TurnSilent(_))).count();
    assert!((1..=3).contains(&silences), "{silences} records of silence");
}

#[tokio::test]
async fn a_question_that_nobody_answers_is_rejected_when_its_time_is_over() {
    let daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&[]);
    spec.limits.permission_seconds = Some(1);
    let session = daemon.session(&spec).await;
    session.turn("tool echo must not run").await;
    let answered = session.journal().into_iter().find_map(|event| match event.body {
        Body::PermissionResolved(resolved) => Some(resolved),
        _ => None,
    });
    let answered = answered.expect("the question was closed");
    assert_eq!(answered.by, AnsweredBy::Expiry);
    assert_eq!(answered.cause.limit.as_deref(), Some("limits.permission"));
    assert!(matches!(answered.outcome, PermissionOutcome::Selected(_)), "{answered:?}");
}

#[tokio::test]
async fn rules_of_the_configuration_answer_by_kind_and_title() {
    let rules = "[[permissions]]\nkind = \"execute\"\ntitle = \"*forbidden*\"\nanswer = \"deny\"\n\
                 [[permissions]]\nkind = \"execute\"\nanswer = \"allow\"\n";
    let daemon = daemon_with(&[], rules).await;
    let session = daemon.session(&SessionSpec { permissions: PermissionPolicy::Ask, ..daemon.scripted(&[]) }).await;
    let outcome = |events: &[agentd_api::Event]| {
        events.iter().find_map(|event| match &event.body {
            Body::PermissionResolved(resolved) => Some((resolved.by, resolved.outcome.clone())),
            _ => None,
        })
    };
    let allowed = session.turn("tool echo fine").await;
    assert!(allowed.text.contains("fine"), "{}", allowed.text);
    let denied = session.turn("tool echo forbidden").await;
    let (by, outcome_of_denied) = outcome(&denied.events).expect("the rule answered");
    assert_eq!(by, AnsweredBy::Policy);
    assert_ne!(Some(outcome_of_denied), outcome(&allowed.events).map(|(_, outcome)| outcome));
}

#[tokio::test]
async fn an_agent_that_takes_more_memory_than_it_may_is_ended_and_its_neighbour_is_not() {
    let daemon = Daemon::start().await;
    let neighbour = daemon.session(&daemon.scripted(&[])).await;
    let mut spec = SessionSpec { permissions: PermissionPolicy::Allow, ..daemon.scripted(&[]) };
    spec.limits.memory = Some(64 << 20);
    let session = daemon.session(&spec).await;
    // tail keeps the last line in memory, and this line has no end.
    session.prompt("tool tail -n 1 /dev/zero").await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let message = view.status.message.unwrap_or_default();
    assert!(message.contains("ran out of memory") && message.contains("65536 KiB are allowed"), "{message}");
    let condition = view.status.conditions.iter().find(|condition| condition.kind == ConditionType::AgentStarted);
    assert_eq!(condition.map(|condition| condition.reason.as_str()), Some("OutOfMemory"));
    assert!(neighbour.turn("say untouched").await.text.contains("untouched"));
}

#[tokio::test]
async fn a_keeper_that_no_daemon_comes_back_to_ends_its_agent() {
    let mut daemon = daemon_with(&[], "[limits]\norphan = \"300ms\"").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say something to come back to").await;
    let status = session.view().await.status;
    let pids = [status.agent_pid.unwrap(), status.keeper_pid.unwrap()];
    daemon.kill9();
    until("keeper and agent are gone", || pids.iter().all(|pid| !process::is_alive(*pid))).await;
    daemon.run().await;
    let view = session.wait_for("it has ended", |view| !view.status.phase.is_active()).await;
    assert!(view.status.agent_pid.is_none());
    session.resume().await;
}
