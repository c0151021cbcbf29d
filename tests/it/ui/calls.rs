//! Calls of the page to the daemon: streams, large bodies, slow clients, and a daemon that is away.

use std::fs;

use agentd_api::session::{Phase, PromptAccepted};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Answer, Shown};
use crate::harness::{Daemon, process, until, within};

/// Returns the number of sockets of a process.
fn sockets(pid: u32) -> usize {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    targets.filter(|target| target.as_os_str().as_encoded_bytes().starts_with(b"socket:")).count()
}

#[tokio::test]
async fn a_stream_passes_through_as_it_comes_and_ends_when_the_browser_leaves() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let shown = Shown::start(&daemon, &[]);
    let visitor = shown.sign_in().await;
    let path = format!("/host/this/v1/sessions/{}/events?last=1", session.id);
    let streams = || sockets(shown.program.id());
    let before = streams();
    let lines = format!("{}accept: text/event-stream\r\n", visitor.lines);
    let mut stream = shown.send(&format!("GET {path}"), &lines, b"").await;
    let mut seen = String::new();
    for word in ["text/event-stream", "turn.ended"] {
        if word == "turn.ended" {
            session.turn("say hello").await;
        }
        within(word, async {
            while !seen.contains(word) {
                let mut piece = [0; 4096];
                let length = stream.read(&mut piece).await.unwrap();
                assert!(length > 0, "the stream ended: {seen}");
                seen.push_str(&String::from_utf8_lossy(&piece[..length]));
            }
        })
        .await;
    }
    assert!(streams() > before);
    drop(stream);
    until("both connections of the stream are closed", || streams() <= before).await;
    // The session noticed nothing.
    assert_eq!(session.view().await.status.phase, Phase::Idle);
}

#[tokio::test]
async fn a_daemon_that_is_killed_is_away_until_it_is_back() {
    let mut daemon = Daemon::start().await;
    let shown = Shown::start(&daemon, &[]);
    let visitor = shown.sign_in().await;
    let mut stream = shown.send("GET /host/this/v1/events", &visitor.lines, b"").await;
    let mut first = [0; 12];
    within("the stream begins", stream.read_exact(&mut first)).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    daemon.kill9();
    let mut rest = Vec::new();
    // The answer is cut off, and the page takes it up with its cursor.
    let _ = within("the stream ends", stream.read_to_end(&mut rest)).await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&rest));
    let away = visitor.get("/host/this/v1/sessions").await;
    assert_eq!((away.status, away.code().as_str()), (503, "ui.host_unreachable"));
    assert!(away.json()["hint"].is_string(), "{}", away.text());
    assert_eq!(visitor.get("/ui/info").await.status, 200);
    daemon.run().await;
    assert_eq!(visitor.get("/host/this/v1/sessions").await.status, 200);
}

#[tokio::test]
async fn a_read_only_page_reads_and_changes_nothing() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let shown = Shown::start(&daemon, &["--read-only"]);
    let visitor = shown.sign_in().await;
    assert_eq!(visitor.get("/ui/info").await.json()["read_only"], true);
    let path = format!("/host/this/v1/sessions/{}", session.id);
    assert_eq!(visitor.get(&path).await.json()["id"], session.id.as_str());
    for (method, path) in [
        ("POST", format!("{path}/stop")),
        ("POST", format!("{path}/prompt")),
        ("PATCH", path.clone()),
        ("PUT", format!("{path}/title")),
        ("DELETE", path.clone()),
    ] {
        let answer = visitor.send(method, &path, b"{}").await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "ui.read_only"), "{method} {path}");
    }
    // The refusal arrives, although the server does not need the body.
    let large = visitor.send("POST", &format!("{path}/prompt"), &vec![b'x'; 10 << 20]).await;
    assert_eq!((large.status, large.code().as_str()), (403, "ui.read_only"));
    assert_eq!(session.view().await.status.phase, Phase::Idle);
}

