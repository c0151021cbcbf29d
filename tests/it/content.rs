//! Prompts with files, images and links: what the agent gets, and what the journal and the disk have.

use agentd_api::Body;
use agentd_api::session::{Phase, SessionSpec};
use serde_json::{Value, json};

use crate::harness::ctl::{agentctl, ctl, ctl_with};
use crate::harness::terminal::Terminal;
use crate::harness::{Daemon, Session};

/// First bytes of an image in PNG.
const PNG: &[u8] = &[0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a];

fn spec(daemon: &Daemon, flags: &[&str]) -> SessionSpec {
    SessionSpec { name: Some("fix".parse().unwrap()), ..daemon.scripted(flags) }
}

/// Returns a content as the scripted agent reports it.
fn measure(content: &str) -> String {
    let sum: u64 = content.bytes().map(u64::from).sum();
    format!("{}:{sum}", content.len())
}

fn resource(uri: &str, text: &str) -> Value {
    json!({ "type": "resource", "resource": { "uri": uri, "text": text } })
}

/// Sends a prompt with parts, and returns the parts that the agent got.
async fn sent(daemon: &Daemon, session: &Session, parts: &Value) -> Value {
    let request = json!({ "prompt": "parts", "parts": parts });
    let accepted = daemon.client.post(&session.path("/prompt"), &request).await.expect(202);
    serde_json::from_str(&session.end_of(&accepted).await.text).unwrap()
}

#[tokio::test]
async fn an_agent_gets_large_contents_and_the_journal_has_their_digests() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&spec(&daemon, &["--content"])).await;
    let (small, large) = ("fn a() {}", "a \"quoted\" line\u{1f980}\n".repeat(100_000));
    let image = "QUJD".repeat(5000);
    let parts = json!([
        resource("file:///d/small.rs", small),
        resource("file:///d/large.txt", &large),
        { "type": "image", "data": image, "mimeType": "image/png" },
        { "type": "resource_link", "uri": "file:///d", "name": "d" },
    ]);
    let got = sent(&daemon, &session, &parts).await;
    assert_eq!(got[0]["resource"]["text"], measure(small));
    assert_eq!(got[1]["resource"]["text"], measure(&large));
    assert_eq!((&got[2]["data"], &got[2]["mimeType"]), (&json!(measure(&image)), &json!("image/png")));
    assert_eq!(got[3], parts[3]);
    let contents = session.directory().join("contents");
    let names = || std::fs::read_dir(&contents).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(names().count(), 2);
    let journal = session.journal();
    let lines: Vec<String> = journal.iter().map(|event| event.body.to_data().get().to_owned()).collect();
    assert!(lines.iter().all(|line| line.len() < 20_000), "no record has a large content");
    for name in names() {
        let placeholder = format!("‹content sha256:{name}›");
        assert_eq!(lines.iter().filter(|line| line.contains(&placeholder)).count(), 2, "queued and sent");
    }
    assert!(lines.iter().any(|line| line.contains(small)));
}

#[tokio::test]
async fn a_queued_content_survives_a_kill_and_a_removed_session_leaves_none() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&spec(&daemon, &["--content"])).await;
    session.prompt("hang").await;
    session.wait_for_phase(Phase::Busy).await;
    let large = "line\n".repeat(10_000);
    let request = json!({ "prompt": "parts", "parts": [resource("file:///d/a", &large)] });
    let accepted = daemon.client.post(&session.path("/prompt"), &request).await.expect(202);
    daemon.kill9();
    daemon.run().await;
    session.post("/cancel", &json!({})).await.expect::<Value>(202);
    let got: Value = serde_json::from_str(&session.end_of(&accepted).await.text).unwrap();
    assert_eq!(got[0]["resource"]["text"], measure(&large));
    let directory = session.directory();
    assert!(directory.join("contents").exists());
    assert_eq!(ctl(&daemon, &["rm", "--force", "fix"]).await.status, Some(0));
    assert!(!directory.exists());
}

