//! Permission requests: every client is asked, and the first answer counts.

use std::fs;

use serde_json::{Value, json};

use super::{Editor, handle};
use crate::harness::Daemon;
use crate::harness::ctl::ctl;

async fn asked(editor: &mut Editor) -> Value {
    editor.message("a request", |message| message["method"] == "session/request_permission").await
}

async fn answer(editor: &mut Editor, request: &Value, outcome: Value) {
    let result = json!({ "outcome": outcome });
    editor.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })).await;
}

async fn withdrawn(editor: &mut Editor, request: &Value) {
    let message = editor.message("its withdrawal", |message| message["method"] == "$/cancel_request").await;
    assert_eq!(message["params"]["requestId"], request["id"]);
    // The editor's response to the withdrawn request has no effect.
    let error = json!({ "code": -32800, "message": "cancelled" });
    editor.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "error": error })).await;
}

#[tokio::test]
async fn two_editors_are_asked_and_the_first_answer_counts() {
    let daemon = Daemon::start().await;
    let mut one = Editor::start(&daemon).await;
    let id = one.open(&daemon).await;
    let mut two = Editor::named(&daemon, "two", &[]).await;
    two.reopen(&daemon, "session/resume", &id).await;
    let prompt = one.prompt(&id, "ask").await;
    let (first, second) = (asked(&mut one).await, asked(&mut two).await);
    assert_eq!(first["params"], second["params"]);
    assert_eq!(
        (&first["params"]["sessionId"], &first["params"]["toolCall"]["toolCallId"]),
        (&json!(id), &json!("asked"))
    );
    assert_eq!(first["params"]["options"].as_array().unwrap().len(), 4);
    answer(&mut two, &second, json!({ "outcome": "selected", "optionId": "yes-and-watch" })).await;
    withdrawn(&mut one, &first).await;
    assert_eq!(one.response(prompt).await["result"]["stopReason"], "end_turn");
    assert_eq!(one.texts(), ["chosen yes-and-watch"]);
    two.update("the answer", |update| update["content"]["text"] == "chosen yes-and-watch").await;
    assert!(two.past.iter().all(|message| message["method"] != "$/cancel_request"), "it has answered itself");
}

#[tokio::test]
async fn an_answer_at_a_terminal_withdraws_the_editors_question_and_an_open_one_is_found_again() {
    let mut daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    editor.prompt(&id, "ask").await;
    let request = asked(&mut editor).await;
    editor.kill9().await;
    daemon.kill9();
    daemon.run().await;

    let mut again = Editor::start(&daemon).await;
    again.reopen(&daemon, "session/load", &id).await;
    let found = asked(&mut again).await;
    assert_eq!(found["params"], request["params"]);
    let permission = handle(&daemon, &id).view().await.status.permissions[0].id.to_string();
    assert_eq!(ctl(&daemon, &["answer", &id, &permission, "deny"]).await.status, Some(0));
    withdrawn(&mut again, &found).await;
    again.update("the answer", |update| update["content"]["text"] == "chosen no").await;
}

#[tokio::test]
async fn an_editor_that_dismisses_a_question_denies_it_and_a_cancelled_turn_answers_it() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    let prompt = editor.prompt(&id, "ask").await;
    let request = asked(&mut editor).await;
    answer(&mut editor, &request, json!({ "outcome": "cancelled" })).await;
    editor.response(prompt).await;
    assert_eq!(editor.texts(), ["chosen no"]);

    let prompt = editor.prompt(&id, "ask").await;
    let request = asked(&mut editor).await;
    editor.notify("session/cancel", json!({ "sessionId": id })).await;
    answer(&mut editor, &request, json!({ "outcome": "cancelled" })).await;
    assert_eq!(editor.response(prompt).await["result"]["stopReason"], "cancelled");

    // An editor without questions leaves them to other clients.
    let prompt = editor.prompt(&id, "ask").await;
    let request = asked(&mut editor).await;
    let error = json!({ "code": -32601, "message": "no such method" });
    editor.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "error": error })).await;
    let permission = handle(&daemon, &id).view().await.status.permissions[0].id.to_string();
    assert_eq!(ctl(&daemon, &["answer", &id, &permission, "allow"]).await.status, Some(0));
    assert_eq!(editor.response(prompt).await["result"]["stopReason"], "end_turn");
}

#[tokio::test]
async fn the_question_about_a_stale_session_reaches_the_editor_that_opens_it() {
    let mut daemon = Daemon::prepare();
    let script = daemon.root().join("config/env-setup.sh");
    fs::write(&script, "export EDITOR=vi\n").unwrap();
    daemon.configure(|config| format!("{config}\n[staleness]\nscripts = \"ask\"\nenvironment = \"ignore\"\n"));
    daemon.run().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    editor.turn(&id, "say one").await;
    let session = handle(&daemon, &id);
    session.stop().await;
    fs::write(&script, "export EDITOR=ed\n").unwrap();
    editor.past.clear();
    let loaded = editor.reopen(&daemon, "session/load", &id).await;
    assert!(loaded["result"].is_object(), "the question needs an open session: {loaded}");
    let prompt = editor.prompt(&id, "say two").await;
    let question = asked(&mut editor).await;
    let title = question["params"]["toolCall"]["title"].as_str().unwrap_or_default();
    assert!(title.contains("env-setup.sh"), "{question}");
    answer(&mut editor, &question, json!({ "outcome": "selected", "optionId": "continue" })).await;
    assert_eq!(editor.response(prompt).await["result"]["stopReason"], "end_turn");
    assert_eq!(editor.texts(), ["one", "two"]);
}

#[tokio::test]
async fn an_editor_that_shows_forms_gets_them_and_another_gets_the_choices_as_options() {
    let daemon = Daemon::start().await;
    let mut plain = Editor::start(&daemon).await;
    let id = plain.open(&daemon).await;
    let mut rich = Editor::named(&daemon, "rich", &[]).await;
    let capabilities = json!({ "elicitation": { "form": {}, "url": {} } });
    let hello = json!({ "protocolVersion": 1, "clientCapabilities": capabilities });
    rich.ask("initialize", hello).await;
    rich.reopen(&daemon, "session/resume", &id).await;
    let question = json!({ "mode": "form", "message": "Which way?", "requestedSchema": {
        "type": "object", "required": ["way"],
        "properties": { "way": { "type": "string", "enum": ["left", "right"] } } } });
    for answered_by_form in [true, false] {
        let prompt = plain.prompt(&id, &format!("elicit {question}")).await;
        let options = asked(&mut plain).await;
        let form = rich.message("a form", |message| message["method"] == "elicitation/create").await;
        assert_eq!(form["params"]["requestedSchema"], question["requestedSchema"], "{form}");
        assert_eq!(form["params"]["sessionId"], json!(id));
        assert_eq!(options["params"]["options"][1]["name"], "right", "{options}");
        if answered_by_form {
            let result = json!({ "action": "accept", "content": { "way": "left" } });
            rich.send(&json!({ "jsonrpc": "2.0", "id": form["id"], "result": result })).await;
            withdrawn(&mut plain, &options).await;
        } else {
            answer(&mut plain, &options, json!({ "outcome": "selected", "optionId": "choice:2" })).await;
            withdrawn(&mut rich, &form).await;
        }
        plain.response(prompt).await;
    }
    let told = |way: &str| format!("told {}", json!({ "action": "accept", "content": { "way": way } }));
    assert_eq!(plain.texts(), [told("left"), told("right")]);
}
