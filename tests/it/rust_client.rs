//! The crate `agentd-client` against a real daemon: its example, refusals, and streams over a crash.

use std::process::Stdio;

use agentd_api::Code;
use agentd_api::feed::FeedEvent;
use agentd_api::route::call;
use agentd_client::{Client, EventStream, FeedQuery, FeedStream, Next, Patience, StreamStart, patiently};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::harness::{Daemon, Session, paths, within};

fn client(daemon: &Daemon) -> Client {
    Client::new(daemon.client.socket())
}

#[tokio::test]
async fn the_example_prints_the_sessions_that_need_a_person_and_each_change() {
    let daemon = Daemon::start().await;
    let first = daemon.failed("first").await;
    let program = paths::programs().join("examples").join("attention");
    assert!(program.exists(), "plain `cargo test --workspace` builds {}", program.display());
    let mut command = tokio::process::Command::new(program);
    command.arg(daemon.client.socket()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut until = async |wanted: String| {
        while within(&wanted, lines.next_line()).await.unwrap().expect("it follows") != wanted {}
    };
    until(format!("{} needs you: Failed", first.id)).await;
    let second = daemon.failed("second").await;
    until(format!("{} is failed", second.id)).await;
    child.kill().await.unwrap();
}

#[tokio::test]
async fn a_refusal_has_its_code_and_a_read_waits_for_a_daemon_that_is_away() {
    let mut daemon = Daemon::start().await;
    let client = client(&daemon);
    let refused = client.ask(call::Session { session: "nobody".to_owned() }).await.unwrap_err();
    assert_eq!(refused.problem_code(), Some(Code::NoSuchSession), "{refused:?}");
    assert!(refused.code() == "no-such-session" && refused.hint().is_some(), "{refused:?}");
    daemon.kill9();
    let away = client.ask(call::Version {}).await.unwrap_err();
    assert!(away.code() == "unreachable" && away.is_without_listener(), "{away:?}");
    let asking = patiently(async || client.ask(call::Version {}).await);
    let (version, ()) = tokio::join!(within("the answer", asking), daemon.run());
    let version = version.unwrap();
    assert_eq!(version.value.version, env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn both_streams_continue_over_a_crash_without_a_gap_or_a_repetition() {
    let mut daemon = Daemon::start().await;
    let client = client(&daemon);
    let query =
        FeedQuery { kind: Some("session.created".to_owned()), after: Some(0), follow: true, ..FeedQuery::default() };
    let mut feed = FeedStream::new(client.clone(), query);
    let (mut patience, mut cursors, mut created) = (Patience::default(), Vec::new(), Vec::new());
    let mut until = async |wanted: &Session| {
        within("the session is created", async {
            while created.last() != Some(&wanted.id) {
                if let Err(error) = feed.open().await {
                    patience.wait(error).await.unwrap();
                    continue;
                }
                match feed.next().await {
                    Ok(Some(event)) => {
                        let event: FeedEvent = serde_json::from_slice(&event.line).unwrap();
                        cursors.push(event.cursor);
                        created.extend(event.session.filter(|_| event.kind == "session.created"));
                        patience.reset();
                    }
                    Ok(None) => {}
                    Err(error) => patience.wait(error).await.unwrap(),
                }
            }
        })
        .await;
    };
    let first = daemon.failed("first").await;
    until(&first).await;
    let mut events = EventStream::follow(client.clone(), first.id.to_string(), StreamStart::After(0), None);
    let begun = within("the first record", events.next()).await;
    assert!(matches!(begun, Some(Next::Record { seq: 1, .. })), "{begun:?}");
    daemon.kill9();
    daemon.run().await;
    let second = daemon.failed("second").await;
    until(&second).await;
    assert_eq!(created, [first.id.clone(), second.id.clone()]);
    assert!(cursors.is_sorted_by(|one, next| one < next), "{cursors:?}");

    assert_eq!(daemon.client.call("DELETE", &first.path("?force=true"), "").await.status, 204);
    let mut seqs = vec![1];
    within("the end of the session's events", async {
        loop {
            match events.next().await {
                Some(Next::Record { seq, .. }) => seqs.push(seq),
                Some(Next::Away) => {}
                Some(Next::Failed(error)) => panic!("{error:?}"),
                Some(Next::Deleted) | None => return,
            }
        }
    })
    .await;
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
}
