//! Launches that fail after the agent's process was started: a client that waits for the launch gets the failure, its
//! reason and a remedy.

use std::time::{Duration, Instant};

use agentd_api::session::{Phase, SessionSpec, SessionView};

use crate::harness::Daemon;
use crate::harness::ctl::ctl;

/// Flags of an agent that refuses its launch, with the reason and the remedy in the failure.
const REFUSALS: [(&[&str], &str, &str); 3] = [
    (
        &["--refuse", "initialize", "-32603", "as you asked: not initialized"],
        "as you asked: not initialized",
        "agentctl events",
    ),
    (&["--protocol", "2"], "version 2", "a release of the agent that speaks version 1"),
    (&["--refuse", "session/new", "-32000", "Authentication required"], "requires a login first", "Use an API key"),
];

/// Returns the specification of an agent that ends slowly, so that its session is `stopping` for a while.
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
async fn a_session_that_is_not_ready_in_time_is_said_to_be_so_and_not_before_the_time_is_over() {
    let daemon = Daemon::start().await;
    let command = daemon.scripted(&["--slow-init", "60000"]).command.unwrap();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let begun = Instant::now();
    let (status, _, told) = ctl(&daemon, &[&["new", "--ready", "1", "--"], &command[..]].concat()).await.parts();
    assert_eq!(status, Some(1), "{told}");
    assert!(told.contains("still starting after 1 s") || told.contains("still preparing after 1 s"), "{told}");
    assert!(begun.elapsed() >= Duration::from_secs(1), "it said so after {:?}", begun.elapsed());
}
