//! Conversations that began outside of agentd.

use std::path::Path;

use agentd_api::Code;
use agentd_api::event::OpenedBy;
use agentd_api::session::{Phase, SessionView};
use agentd_api::{Body, Event};
use serde_json::{Value, json};

use crate::editor::{Editor, chunks, handle};
use crate::harness::ctl::ctl;
use crate::harness::session::update;
use crate::harness::{Daemon, process, scripted_agent};

/// Starts a daemon whose agent `mine` lists its conversations.
async fn daemon(flags: &[&str]) -> Daemon {
    let mut daemon = Daemon::prepare();
    let store = daemon.root().join("store");
    std::fs::create_dir(&store).unwrap();
    let (program, store) = (scripted_agent().display().to_string(), store.display().to_string());
    let command = [&[program.as_str(), "--store", store.as_str()], flags].concat();
    daemon.configure(|config| format!("{config}\n[agents.mine]\ncommand = {command:?}\n"));
    daemon.run().await;
    daemon
}

/// Writes a conversation as the agent in a terminal would.
fn write(daemon: &Daemon, id: &str, directory: &Path, said: &str) {
    let turns = json!([{ "role": "user", "text": format!("say {said}") }, { "role": "agent", "text": said }]);
    let file = daemon.root().join("store").join(format!("{id}.json"));
    std::fs::write(&file, turns.to_string()).unwrap();
    std::fs::write(file.with_extension("where"), directory.to_str().unwrap()).unwrap();
}

async fn adopt(daemon: &Daemon, words: &[&str]) -> (Option<i32>, String, String) {
    let work = daemon.work();
    let all = [&["adopt", "mine", "--dir", work.to_str().unwrap()], words].concat();
    ctl(daemon, &all).await.parts()
}

/// Returns the texts of the updates of this kind in the journal.
fn texts(events: &[Event], kind: &str) -> Vec<String> {
    let updates = events.iter().filter_map(update).filter(|update| update["sessionUpdate"] == kind);
    updates.map(|update| update["content"]["text"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn a_conversation_is_listed_and_continued_with_its_history() {
    let daemon = daemon(&["--list"]).await;
    write(&daemon, "talk-1", &daemon.work(), "hello");
    write(&daemon, "talk-2", &daemon.work(), "again");
    write(&daemon, "elsewhere", daemon.root(), "other");
    let (status, out, err) = adopt(&daemon, &[]).await;
    assert_eq!(status, Some(0), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines.len() == 3 && lines[1].starts_with("talk-1 ") && lines[2].starts_with("talk-2 "), "{out}");
    assert_eq!(adopt(&daemon, &["--all"]).await.1.lines().count(), 4);

    let (status, out, err) = adopt(&daemon, &["talk-1", "--name", "fix"]).await;
    assert!(status == Some(0) && err.contains("agentctl attach fix"), "{err}");
    let session = handle(&daemon, out.trim());
    let view = session.view().await;
    assert_eq!((view.status.phase, view.status.conversation.as_deref()), (Phase::Idle, Some("talk-1")));
    assert!(adopt(&daemon, &[]).await.1.lines().any(|line| line.starts_with("talk-1 ") && line.contains(" fix ")));
    assert_eq!(session.turn("remember").await.text, r#"["say hello"]"#);

    // The history is in the journal, once, and an editor and attach show it.
    session.stop().await;
    session.resume().await;
    assert_eq!(session.turn("say on").await.text, "on");
    let journal = session.journal();
    assert_eq!(texts(&journal, "user_message_chunk"), ["say hello"]);
    assert_eq!(texts(&journal, "agent_message_chunk")[..2], ["hello".to_owned(), r#"["say hello"]"#.to_owned()]);
    let opened =
        |event: &Event| if let Body::ConversationOpened(opened) = &event.body { Some(opened.by) } else { None };
    assert_eq!(journal.iter().filter_map(opened).collect::<Vec<_>>(), [OpenedBy::Load, OpenedBy::Load]);
    let mut editor = Editor::start(&daemon).await;
    editor.reopen(&daemon, "session/load", session.id.as_str()).await;
    let prompts: Vec<String> = chunks(&editor.past, "user_message_chunk").into_iter().map(|(text, _)| text).collect();
    assert_eq!(prompts, ["say hello", "remember", "say on"]);
    let (_, out, err) = ctl(&daemon, &["attach", "fix", "--from-start"]).await.parts();
    assert!(out.contains("hello") && err.contains("> say hello"), "{out}{err}");
}

#[tokio::test]
async fn what_cannot_be_adopted_is_refused() {
    let daemon = daemon(&["--list"]).await;
    write(&daemon, "talk-1", &daemon.work(), "hello");
    write(&daemon, "talk-2", &daemon.work(), "again");
    for (words, text) in [
        (&["nothing"][..], "mine has no conversation \"nothing\""),
        (&["talk"], "several conversations of mine begin with \"talk\""),
    ] {
        let (status, _, err) = adopt(&daemon, words).await;
        assert!(status == Some(2) && err.contains(text) && err.contains("hint: "), "{words:?}: {err}");
    }
    process::assert_only(&[daemon.pid()], daemon.root(), "an agent that only listed is left");
    let (status, out, err) = adopt(&daemon, &["talk-1"]).await;
    assert_eq!(status, Some(0), "{err}");
    let session = handle(&daemon, out.trim());
    session.stop().await;
    let (_, _, err) = adopt(&daemon, &["talk-1"]).await;
    assert!(err.contains("has this conversation already") && err.contains("agentctl resume"), "{err}");

    let spec = |more: Value| {
        let mut spec = json!({ "directory": daemon.work(), "agent": "mine", "conversation": "talk-2" });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    for more in [
        json!({ "conversation": "" }),
        json!({ "conversation": "a\u{7}" }),
        json!({ "conversation": "x".repeat(513) }),
        json!({ "workspace": "new", "directory": "" }),
        json!({ "parent": session.id }),
    ] {
        let response = daemon.client.post("/v1/sessions", &spec(more.clone())).await;
        assert_eq!(response.problem().code, Code::InvalidRequest, "{more}");
    }
    // The agent does not know it: the launch fails, and there is no blank conversation.
    let lost =
        daemon.client.post("/v1/sessions", &spec(json!({ "conversation": "lost" }))).await.expect::<SessionView>(202);
    let view = handle(&daemon, lost.id.as_str()).wait_for_phase(Phase::Failed).await;
    assert!(view.status.message.unwrap().contains("could not restore the conversation"));
}

#[tokio::test]
async fn an_agent_that_lists_nothing_continues_a_named_conversation() {
    let daemon = daemon(&["--resume", "--no-load"]).await;
    write(&daemon, "talk-1", &daemon.work(), "hello");
    let (status, _, err) = adopt(&daemon, &[]).await;
    assert!(status == Some(2) && err.contains("does not list its conversations"), "{err}");
    let (status, out, err) = adopt(&daemon, &["talk-1"]).await;
    assert_eq!(status, Some(0), "{err}");
    assert_eq!(handle(&daemon, out.trim()).turn("remember").await.text, r#"["say hello"]"#);
}
