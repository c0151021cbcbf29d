//! Rate limits: the turn waits in its session, and is sent again at the time that the agent names.

use agentd_api::Code;
use agentd_api::event::{Body, SyntheticCause, TurnLimited, TurnStarted};
use agentd_api::session::{ConditionStatus, ConditionType, Phase, RestartPolicy, ResumeNote, SessionSpec, SessionView};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::editor::{Editor, handle};
use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session, process};

/// An error without a time, in the form of claude-agent-acp.
const UNNAMED: &str = r#"{"code":-32603,"message":"You have hit your limit","data":{"errorKind":"rate_limit"}}"#;

fn limits(session: &Session) -> Vec<TurnLimited> {
    let limited = |body| if let Body::TurnLimited(limited) = body { Some(limited) } else { None };
    session.journal().into_iter().filter_map(|event| limited(event.body)).collect()
}

fn starts(session: &Session) -> Vec<TurnStarted> {
    let started = |body| if let Body::TurnStarted(started) = body { Some(started) } else { None };
    session.journal().into_iter().filter_map(|event| started(event.body)).collect()
}

/// Asserts the view of a limited session, and returns the time from now to the next attempt.
fn pause(view: &SessionView) -> SignedDuration {
    let condition = |kind| view.status.conditions.iter().find(|one| one.kind == kind).unwrap();
    let until = view.status.limited_until.expect("it has a time");
    let limited = condition(ConditionType::RateLimited);
    assert_eq!((limited.status, limited.reason.as_str()), (ConditionStatus::True, "RateLimitReached"));
    assert!(limited.message.contains("hit your limit"), "{}", limited.message);
    let ready = condition(ConditionType::Ready);
    assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::True, "Limited"));
    until.duration_since(Timestamp::now())
}

/// Waits until the session is limited for a number of hours.
async fn limited_for(session: &Session, hours: i64) -> SessionView {
    let is_about =
        |pause: SignedDuration| (SignedDuration::from_hours(hours) - pause).abs() < SignedDuration::from_mins(1);
    let what = format!("a limit of {hours} h");
    let view = session.wait_for(&what, |view| {
        view.status.limited_until.is_some_and(|until| is_about(until.duration_since(Timestamp::now())))
    });
    let view = view.await;
    assert!(view.status.phase == Phase::Limited && is_about(pause(&view)), "{view:#?}");
    view
}

/// Lets the prompt be sent again now.
async fn release(session: &Session) {
    session.client.call("POST", &session.path("/resume"), "").await.expect::<SessionView>(202);
}

#[tokio::test]
async fn the_prompt_is_sent_again_at_the_time_that_the_agent_names() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let error = r#"{"code":-32603,"message":"You've hit your limit","data":{"error":{"code":429,"retry_after":4}}}"#;
    let first = session.prompt(&format!("limit 1 {error}\nsay at last")).await;
    let second = session.prompt("say behind").await;
    let view = session.wait_for_phase(Phase::Limited).await;
    assert!(pause(&view) <= SignedDuration::from_millis(4100), "{view:#?}");
    let queue: Vec<_> = view.status.queue.iter().map(|turn| &turn.id).collect();
    assert_eq!(queue, [&first.turn, &second.turn], "it is the next one");

    let said = ctl(&daemon, &["prompt", session.id.as_str(), "say third"]).await;
    assert!(said.out.contains("third") && said.err.contains("the agent met a rate limit: You've hit"), "{said:?}");
    assert_eq!(session.end_of(&first).await.text, "at last");
    assert_eq!(session.end_of(&second).await.text, "behind");
    let [limited] = &limits(&session)[..] else { panic!("{:?}", limits(&session)) };
    assert!(limited.is_named && limited.attempt == 1, "{limited:?}");
    let [begun, again, behind, _] = &starts(&session)[..] else { panic!("{:?}", starts(&session)) };
    assert_eq!((begun.again, again.again, behind.again), (false, true, false));
    assert_eq!((&begun.turn, &again.turn), (&first.turn, &first.turn));
    assert_eq!(begun.note, None);
    assert!(again.note.as_ref().is_some_and(|note| note.contains("rate limit")), "{again:?}");
    let journal = session.journal();
    let sent = journal.iter().find(|event| matches!(&event.body, Body::TurnStarted(start) if start.again)).unwrap();
    assert!(sent.time >= limited.until, "{} is before {}", sent.time, limited.until);
    let view = session.view().await;
    assert_eq!(view.status.limited_until, None);
    let over = view.status.conditions.iter().find(|one| one.kind == ConditionType::RateLimited).unwrap();
    assert_eq!((over.status, over.reason.as_str()), (ConditionStatus::False, "RateLimitOver"));
}

