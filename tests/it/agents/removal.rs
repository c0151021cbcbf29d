//! The agent's own copy of a conversation, when its session is deleted.

use std::path::PathBuf;

use agentd_api::session::SessionSpec;
use serde_json::json;

use crate::editor::Editor;
use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session, process};

/// Returns the file in which the scripted agent keeps the session's conversation.
async fn file(daemon: &Daemon, session: &Session) -> PathBuf {
    let conversation = session.view().await.status.conversation.expect("it has a conversation");
    let file = daemon.root().join(format!("{conversation}.json"));
    assert!(file.exists(), "{}", file.display());
    file
}

async fn rm(daemon: &Daemon, session: &Session, more: &[&str]) -> (Option<i32>, String) {
    let (status, _, err) = ctl(daemon, &[&["rm", session.id.as_str()], more].concat()).await.parts();
    (status, err)
}

#[tokio::test]
async fn the_agent_deletes_its_conversation_with_the_session() {
    let daemon = Daemon::start().await;
    let deletes = daemon.scripted(&["--delete"]);
    for is_active in [false, true] {
        let session = daemon.session(&deletes).await;
        session.turn("say hello").await;
        let file = file(&daemon, &session).await;
        if !is_active {
            session.stop().await;
        }
        if is_active {
            let (status, err) = rm(&daemon, &session, &[]).await;
            assert!(status == Some(4) && file.exists(), "a refused removal deletes nothing: {err}");
        }
        let (status, err) = rm(&daemon, &session, &["--force"]).await;
        assert!(status == Some(0) && err.contains("has deleted its conversation"), "{err}");
        assert!(!file.exists());
    }
    process::assert_only(&[daemon.pid()], daemon.root(), "an agent is left");
}

#[tokio::test]
async fn a_conversation_stays_that_is_wanted_or_that_the_agent_cannot_delete() {
    let daemon = Daemon::start().await;
    let deletes = daemon.scripted(&["--delete"]);
    let kept = daemon.session(&deletes).await;
    let of_kept = file(&daemon, &kept).await;
    kept.stop().await;
    assert_eq!(rm(&daemon, &kept, &["--keep-conversation"]).await, (Some(0), String::new()));
    assert!(of_kept.exists());

    // Another session continues the conversation.
    let first = daemon.session(&deletes).await;
    let shared = file(&daemon, &first).await;
    first.stop().await;
    let parent = Some(first.id.as_str().parse().unwrap());
    let second = daemon.session(&SessionSpec { parent, ..deletes.clone() }).await;
    second.stop().await;
    let (status, err) = rm(&daemon, &first, &[]).await;
    assert!(status == Some(0) && err.contains("another session has it too"), "{err}");
    assert!(shared.exists());
    let (status, err) = rm(&daemon, &second, &[]).await;
    assert!(status == Some(0) && err.contains("has deleted"), "{err}");
    assert!(!shared.exists());

    // The agent has nothing to delete, or fails.
    let lost = daemon.session(&deletes).await;
    std::fs::remove_file(file(&daemon, &lost).await).unwrap();
    let (status, err) = rm(&daemon, &lost, &["--force"]).await;
    assert!(status == Some(0) && err.contains("no such conversation"), "{err}");
    let directory = daemon.root().join("gone");
    std::fs::create_dir(&directory).unwrap();
    let gone = daemon.session(&SessionSpec { directory: directory.clone(), ..deletes.clone() }).await;
    gone.stop().await;
    std::fs::remove_dir(directory).unwrap();
    let (status, err) = rm(&daemon, &gone, &[]).await;
    assert!(status == Some(0) && err.contains("the agent keeps its conversation: "), "{err}");
    let cannot = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(rm(&daemon, &cannot, &["--force"]).await, (Some(0), String::new()));
}

#[tokio::test]
async fn the_place_of_a_known_agents_files_is_told() {
    let mut daemon = Daemon::prepare();
    let command = daemon.scripted(&[]).command.unwrap();
    let deleting = daemon.scripted(&["--delete", "--refuse", "session/delete", "-1", "not today"]).command.unwrap();
    let tables = format!(
        "[agents.plain]\nlike = \"codex\"\ncommand = {command:?}\n\n[agents.moved]\nlike = \"codex\"\n\
         command = {deleting:?}\nenv = {{ CODEX_HOME = \"/srv/codex\" }}\n"
    );
    daemon.configure(|config| format!("{config}\n{tables}"));
    daemon.run().await;
    for (agent, words) in [
        ("plain", format!("stay below {}: it offers no deletion", daemon.home().join(".codex").display())),
        ("moved", "stay below /srv/codex: the agent answered session/delete with an error: not today".to_owned()),
    ] {
        let spec = json!({ "directory": daemon.work(), "agent": agent });
        let session = daemon.session(&serde_json::from_value(spec).unwrap()).await;
        let (status, err) = rm(&daemon, &session, &["--force"]).await;
        assert!(status == Some(0) && err.contains(&words), "{words}: {err}");
    }
}

#[tokio::test]
async fn an_editor_that_deletes_a_session_deletes_the_conversation() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::with_agent(&daemon, &["--delete"]).await;
    let id = editor.open(&daemon).await;
    let file = file(&daemon, &crate::editor::handle(&daemon, &id)).await;
    let answer = editor.ask("session/delete", json!({ "sessionId": id })).await;
    assert!(answer["error"].is_null(), "{answer}");
    assert!(!file.exists());
    let answer = editor.ask("session/delete", json!({ "sessionId": id })).await;
    assert!(answer["error"].is_null(), "{answer}");
}
