//! Launches that fail after the agent's process was started: who waits for one is told that it failed, why, and what to do.

use std::time::{Duration, Instant};

use agentd_api::session::{Phase, SessionSpec, SessionView};

use crate::harness::Daemon;
use crate::prerequisites_ctl::said;

/// How an agent refuses its launch, and what the failure says: the reason, and what to do.
const REFUSALS: [(&[&str], &str, &str); 3] = [
    (
        &["--refuse", "initialize", "-32603", "as you asked: not initialized"],
        "as you asked: not initialized",
        "agentctl events",
    ),
    (&["--protocol", "2"], "version 2", "a release of the agent that speaks version 1"),
    (&["--refuse", "session/new", "-32000", "Authentication required"], "signed in", "Use an API key"),
];

/// An agent that takes its time to end, so that its session is `stopping` for a while.
fn refusing(daemon: &Daemon, how: &[&str]) -> SessionSpec {
    daemon.scripted(&[how, &["--ignore-eof"]].concat())
}

#[tokio::test]
async fn a_wait_for_a_launch_that_fails_after_its_process_began_ends_with_the_failure_its_reason_and_its_remedy() {
    let daemon = Daemon::start().await;
    for (how, reason, remedy) in REFUSALS {
        let spec = refusing(&daemon, how);
        let view: SessionView = daemon.client.post("/v1/sessions?wait=60", &spec).await.expect(202);
        let message = view.status.message.clone().unwrap_or_default();
        assert_eq!(view.status.phase, Phase::Failed, "{how:?}: {view:#?}");
        assert!(message.contains(reason) && message.contains(remedy), "{how:?}: {message}");
        let path = format!("/v1/sessions/{}/resume?wait=60", view.id);
        let view: SessionView = daemon.client.call("POST", &path, "").await.expect(202);
        assert_eq!((view.status.phase, view.status.message), (Phase::Failed, Some(message)), "{how:?}");
    }
}

#[tokio::test]
async fn agentctl_exits_with_status_1_and_the_reason_where_a_launch_fails_after_its_process_began() {
    let daemon = Daemon::start().await;
    for (how, reason, remedy) in REFUSALS {
        let command = refusing(&daemon, how).command.unwrap();
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        for begin in [&["run", "--prompt", "say hello", "--"][..], &["new", "--ready", "60", "--"][..]] {
            let (status, _, told) = said(&daemon, &[begin, &command].concat()).await;
            assert_eq!(status, Some(1), "{begin:?} {how:?}: {told}");
            assert!(told.contains(reason) && told.contains(remedy), "{begin:?} {how:?}: {told}");
            assert!(!told.contains("is stopped") && !told.contains("still"), "{begin:?} {how:?}: {told}");
        }
    }
}

#[tokio::test]
async fn a_resume_whose_conversation_is_lost_exits_with_status_1_and_says_how_to_begin_a_new_one() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&["--load-fails", "--ignore-eof"])).await;
    session.turn("say before").await;
    session.stop().await;
    let (status, _, told) = said(&daemon, &["resume", session.id.as_str()]).await;
    assert_eq!(status, Some(1), "{told}");
    assert!(told.contains("could not restore") && told.contains("--new-conversation"), "{told}");
    assert!(!told.contains("still"), "{told}");
}

#[tokio::test]
async fn a_session_that_is_not_ready_in_time_is_said_to_be_so_and_not_before_the_time_is_over() {
    let daemon = Daemon::start().await;
    let command = daemon.scripted(&["--slow-init", "60000"]).command.unwrap();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let begun = Instant::now();
    let (status, _, told) = said(&daemon, &[&["new", "--ready", "1", "--"], &command[..]].concat()).await;
    assert_eq!(status, Some(1), "{told}");
    assert!(told.contains("still starting after 1 s") || told.contains("still preparing after 1 s"), "{told}");
    assert!(begun.elapsed() >= Duration::from_secs(1), "it said so after {:?}", begun.elapsed());
}
