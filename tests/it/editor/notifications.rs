//! Notifications of the agent besides its updates: those of extensions, and the end of a question's page.

use serde_json::{Value, json};

use super::{Editor, handle};
use crate::harness::Daemon;

fn methods<'a>(messages: &'a [Value], begin: &str) -> Vec<&'a Value> {
    let begins = |message: &&Value| message["method"].as_str().is_some_and(|method| method.starts_with(begin));
    messages.iter().filter(begins).collect()
}

#[tokio::test]
async fn an_extension_of_the_agent_reaches_each_editor_that_is_there() {
    let daemon = Daemon::start().await;
    let (mut one, mut two) = (Editor::start(&daemon).await, Editor::named(&daemon, "two", &[]).await);
    let id = one.open(&daemon).await;
    two.reopen(&daemon, "session/resume", &id).await;
    let said =
        "notify _mine/moon {\"sessionId\":\"\",\"phase\":[1]}\nnotify _mine/sun {\"up\":true}\nnotify mine/rain {}";
    let ended = one.turn(&id, &format!("{said}\nsay done")).await;
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
    two.update("the turn's text", |update| update["content"]["text"] == "done").await;
    for editor in [&one, &two] {
        let got = methods(&editor.past, "_mine/");
        assert_eq!(got.len(), 2, "{got:?}");
        assert_eq!(
            (&got[0]["method"], &got[0]["params"]),
            (&json!("_mine/moon"), &json!({ "sessionId": id, "phase": [1] }))
        );
        assert_eq!((&got[1]["method"], &got[1]["params"]), (&json!("_mine/sun"), &json!({ "up": true })));
        assert_eq!(methods(&editor.past, "mine/"), Vec::<&Value>::new());
    }
    // The journal keeps all notifications, and a replay has only the updates.
    let journal = std::fs::read_to_string(handle(&daemon, &id).directory().join("journal.jsonl")).unwrap();
    assert!(journal.contains("\"_mine/moon\"") && journal.contains("\"mine/rain\""));
    one.past.clear();
    let loaded = one.reopen(&daemon, "session/load", &id).await;
    assert!(loaded["result"].is_object() && methods(&one.past, "_mine/").is_empty(), "{:#?}", one.past);
    assert_eq!(one.texts(), ["done"]);
}

#[tokio::test]
async fn the_end_of_a_page_reaches_the_editors_that_showed_the_page() {
    let daemon = Daemon::start().await;
    let mut plain = Editor::start(&daemon).await;
    let id = plain.open(&daemon).await;
    let mut rich = Editor::named(&daemon, "rich", &[]).await;
    let hello = json!({ "protocolVersion": 1, "clientCapabilities": { "elicitation": { "url": {} } } });
    rich.ask("initialize", hello).await;
    rich.reopen(&daemon, "session/resume", &id).await;
    let page = json!({ "mode": "url", "message": "Log in", "elicitationId": "e1", "url": "https://h/login" });
    let complete = |id: &str| format!("notify elicitation/complete {{\"elicitationId\":\"{id}\"}}");
    let prompt = plain.prompt(&id, &format!("{}\nelicit {page}\n{}\nsay done", complete("e0"), complete("e1"))).await;
    let question = rich.message("the page", |message| message["method"] == "elicitation/create").await;
    assert_eq!(question["params"]["elicitationId"], "e1", "{question}");
    rich.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept" } })).await;
    let ended = plain.response(prompt).await;
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
    rich.update("the turn's text", |update| update["content"]["text"] == "done").await;
    let completed = methods(&rich.past, "elicitation/complete");
    assert_eq!(completed.len(), 1, "{completed:?}");
    assert_eq!(completed[0]["params"], json!({ "elicitationId": "e1" }));
    assert_eq!(methods(&plain.past, "elicitation/"), Vec::<&Value>::new());
}