#[tokio::test]
async fn the_wait_survives_the_daemon_and_the_agent_and_each_one_is_longer() {
    let mut daemon = Daemon::start().await;
    let spec = SessionSpec {
        resume_note: Some(ResumeNote::Off),
        restart: Some(RestartPolicy::OnFailure),
        ..daemon.scripted(&[])
    };
    let session = daemon.session(&spec).await;
    let first = session.prompt(&format!("limit 3 {UNNAMED}\nsay at last")).await;
    let view = limited_for(&session, 1).await;

    daemon.kill9();
    daemon.run().await;
    let again = session.wait_for_phase(Phase::Limited).await;
    assert_eq!(again.status.limited_until, view.status.limited_until, "the same time");
    assert_eq!(again.status.agent_pid, view.status.agent_pid);

    // A person sends it before its time.
    let said = ctl(&daemon, &["resume", session.id.as_str()]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    let view = limited_for(&session, 2).await;

    // The agent crashes and comes back, and the wait continues.
    process::kill9(view.status.agent_pid.unwrap());
    let is_back = |now: &SessionView| now.status.phase == Phase::Limited && now.status.launches == 2;
    let back = session.wait_for("the agent is back", is_back).await;
    assert_eq!(back.status.limited_until, view.status.limited_until, "{back:#?}");
    let text = ctl(&daemon, &["show", session.id.as_str()]).await.out;
    assert!(text.contains("limited until"), "{text}");
    assert!(ctl(&daemon, &["ls"]).await.out.contains("limited"));

    release(&session).await;
    limited_for(&session, 4).await;
    release(&session).await;
    assert_eq!(session.end_of(&first).await.text, "at last");
    assert!(starts(&session).iter().all(|start| start.note.is_none()), "notes are off");
    let other = session.turn(&format!("limit 0 {UNNAMED}\nsay on")).await;
    assert_eq!(other.text, "on");
}

#[tokio::test]
async fn a_limited_turn_is_cancelled_or_stopped_and_no_later_prompt_waits_for_it() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let limited = session.prompt(&format!("limit 9 {UNNAMED}")).await;
    session.wait_for_phase(Phase::Limited).await;
    let behind = session.prompt("say behind").await;
    let said = ctl(&daemon, &["cancel", session.id.as_str()]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    let cause = |end: crate::harness::session::Turn| end.ended.synthetic.map(|synthetic| synthetic.cause);
    assert_eq!(cause(session.end_of(&limited).await), Some(SyntheticCause::Dropped));
    assert_eq!(session.end_of(&behind).await.text, "behind");

    let limited = session.prompt(&format!("limit 9 {UNNAMED}")).await;
    session.wait_for_phase(Phase::Limited).await;
    let refused = daemon.client.call("POST", &session.path("/resume?new_conversation=true"), "").await;
    assert_eq!(refused.problem().code, Code::WrongPhase);
    session.stop().await;
    assert_eq!(cause(session.end_of(&limited).await), Some(SyntheticCause::Dropped));
    assert_eq!(session.resume().await.status.phase, Phase::Idle);
    assert_eq!(session.turn("say on").await.text, "on");
}

#[tokio::test]
async fn a_session_that_is_not_interactive_waits_too_and_its_time_stands_still() {
    let daemon = Daemon::start().await;
    let error = r#"{"code":429,"message":"try again in 3 seconds"}"#;
    let prompt = format!("limit 1 {error}\nsay done");
    let arguments = ["run", "--batch", "--agent", "scripted", "--session-limit", "2s", "--prompt", &prompt];
    let said = ctl(&daemon, &arguments).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    assert_eq!(said.out.trim(), "done", "{said:?}");
    assert!(said.err.contains("rate limit"), "{said:?}");
}

#[tokio::test]
async fn an_editor_says_so_and_gets_the_end_of_the_turn() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    let prompt = editor.prompt(&id, &format!("limit 1 {UNNAMED}\nsay at last")).await;
    let is_limit = |update: &Value| {
        update["content"]["text"]
            .as_str()
            .is_some_and(|text| text.contains("rate limit") && text.contains("hit your limit"))
    };
    editor.update("the limit", is_limit).await;
    release(&handle(&daemon, &id)).await;
    assert_eq!(editor.response(prompt).await["result"]["stopReason"], "end_turn");
    assert!(editor.texts().concat().ends_with("at last"), "{:?}", editor.past);

    let prompt = editor.prompt(&id, &format!("limit 9 {UNNAMED}")).await;
    editor.update("the limit", is_limit).await;
    handle(&daemon, &id).wait_for_phase(Phase::Limited).await;
    editor.notify("session/cancel", json!({ "sessionId": id })).await;
    assert_eq!(editor.response(prompt).await["result"]["stopReason"], "cancelled");
}
