//! Prompts: one turn at a time, in order, cancelled when asked for, and whatever the agent prints.

use agentd_api::event::{Body, SyntheticCause};
use agentd_api::session::{Phase, SessionView};
use agentd_api::{Code, Event};

use crate::harness::session::said;
use crate::harness::{Daemon, Session};

/// Waits until the agent has printed this text in the current turn.
async fn hears(session: &Session, after: u64, text: &str) -> Vec<Event> {
    let mut events = session.events(&format!("after={after}")).await;
    events.until(&format!("the agent says {text:?}"), |event| said(event).is_some_and(|said| said == text)).await
}

#[tokio::test]
async fn one_turn_runs_and_the_others_wait_in_order() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let first = session.prompt("say begun\nhang").await;
    hears(&session, first.after_seq, "begun").await;
    let second = session.prompt("say second").await;
    let third = session.prompt("say third").await;

    let view = session.view().await;
    assert_eq!(view.status.turn.as_ref().map(|turn| &turn.id), Some(&first.turn));
    assert_eq!(view.status.queue.iter().map(|turn| &turn.id).collect::<Vec<_>>(), [&second.turn, &third.turn]);

    daemon.client.call("POST", &session.path("/cancel"), "").await.expect::<SessionView>(202);
    let cancelled = session.end_of(&first).await;
    assert_eq!(cancelled.ended.stop_reason.as_deref(), Some("cancelled"));
    assert_eq!(session.end_of(&second).await.text, "second");
    assert_eq!(session.end_of(&third).await.text, "third");

    let order: Vec<String> = session
        .journal()
        .iter()
        .filter_map(|event| match &event.body {
            Body::TurnStarted(started) => Some(format!("start {}", started.turn)),
            Body::TurnEnded(ended) => Some(format!("end {}", ended.turn)),
            _ => None,
        })
        .collect();
    let turns = [&first, &second, &third]
        .map(|accepted| [format!("start {}", accepted.turn), format!("end {}", accepted.turn)]);
    assert_eq!(order, turns.concat());
}

#[tokio::test]
async fn a_turn_that_waits_can_be_dropped_and_never_reaches_the_agent() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let first = session.prompt("say begun\nhang").await;
    hears(&session, first.after_seq, "begun").await;
    let dropped = session.prompt("say dropped").await;
    let path = session.path(&format!("/turns/{}", dropped.turn));
    let view: SessionView = daemon.client.call("DELETE", &path, "").await.expect(202);
    assert!(view.status.queue.is_empty(), "{view:#?}");
    let ended = session.end_of(&dropped).await.ended;
    assert_eq!(ended.synthetic.map(|synthetic| synthetic.cause), Some(SyntheticCause::Dropped));

    let path = session.path(&format!("/turns/{}", first.turn));
    daemon.client.call("DELETE", &path, "").await.expect::<SessionView>(202);
    assert_eq!(session.end_of(&first).await.ended.stop_reason.as_deref(), Some("cancelled"));
    assert_eq!(session.turn("remember").await.text, r#"["say begun\nhang"]"#);
    let problem = daemon.client.call("DELETE", &session.path("/turns/t99"), "").await.problem();
    assert_eq!(problem.code, Code::NoSuchTurn, "{problem:?}");
}

#[tokio::test]
async fn an_initial_prompt_is_sent_once_in_the_sessions_life() {
    let daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&[]);
    spec.initial_prompt = Some("say initial".to_owned());
    let session = daemon.create(&spec).await;
    let mut events = session.events("after=0").await;
    let seen = events.until("the first turn's end", |event| matches!(event.body, Body::TurnEnded(_))).await;
    assert_eq!(seen.iter().filter_map(said).collect::<String>(), "initial");
    session.stop().await;
    session.resume().await;
    assert_eq!(session.turn("say second").await.text, "second");
    let queued = session.journal().iter().filter(|event| matches!(event.body, Body::TurnQueued(_))).count();
    assert_eq!(queued, 2, "the initial prompt was queued again");
}

#[tokio::test]
async fn a_prompt_that_the_agent_answers_with_an_error_ends_its_turn_and_not_the_session() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let synthetic = session.turn("error").await.ended.synthetic.expect("the agent gave no stop reason");
    assert_eq!(synthetic.cause, SyntheticCause::AgentError);
    assert!(synthetic.detail.contains("as you asked"), "{synthetic:?}");
    assert_eq!(session.turn("say still here").await.text, "still here");
}

#[tokio::test]
async fn what_is_not_a_message_is_kept_as_noise_and_stops_nothing() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&["--banner"])).await;
    let turn = session.turn("say before\nnoise\nstderr on stderr\nsay , after").await;
    assert_eq!(turn.text, "before, after");
    session.wait_for_phase(Phase::Idle).await;
    let events = session.journal();
    let noise: Vec<&[u8]> = events
        .iter()
        .filter_map(|event| match &event.body {
            Body::AgentNoise(text) => Some(text.text.as_bytes()),
            _ => None,
        })
        .collect();
    for line in [&b"Welcome to the scripted agent!"[..], b"debug: not JSON", b"bytes \xff\xfe that are not UTF-8"] {
        assert!(noise.contains(&line), "{:?} is not among {noise:?}", String::from_utf8_lossy(line));
    }
    let stderr = |event: &Event| matches!(&event.body, Body::AgentStderr(text) if text.text.as_bytes() == b"on stderr");
    assert!(events.iter().any(stderr), "stderr was not kept");
}

#[tokio::test]
async fn a_long_line_comes_through_whole() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let turn = session.turn("bigline 3000000").await;
    assert!(turn.text.len() == 3_000_000 && turn.text.bytes().all(|byte| byte == b'x'), "{} bytes", turn.text.len());
    session.journal();
}

#[tokio::test]
async fn a_request_that_agentd_does_not_know_is_refused_at_once() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(session.turn("unknown-request").await.text, "code -32601");
}
