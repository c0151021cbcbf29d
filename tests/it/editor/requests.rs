//! Requests of an agent that only an editor can carry out.

use agentd_api::Code;
use agentd_api::event::Body;
use serde_json::{Value, json};

use super::{Editor, daemon_with, handle};
use crate::harness::{Daemon, Session};

const READ: &str = r#"request fs/read_text_file {"path":"/src/a.rs","line":2}"#;
const WRITE: &str = r#"request fs/write_text_file {"path":"/src/a.rs","content":"x"}"#;
const CREATE: &str = r#"request terminal/create {"command":"make"}"#;

/// Starts a daemon whose agent `mine` may make these requests.
async fn daemon(tools: &str) -> Daemon {
    daemon_with(&format!("editor = {tools}"), "").await
}

fn everything() -> Value {
    json!({ "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true })
}

/// Returns what the agent was offered.
fn offered(session: &Session) -> Value {
    let sent =
        |body| if let Body::AgentIn(line) = body { serde_json::from_str::<Value>(line.get()).ok() } else { None };
    let sent = session.journal().into_iter().filter_map(|event| sent(event.body));
    let hello = sent.into_iter().find(|message| message["method"] == "initialize").unwrap();
    let offered = &hello["params"]["clientCapabilities"];
    json!([offered["fs"]["readTextFile"] == true, offered["fs"]["writeTextFile"] == true, offered["terminal"] == true])
}

/// Answers the agent's request in the editor, and returns its parameters.
async fn answer(editor: &mut Editor, method: &str, result: Value) -> Value {
    let request = editor.message(method, |message| message["method"] == method).await;
    editor.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })).await;
    request["params"].clone()
}

#[tokio::test]
async fn an_editor_reads_writes_and_runs_what_the_configuration_has() {
    let daemon = daemon("[\"fs\", \"terminal\"]").await;
    let mut editor = Editor::of_agent(&daemon, "mine", everything()).await;
    let id = editor.open(&daemon).await;
    assert_eq!(offered(&handle(&daemon, &id)), json!([true, true, true]));
    for (prompt, method, result, params) in [
        (READ, "fs/read_text_file", json!({ "content": "unsaved" }), json!({ "path": "/src/a.rs", "line": 2 })),
        (WRITE, "fs/write_text_file", json!({}), json!({ "path": "/src/a.rs", "content": "x" })),
        (CREATE, "terminal/create", json!({ "terminalId": "t" }), json!({ "command": "make" })),
    ] {
        let turn = editor.prompt(&id, prompt).await;
        let mut got = answer(&mut editor, method, result.clone()).await;
        assert_eq!(got["sessionId"], json!(id), "the session's own id");
        got.as_object_mut().unwrap().remove("sessionId");
        assert_eq!(got, params);
        assert_eq!(editor.response(turn).await["result"]["stopReason"], "end_turn");
        assert_eq!(editor.texts(), [result.to_string()]);
    }

    // The first answer of two editors counts, and the other editor's request is withdrawn.
    let mut other = Editor::of_agent(&daemon, "mine", everything()).await;
    other.reopen(&daemon, "session/load", &id).await;
    let turn = editor.prompt(&id, READ).await;
    let request = other.message("the request", |message| message["method"] == "fs/read_text_file").await;
    answer(&mut editor, "fs/read_text_file", json!({ "content": "first" })).await;
    assert_eq!(editor.response(turn).await["result"]["stopReason"], "end_turn");
    let withdrawn =
        |message: &Value| message["method"] == "$/cancel_request" && message["params"]["requestId"] == request["id"];
    other.message("the withdrawal", withdrawn).await;

    // An error of the editor is the answer too.
    let turn = editor.prompt(&id, READ).await;
    let request = editor.message("the request", |message| message["method"] == "fs/read_text_file").await;
    let error = json!({ "code": -32002, "message": "no such file" });
    editor.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "error": error })).await;
    assert_eq!(editor.response(turn).await["result"]["stopReason"], "end_turn");
    assert_eq!(editor.texts(), [r#"{"content":"first"}"#, "code -32002"]);
}

#[tokio::test]
async fn what_the_configuration_does_not_have_is_neither_offered_nor_passed_on() {
    for (tools, offers, refused) in [
        ("[]", json!([false, false, false]), &[READ, WRITE, CREATE][..]),
        ("[\"fs\"]", json!([true, true, false]), &[CREATE][..]),
    ] {
        let daemon = daemon(tools).await;
        let mut editor = Editor::of_agent(&daemon, "mine", everything()).await;
        let id = editor.open(&daemon).await;
        let session = handle(&daemon, &id);
        assert_eq!(offered(&session), offers);
        for prompt in refused {
            assert_eq!(session.turn(prompt).await.text, "code -32601", "{tools} {prompt}");
        }
        let body = json!({ "id": "scripted-0", "result": {} });
        assert_eq!(session.post("/requests", &body).await.problem().code, Code::NoSuchRequest);
        assert!(editor.past.iter().all(|message| message["method"] != "terminal/create"), "{:?}", editor.past);
    }
}

#[tokio::test]
async fn a_request_waits_for_an_editor_that_comes_back() {
    let daemon = daemon("[\"fs\"]").await;
    let mut editor = Editor::of_agent(&daemon, "mine", everything()).await;
    let id = editor.open(&daemon).await;
    editor.prompt(&id, READ).await;
    editor.message("the request", |message| message["method"] == "fs/read_text_file").await;
    editor.leave().await;

    // An editor without files is not asked.
    let mut plain = Editor::of_agent(&daemon, "mine", json!({})).await;
    plain.reopen(&daemon, "session/load", &id).await;
    let mut again = Editor::of_agent(&daemon, "mine", everything()).await;
    again.reopen(&daemon, "session/load", &id).await;
    answer(&mut again, "fs/read_text_file", json!({ "content": "later" })).await;
    again.update("the answer", |update| update["content"]["text"] == r#"{"content":"later"}"#).await;
    assert!(plain.past.iter().all(|message| message["method"] != "fs/read_text_file"), "{:?}", plain.past);
}