#[tokio::test]
async fn an_agent_without_images_gets_links_and_texts() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&spec(&daemon, &[])).await;
    let image = json!({ "type": "image", "data": "AAAA", "mimeType": "image/png", "uri": "file:///d/a.png" });
    let got = sent(&daemon, &session, &json!([image])).await;
    assert_eq!(
        got,
        json!([{ "type": "resource_link", "uri": "file:///d/a.png", "name": "a.png", "mimeType": "image/png" }])
    );
}

#[tokio::test]
async fn parts_that_are_wrong_are_refused_and_no_placeholder_reveals_a_secret() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&spec(&daemon, &["--content"])).await;
    for (parts, expected) in [
        (json!([{ "type": "image", "data": "?", "mimeType": "image/png" }]), "not base64"),
        (json!([{ "type": "hologram" }]), "hologram"),
        (json!([{ "type": "resource", "resource": { "uri": "a:b" } }]), "exactly one"),
        (json!(vec![resource("a:b", ""); 65]), "at most 64"),
    ] {
        let response = daemon.client.post(&session.path("/prompt"), &json!({ "prompt": "x", "parts": parts })).await;
        let problem = response.problem();
        assert!(problem.detail.contains(expected), "{problem:?}");
    }
    assert!(!session.directory().join("contents").exists());
    let other = format!("say ‹content sha256:{}› ‹secret A›", "a".repeat(64));
    let request = json!({ "prompt": other, "parts": [resource("a:b", &"x".repeat(5000))] });
    let accepted = daemon.client.post(&session.path("/prompt"), &request).await.expect(202);
    assert_eq!(session.end_of(&accepted).await.text, other.trim_start_matches("say "));
}

#[tokio::test]
async fn the_command_line_gives_files_images_and_standard_input() {
    let daemon = Daemon::start().await;
    daemon.session(&spec(&daemon, &["--content"])).await;
    let at = |name: &str| daemon.work().join(name);
    std::fs::write(at("a.rs"), "fn a() {}").unwrap();
    std::fs::write(at("b.png"), PNG).unwrap();
    let said =
        ctl_with(&daemon, &["prompt", "fix", "parts", "--file", "a.rs", "--image", "b.png", "--file", "-"], "typed")
            .await;
    assert_eq!(said.status, Some(0), "{said:#?}");
    let got: Value = serde_json::from_str(&said.out).unwrap();
    let uri = |name: &str| json!(format!("file://{}", at(name).display().to_string().replace(' ', "%20")));
    assert_eq!((&got[0]["resource"]["uri"], &got[0]["resource"]["text"]), (&uri("a.rs"), &json!(measure("fn a() {}"))));
    assert_eq!((&got[1]["resource"]["uri"], &got[1]["resource"]["text"]), (&json!("stdin:"), &json!(measure("typed"))));
    assert_eq!((&got[2]["uri"], &got[2]["mimeType"]), (&uri("b.png"), &json!("image/png")));
    let said = ctl(&daemon, &["prompt", "fix", "parts", "--image", "a.rs"]).await;
    assert!(said.status == Some(2) && said.err.contains("is no image"), "{said:#?}");
    let command = daemon.scripted(&["--content"]).command.unwrap();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let run = [&["run", "--rm", "--prompt", "parts", "--file", "a.rs", "--"][..], &command].concat();
    let said = ctl(&daemon, &run).await;
    assert!(said.status == Some(0) && said.out.contains(&measure("fn a() {}")), "{said:#?}");
}

#[tokio::test]
async fn at_a_terminal_a_word_with_an_at_sign_gives_its_file() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&spec(&daemon, &["--content"])).await;
    std::fs::write(daemon.work().join("notes.txt"), "noted").unwrap();
    let mut terminal = Terminal::run(&agentctl(&daemon, &["attach", "fix"]), 100);
    terminal.shows("ready").await;
    terminal.types("say read @notes.txt, please\r");
    terminal.shows("read @notes.txt, please\r\n").await;
    terminal.types("\u{4}");
    terminal.ends().await;
    let queued = session.journal().into_iter().find_map(|event| match event.body {
        Body::TurnQueued(queued) => Some(queued),
        _ => None,
    });
    assert_eq!(queued.unwrap().parts[0].content(), Some("noted"));
}
