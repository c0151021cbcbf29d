//! The end of a daemon and the start of the next: each client that was connected before the end gets an answer.

use std::time::{Duration, Instant};

use agentd_api::session::{Phase, SessionView};
use nix::sys::signal::{Signal, kill};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::harness::{Daemon, LIMIT, process, until, within};

/// Asks the daemon to end, and waits until the daemon accepts no more connections.
async fn closes(daemon: &Daemon) {
    kill(process::pid(daemon.pid()), Signal::SIGTERM).unwrap();
    let socket = daemon.client.socket().to_owned();
    until("the socket is gone", || !socket.exists()).await;
}

#[tokio::test]
async fn whoever_connected_before_the_end_is_answered_their_first_request_after_it() {
    let mut daemon = Daemon::start().await;
    let mut early = Vec::new();
    for _ in 0..20 {
        early.push(UnixStream::connect(daemon.client.socket()).await.unwrap());
    }
    closes(&daemon).await;
    for stream in &mut early {
        stream.write_all(b"GET /v1/agents HTTP/1.1\r\nhost: agentd\r\n\r\n").await.unwrap();
    }
    for mut stream in early {
        let mut answer = String::new();
        within("the answer", stream.read_to_string(&mut answer)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("scripted"), "{answer}");
    }
    daemon.ended().await;
}

#[tokio::test]
async fn who_waits_for_a_launch_is_told_how_it_stands_when_the_daemon_ends_and_the_next_one_goes_on_with_it() {
    let mut daemon = Daemon::start().await;
    let spec = serde_json::to_vec(&daemon.scripted(&["--slow-init", "4000"])).unwrap();
    let client = daemon.client.clone();
    let waiting = tokio::spawn(async move { client.call("POST", "/v1/sessions?wait=600", spec).await });
    let pids = daemon.pid_file();
    until("the agent runs", || pids.exists()).await;
    let began = Instant::now();
    closes(&daemon).await;
    let view: SessionView = within("the answer", waiting).await.unwrap().expect(202);
    assert!(matches!(view.status.phase, Phase::Preparing | Phase::Starting), "{view:#?}");
    daemon.ended().await;
    assert!(began.elapsed() < LIMIT / 2, "it took {:?}", began.elapsed());
    daemon.run().await;
    daemon.client.wait_for(view.id.as_str(), "the session is ready", |view| view.status.phase == Phase::Idle).await;
}

#[tokio::test]
async fn a_connection_that_says_nothing_does_not_keep_the_daemon_from_ending() {
    let mut daemon = Daemon::start().await;
    let mut silent = UnixStream::connect(daemon.client.socket()).await.unwrap();
    silent.write_all(b"GET /v1/agents HT").await.unwrap();
    let began = Instant::now();
    daemon.terminate().await;
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
}
