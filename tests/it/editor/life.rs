//! The life of a session in an editor: opened, prompted, cancelled, listed, closed and deleted.

use std::fs;
use std::time::Duration;

use agentd_api::session::{Phase, WholeList};
use serde_json::json;
use tokio::net::TcpSocket;

use super::{Editor, chunks, exists, handle};
use crate::harness::{Daemon, within};

#[tokio::test]
async fn an_editor_opens_prompts_lists_closes_and_deletes_a_session() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    let ended = editor.turn(&id, "say hello\ntokens 7").await;
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
    assert_eq!(ended["result"]["usage"]["totalTokens"], 7, "the agent's answer is passed on whole: {ended}");
    assert_eq!(chunks(&editor.past, "agent_message_chunk")[0].0, "hello");
    assert!(chunks(&editor.past, "user_message_chunk").is_empty(), "the editor shows its own prompts itself");
    assert!(editor.past.iter().all(|message| message["params"]["sessionId"] == *id), "{:#?}", editor.past);

    let list = editor.ask("session/list", json!({ "cwd": daemon.work() })).await;
    let info = &list["result"]["sessions"][0];
    assert_eq!((&info["sessionId"], &info["title"]), (&json!(id), &json!("say hello")), "{list}");
    assert_eq!(info["cwd"], json!(daemon.work()));
    let elsewhere = editor.ask("session/list", json!({ "cwd": daemon.home() })).await;
    assert_eq!(elsewhere["result"]["sessions"], json!([]));

    let closed = editor.ask("session/close", json!({ "sessionId": id })).await;
    assert_eq!(closed["result"], json!({}));
    assert_eq!(handle(&daemon, &id).view().await.status.phase, Phase::Idle, "a closed session continues");
    assert_eq!(editor.turn(&id, "say x").await["error"]["code"], -32002);
    for _ in 0..2 {
        let deleted = editor.ask("session/delete", json!({ "sessionId": id })).await;
        assert_eq!(deleted["result"], json!({}), "also if it is gone");
    }
    assert!(!exists(&daemon, &id).await);
    assert_eq!(editor.leave().await, Some(0));
}

#[tokio::test]
async fn an_image_and_a_file_of_an_editor_reach_the_agent() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::with_agent(&daemon, &["--content"]).await;
    let id = editor.open(&daemon).await;
    let image = json!({ "type": "image", "data": "QUJD".repeat(5000), "mimeType": "image/png" });
    let file = json!({ "type": "resource", "resource": { "uri": "file:///a.rs", "text": "fn a() {}" } });
    let blocks = json!([{ "type": "text", "text": "parts" }, image, file]);
    let ended = editor.ask("session/prompt", json!({ "sessionId": id, "prompt": blocks })).await;
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
    let got: serde_json::Value = serde_json::from_str(&editor.texts().concat()).unwrap();
    assert_eq!((&got[0]["type"], &got[0]["data"]), (&json!("image"), &json!("20000:1540000")));
    assert_eq!(got[1]["resource"]["uri"], "file:///a.rs");
}

#[tokio::test]
async fn prompts_are_queued_and_cancelled_as_the_protocol_says() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    let (first, second) = (editor.prompt(&id, "hang").await, editor.prompt(&id, "say two").await);
    handle(&daemon, &id).wait_for("both", |view| view.status.queue.len() == 1).await;
    editor.notify("session/cancel", json!({ "sessionId": id })).await;
    for prompt in [first, second] {
        assert_eq!(editor.response(prompt).await["result"]["stopReason"], "cancelled");
    }
    let third = editor.prompt(&id, "hang").await;
    handle(&daemon, &id).wait_for_phase(Phase::Busy).await;
    editor.notify("$/cancel_request", json!({ "requestId": third })).await;
    assert_eq!(editor.response(third).await["result"]["stopReason"], "cancelled");
    assert_eq!(editor.turn(&id, "say four").await["result"]["stopReason"], "end_turn");
    assert_eq!(editor.texts(), ["four"]);
}

