//! Transcripts of other agents: the journal keeps them word for word, and clients get every field.
//!
//! `tests/fixtures/transcripts` has the messages of five agents in ten scenes: a shell command with a permission
//! request, and a call of an MCP server. They were recorded in the lives of `known.rs`. Names, descriptions and
//! answers are replaced by words, and lists are cut.

use std::path::{Path, PathBuf};

use agentd_api::event::{AnsweredBy, Body};
use agentd_api::session::{PermissionPolicy, SessionSpec};
use serde_json::Value;

use crate::editor::Editor;
use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session, paths, scripted_agent, session};

fn transcripts() -> Vec<PathBuf> {
    let directory = paths::checkout().join("tests/fixtures/transcripts");
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn messages(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn is_response(message: &Value) -> bool {
    message.get("method").is_none()
}

/// Returns the updates of a session, without the fields that belong to the client.
fn updates(messages: &[Value]) -> Vec<Value> {
    let updates = messages.iter().filter(|message| message["method"] == "session/update");
    let without = |params: &Value| {
        let mut params = params.clone();
        params["sessionId"].take();
        if let Some(meta) = params.get_mut("_meta").and_then(Value::as_object_mut) {
            meta.remove("agentd");
            if meta.is_empty() {
                params.as_object_mut().unwrap().remove("_meta");
            }
        }
        params
    };
    updates.map(|message| without(&message["params"])).collect()
}

/// Runs the whole transcript in a session.
async fn run(daemon: &Daemon, file: &Path, written: &[Value]) -> Session {
    let command = vec![scripted_agent().display().to_string(), "transcript".to_owned(), file.display().to_string()];
    let spec = SessionSpec { permissions: PermissionPolicy::Allow, ..session::spec(daemon.work(), command) };
    let session = daemon.session(&spec).await;
    // The first two responses answer `initialize` and `session/new`.
    let turns = written.iter().filter(|message| is_response(message)).count() - 2;
    assert!(turns > 0);
    for _ in 0..turns {
        assert_eq!(session.turn("do it").await.ended.stop_reason.as_deref(), Some("end_turn"), "{}", file.display());
    }
    session
}

#[tokio::test]
async fn ten_transcripts_are_kept_and_passed_on_without_loss() {
    let daemon = Daemon::start().await;
    let files = transcripts();
    assert_eq!(files.len(), 10, "{files:?}");
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let written = messages(&file);
        let session = run(&daemon, &file, &written).await;

        // Every message is in the journal. Only the ids of responses are those of agentd's requests.
        let out =
            |body| if let Body::AgentOut(line) = body { serde_json::from_str::<Value>(line.get()).ok() } else { None };
        let kept: Vec<Value> = session.journal().into_iter().filter_map(|event| out(event.body)).collect();
        let without_id = |message: &Value| {
            let mut message = message.clone();
            if is_response(&message) {
                message["id"].take();
            }
            message
        };
        let [kept, written] = [kept, written].map(|all| all.iter().map(without_id).collect::<Vec<_>>());
        assert_eq!(kept, written, "{name}");
        let unusual =
            |body: &Body| matches!(body, Body::AgentNoise(_) | Body::AgentDropped(_) | Body::AgentUnusable(_));
        assert!(session.journal().iter().all(|event| !unusual(&event.body)), "{name}");

        let is_allowed = |body: &Body| !matches!(body, Body::PermissionResolved(done) if done.by != AnsweredBy::Policy);
        assert!(session.journal().iter().all(|event| is_allowed(&event.body)), "{name}");

        // An editor gets each update, with its unknown fields.
        let mut editor = Editor::start(&daemon).await;
        let loaded = editor.reopen(&daemon, "session/load", session.id.as_str()).await;
        assert!(loaded["error"].is_null(), "{name}: {loaded}");
        let own = |update: &Value| {
            let kind = update["update"]["sessionUpdate"].as_str().unwrap_or_default();
            // agentd adds the prompt, and gives the present commands again.
            kind != "user_message_chunk" && kind != "available_commands_update"
        };
        let [shown, said] =
            [updates(&editor.past), updates(&written)].map(|all| all.into_iter().filter(own).collect::<Vec<_>>());
        assert_eq!(shown, said, "{name}");
        editor.leave().await;

        // A person sees what the tool printed.
        let (status, out, err) = ctl(&daemon, &["attach", session.id.as_str(), "--from-start"]).await.parts();
        let text = out + &err;
        let (tool, answer) =
            if name.ends_with("shell") { ("quince", "the tool ran") } else { ("plum", "the tool ran") };
        // Copilot ignores the server, and gemini's updates have no output of its shell (known.rs).
        let is_silent = ["copilot-server", "gemini-shell"].contains(&name);
        let has_line = |word: &str| text.lines().any(|line| line.contains(word) && !line.contains("echo"));
        assert!(status == Some(0) && has_line(answer), "{name}: {text}");
        assert_eq!(has_line(tool), !is_silent, "{name}: {text}");
        session.stop().await;
    }
}