#[tokio::test]
async fn bodies_of_ten_megabytes_pass_in_both_directions() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&["--content"])).await;
    let shown = Shown::start(&daemon, &[]);
    let visitor = shown.sign_in().await;
    let path = format!("/host/this/v1/sessions/{}", session.id);
    // To the daemon: an image in a prompt.
    let image = json!({ "type": "image", "mimeType": "image/png", "data": "A".repeat(10 << 20) });
    let prompt = json!({ "prompt": "parts", "parts": [image] }).to_string();
    let accepted = visitor.send("POST", &format!("{path}/prompt"), prompt.as_bytes()).await;
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    let accepted: PromptAccepted = serde_json::from_slice(&accepted.body).unwrap();
    let text = session.end_of(&accepted).await.text;
    assert!(text.contains(&(10 << 20).to_string()), "{text}");
    // From the daemon: a line of that length.
    session.turn(&format!("bigline {}", 10 << 20)).await;
    let events = visitor.get(&format!("{path}/events?follow=false&last=20")).await;
    assert!(events.status == 200 && events.body.len() > 10 << 20, "{} {}", events.head, events.body.len());
    // A body that the daemon refuses: the refusal arrives, although the daemon did not read the body.
    let refused = visitor.send("PUT", &format!("{path}/title"), &vec![b'x'; 10 << 20]).await;
    assert_eq!((refused.status, refused.code().as_str()), (413, "body-too-large"));
}

#[tokio::test]
async fn a_client_that_reads_or_writes_slowly_holds_up_no_other() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn(&format!("bigline {}", 10 << 20)).await;
    let shown = Shown::start(&daemon, &[]);
    let visitor = shown.sign_in().await;
    let events = format!("GET /host/this/v1/sessions/{}/events?follow=false&last=20", session.id);
    let mut unread = shown.send(&events, &visitor.lines, b"").await;
    let mut unsent = shown.connect().await;
    let title = format!("PUT /host/this/v1/sessions/{}/title HTTP/1.1\r\n", session.id);
    let head = format!("{title}{}content-type: application/json\r\ncontent-length: 15\r\n", visitor.lines);
    unsent.write_all(format!("{head}connection: close\r\n\r\n{{\"titl").as_bytes()).await.unwrap();
    for _ in 0..20 {
        assert_eq!(visitor.get("/host/this/v1/sessions").await.status, 200);
    }
    let resident = process::resident(shown.program.id());
    assert!(resident < 64 << 10, "{resident} KiB");
    unsent.write_all(b"e\":\"abc\"}").await.unwrap();
    assert_eq!(Answer::read(&mut unsent).await.status, 200);
    assert_eq!(session.view().await.status.title.as_deref(), Some("abc"));
    let answer = Answer::read(&mut unread).await;
    assert!(answer.body.len() > 10 << 20, "{} {}", answer.head, answer.body.len());
}

#[tokio::test]
async fn only_calls_of_the_interface_reach_the_daemon_and_problems_stay_its_own() {
    let daemon = Daemon::start().await;
    let shown = Shown::start(&daemon, &["--editor", "vscode"]);
    let visitor = shown.sign_in().await;
    assert_eq!(visitor.get("/ui/info").await.json()["hosts"][0]["editor"], "vscode://file{path}:{line}");
    for path in ["/host/this/acp", "/host/this/", "/v1/sessions"] {
        assert_eq!(visitor.get(path).await.code(), "ui.no_such_path", "{path}");
    }
    assert_eq!(visitor.get("/host/other/v1/sessions").await.code(), "ui.no_such_host");
    let missing = visitor.get("/host/this/v1/sessions/nosuch").await;
    assert_eq!((missing.status, missing.code().as_str()), (404, "no-such-session"));
    assert!(missing.head.contains("sandbox") && missing.head.contains("x-request-id"), "{}", missing.head);
    let list = visitor.get("/host/this/v1/sessions").await;
    let tag = list.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let lines = format!("{}if-none-match: {tag}\r\n", visitor.lines);
    assert_eq!(shown.ask("GET /host/this/v1/sessions", &lines, b"").await.status, 304);
}