#[tokio::test]
async fn a_stopped_session_is_started_by_the_next_prompt_and_by_opening_it() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    editor.turn(&id, "say one").await;
    let session = handle(&daemon, &id);
    session.stop().await;
    assert_eq!(editor.turn(&id, "say two").await["result"]["stopReason"], "end_turn");
    session.stop().await;
    editor.past.clear();
    let loaded = editor.reopen(&daemon, "session/load", &id).await;
    assert!(loaded["result"].is_object(), "{loaded}");
    assert_eq!(editor.texts(), ["one", "two"]);
    assert_eq!(session.view().await.status.phase, Phase::Idle);
    // A session of the command line is one of the editor's too.
    let other = daemon.session(&daemon.scripted(&[])).await;
    other.turn("say three").await;
    editor.reopen(&daemon, "session/load", other.id.as_str()).await;
    assert_eq!(editor.texts(), ["three"]);
}

#[tokio::test]
async fn a_failed_launch_is_a_message_in_the_editor_and_leaves_no_session() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        format!(
            "{config}\n[prerequisites.licence]\nplugin = \"tcp\"\nremedy = \"start the licence server\"\n\
             settings = {{ host = \"127.0.0.1\", port = 1 }}\n"
        )
    });
    daemon.run().await;
    let mut editor = Editor::named(&daemon, "test", &["--require", "licence"]).await;
    let refused = editor.ask("session/new", json!({ "cwd": daemon.work(), "mcpServers": [] })).await;
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("licence") && message.contains("start the licence server"), "{refused}");
    let list = editor.ask("session/list", json!({})).await;
    assert_eq!(list["result"]["sessions"], json!([]), "{list}");
    let mut forced = Editor::named(&daemon, "test", &["--require", "licence", "--force"]).await;
    forced.open(&daemon).await;

    let gone = daemon.root().join("gone");
    let refused = editor.ask("session/new", json!({ "cwd": gone, "mcpServers": [] })).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    fs::create_dir(&gone).unwrap();
    let id = forced.open(&daemon).await;
    let wrong = json!({ "sessionId": id, "cwd": gone, "mcpServers": [] });
    let refused = forced.ask("session/load", wrong).await;
    assert!(refused["error"]["message"].as_str().unwrap_or_default().contains("open it there"), "{refused}");
}

#[tokio::test]
async fn a_launch_that_waits_for_a_prerequisite_answers_when_it_is_met() {
    // Connections to a port that is bound and does not listen are refused, and no other test gets the port.
    let server = TcpSocket::new_v4().unwrap();
    server.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let port = server.local_addr().unwrap().port();
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        format!(
            "{config}\n[prerequisites.licence]\nplugin = \"tcp\"\ninterval = \"200ms\"\n\
             settings = {{ host = \"127.0.0.1\", port = {port} }}\n\
             [prerequisites.never]\nplugin = \"tcp\"\nsettings = {{ host = \"127.0.0.1\", port = 1 }}\n"
        )
    });
    daemon.run().await;
    let mut editor = Editor::named(&daemon, "test", &["--require", "licence", "--wait=3m"]).await;
    let new = editor.request("session/new", json!({ "cwd": daemon.work(), "mcpServers": [] })).await;
    let waiting = |list: &WholeList| list.sessions.iter().any(|view| view.status.phase == Phase::Waiting);
    until_listed(&daemon, waiting).await;
    assert!(editor.past.is_empty(), "{:#?}", editor.past);
    let server = server.listen(16).unwrap();
    let id = editor.response(new).await["result"]["sessionId"].as_str().expect("it is open").to_owned();
    assert_eq!(editor.turn(&id, "say on").await["result"]["stopReason"], "end_turn");
    drop(server);

    // A request that is withdrawn leaves no session.
    let mut editor = Editor::named(&daemon, "test", &["--require", "never", "--wait=3m"]).await;
    let new = editor.request("session/new", json!({ "cwd": daemon.work(), "mcpServers": [] })).await;
    until_listed(&daemon, waiting).await;
    editor.notify("$/cancel_request", json!({ "requestId": new })).await;
    assert_eq!(editor.response(new).await["error"]["code"], -32800);
    until_listed(&daemon, |list| list.sessions.len() == 1).await;
}

/// Polls until the list of sessions satisfies `good`.
async fn until_listed(daemon: &Daemon, good: impl Fn(&WholeList) -> bool) {
    within("the list of sessions", async {
        while !good(&daemon.client.get("/v1/sessions?fields=*").await.expect(200)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
