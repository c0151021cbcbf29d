//! Hostile and broken input: each line has one answer, and the next line is served.

use serde_json::{Value, json};

use super::Editor;
use crate::harness::Daemon;

#[tokio::test]
async fn broken_lines_are_answered_by_their_fault_and_the_next_line_is_served() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::bare(&daemon, &[]);
    let big = format!(r#"{{"jsonrpc":"2.0","id":"big","method":"x","params":{{"text":"{}"}}}}"#, "x".repeat(20 << 20));
    let too_big = "x".repeat((64 << 20) + 1);
    for (line, id, code) in [
        (&b"hello"[..], json!(null), -32700),
        (b"\xff\xfe\x00", json!(null), -32700),
        (b"[]", json!(null), -32600),
        (b"{}", json!(null), -32600),
        (br#"{"jsonrpc":"2.0","id":{},"method":"x"}"#, json!(null), -32600),
        (br#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, json!(null), -32601),
        (br#"{"jsonrpc":"2.0","id":"a","method":"x"}"#, json!("a"), -32601),
        (br#"{"jsonrpc":"2.0","id":1.5,"method":"x"}"#, json!(1.5), -32601),
        (br#"{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"protocolVersion":"x"}}"#, json!(2), -32602),
        (br#"{"jsonrpc":"2.0","id":2,"method":"initialize","params":{}}"#, json!(2), -32602),
        (br#"{"jsonrpc":"2.0","id":2,"method":"initialize","params":[1]}"#, json!(2), -32602),
        (br#"{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"src"}}"#, json!(2), -32602),
        (br#"{"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}"#, json!(2), -32602),
        (br#"{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":7}}"#, json!(2), -32602),
        (br#"{"jsonrpc":"2.0","id":2,"method":"session/new"}"#, json!(2), -32602),
        (
            br#"{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/","additionalDirectories":["/a"]}}"#,
            json!(2),
            -32602,
        ),
        (br#"{"jsonrpc":"2.0","id":2,"method":"session/load","params":{"cwd":"/"}}"#, json!(2), -32602),
        (
            br#"{"jsonrpc":"2.0","id":2,"method":"session/load","params":{"cwd":"/","sessionId":"no"}}"#,
            json!(2),
            -32002,
        ),
        (
            br#"{"jsonrpc":"2.0","id":2,"method":"session/load","params":{"cwd":"/","sessionId":"../../etc"}}"#,
            json!(2),
            -32602,
        ),
        (br#"{"jsonrpc":"2.0","id":2,"method":"session/list","params":{"cursor":"x"}}"#, json!(2), -32602),
        (br#"{"jsonrpc":"2.0","id":2,"method":"session/list","params":{"cwd":"x"}}"#, json!(2), -32602),
        (br#"{"jsonrpc":"2.0","id":2,"method":"session/close","params":{"sessionId":"no"}}"#, json!(2), -32002),
        (
            br#"{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"no","prompt":[]}}"#,
            json!(2),
            -32002,
        ),
        (
            br#"{"jsonrpc":"2.0","id":2,"method":"session/set_mode","params":{"sessionId":"no","modeId":"m"}}"#,
            json!(2),
            -32002,
        ),
        (big.as_bytes(), json!("big"), -32601),
        (too_big.as_bytes(), json!(null), -32600),
    ] {
        let shown = String::from_utf8_lossy(&line[..line.len().min(100)]).into_owned();
        editor.send_line(line).await;
        let answer = editor.message("an answer", |_| true).await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(code)), "{shown}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
    }
    // Notifications and stray responses have no answer.
    editor.notify("moon/rise", json!({})).await;
    editor.notify("session/cancel", json!({ "sessionId": "no" })).await;
    editor.notify("$/cancel_request", json!({ "requestId": 7 })).await;
    editor.send(&json!({ "jsonrpc": "2.0", "id": 99, "result": {} })).await;
    editor.send(&json!({ "jsonrpc": "2.0", "id": "x", "error": null })).await;
    // Another version gets version 1.
    let answer = editor.ask("initialize", json!({ "protocolVersion": 2 })).await;
    assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
    assert!(editor.past.is_empty(), "{:#?}", editor.past);
    let id = editor.open(&daemon).await;
    assert_eq!(editor.turn(&id, "say still here").await["result"]["stopReason"], "end_turn");
}

#[tokio::test]
async fn a_prompt_that_would_lose_something_is_refused_and_a_session_serves_the_next() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    let image = json!([{ "type": "image", "data": "?", "mimeType": "image/png" }]);
    for (prompt, what) in [(image, "not base64"), (json!([]), "empty"), (json!([{ "type": "text" }]), "not valid")] {
        let refused = editor.ask("session/prompt", json!({ "sessionId": id, "prompt": prompt })).await;
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(refused["error"]["code"] == -32602 && message.contains(what), "{refused}");
    }
    let refused = editor.ask("session/prompt", json!({ "sessionId": id, "prompt": "text" })).await;
    assert_eq!(refused["error"]["code"], -32602);
    let blocks = json!([
        { "type": "text", "text": "blocks" },
        { "type": "resource_link", "name": "a.rs", "uri": "file:///a.rs" },
    ]);
    let ended = editor.ask("session/prompt", json!({ "sessionId": id, "prompt": blocks })).await;
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
    assert_eq!(editor.texts(), ["blocks[a.rs](file:///a.rs)"]);
    for (method, params) in [
        ("session/set_mode", json!({ "sessionId": id, "modeId": "m" })),
        ("session/set_config_option", json!({ "sessionId": id, "configId": "o", "value": 7 })),
        ("session/set_config_option", json!({ "sessionId": id, "configId": "o", "value": "v" })),
    ] {
        let refused = editor.ask(method, params).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
}

#[tokio::test]
async fn without_a_daemon_the_editor_is_told_why() {
    let daemon = Daemon::prepare();
    let mut editor = Editor::start(&daemon).await;
    let refused = editor.ask("session/new", json!({ "cwd": daemon.work(), "mcpServers": [] })).await;
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("cannot reach agentd") && message.contains("hint: "), "{refused}");
    assert_eq!(editor.past, Vec::<Value>::new());
    assert_eq!(editor.leave().await, Some(0));
}
