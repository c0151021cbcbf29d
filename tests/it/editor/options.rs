//! Modes, models and options in an editor.

use serde_json::{Value, json};

use super::Editor;
use crate::harness::Daemon;

async fn opened(editor: &mut Editor, daemon: &Daemon) -> (String, Value) {
    let answer = editor.ask("session/new", json!({ "cwd": daemon.work(), "mcpServers": [] })).await;
    let id = answer["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    (id, answer["result"].clone())
}

#[tokio::test]
async fn an_editor_sees_and_changes_the_mode_and_an_opened_session_has_the_change() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::with_agent(&daemon, &["--modes"]).await;
    let (id, result) = opened(&mut editor, &daemon).await;
    assert_eq!(
        (&result["modes"]["currentModeId"], &result["models"]["currentModelId"]),
        (&json!("ask"), &json!("small"))
    );
    let set = editor.ask("session/set_mode", json!({ "sessionId": id, "modeId": "plan" })).await;
    assert_eq!(set["result"], json!({}), "{set}");
    let refused = editor.ask("session/set_mode", json!({ "sessionId": id, "modeId": "moon" })).await;
    assert!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("moon")), "{refused}");
    editor.turn(&id, "options").await;
    assert_eq!(editor.texts(), [r#"{"mode":"plan"}"#]);
    // A change by another client reaches the editor.
    daemon.client.patch(&format!("/v1/sessions/{id}"), &json!({ "mode": "code" }), None).await.expect::<Value>(200);
    editor.update("the other mode", |update| update["currentModeId"] == "code").await;
    let resumed = editor.reopen(&daemon, "session/resume", &id).await;
    assert_eq!(resumed["result"]["modes"]["currentModeId"], "code", "{resumed}");
}

#[tokio::test]
async fn an_editor_changes_options_and_gets_all_of_them_back() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::with_agent(&daemon, &["--options"]).await;
    let (id, result) = opened(&mut editor, &daemon).await;
    let model = |options: &Value| {
        let mut options = options.as_array().expect("a list").iter();
        options.find(|option| option["id"] == "llm").expect("it is offered")["currentValue"].clone()
    };
    assert_eq!(model(&result["configOptions"]), "small-1");
    let set = json!({ "sessionId": id, "configId": "llm", "value": "large-2" });
    let answer = editor.ask("session/set_config_option", set).await;
    assert_eq!(model(&answer["result"]["configOptions"]), "large-2", "{answer}");
    editor.turn(&id, "options").await;
    assert!(editor.texts().concat().contains(r#""llm":"large-2""#));
}
