//! Additional directories and MCP servers, which an editor gives to its sessions.

use std::fs;
use std::path::PathBuf;

use agentd_api::session::ConditionType;
use serde_json::{Value, json};

use super::{Editor, handle};
use crate::harness::Daemon;

const TAKING: &[&str] = &["--directories", "--mcp"];

fn made(daemon: &Daemon, name: &str) -> PathBuf {
    let path = daemon.work().parent().unwrap().join(name);
    fs::create_dir(&path).unwrap();
    path
}

/// Returns the JSON that the agent says to this prompt.
async fn said(editor: &mut Editor, session: &str, prompt: &str) -> Value {
    editor.past.clear();
    editor.turn(session, prompt).await;
    serde_json::from_str(&editor.texts().concat()).unwrap()
}

#[tokio::test]
async fn an_editor_names_additional_directories_and_others_later() {
    let daemon = Daemon::start().await;
    let (one, two) = (made(&daemon, "one"), made(&daemon, "two"));
    let link = daemon.work().parent().unwrap().join("link");
    std::os::unix::fs::symlink(&one, &link).unwrap();
    let mut editor = Editor::bare_of(&daemon, TAKING);
    let hello = editor.ask("initialize", json!({ "protocolVersion": 1 })).await;
    let offered = &hello["result"]["agentCapabilities"]["sessionCapabilities"]["additionalDirectories"];
    assert!(offered.is_object(), "{hello}");
    let open = |id: Option<&str>, further: &Value| {
        let mut params = json!({ "cwd": daemon.work(), "mcpServers": [], "additionalDirectories": further });
        if let Some(id) = id {
            params["sessionId"] = json!(id);
        }
        params
    };
    for wrong in [json!(["one"]), json!([daemon.root().join("gone")])] {
        let refused = editor.ask("session/new", open(None, &wrong)).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let opened = editor.ask("session/new", open(None, &json!([one, two]))).await;
    let id = opened["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{opened}")).to_owned();
    assert_eq!(said(&mut editor, &id, "opened").await, json!([daemon.work(), [one, two]]));
    let list = editor.ask("session/list", json!({})).await;
    assert_eq!(list["result"]["sessions"][0]["additionalDirectories"], json!([one, two]), "{list}");

    // The session keeps its directories if the list is empty, has another order, or names one by a link.
    let session = handle(&daemon, &id);
    for same in [json!(null), json!([]), json!([two, one]), json!([two, link])] {
        for method in ["session/load", "session/resume"] {
            let loaded = editor.ask(method, open(Some(&id), &same)).await;
            assert!(loaded["result"].is_object(), "{same}: {loaded}");
            assert_eq!(session.view().await.generation, 1, "{same}");
        }
    }
    // Others wait for the next launch of a running agent.
    let loaded = editor.ask("session/load", open(Some(&id), &json!([two]))).await;
    assert!(loaded["result"].is_object(), "{loaded}");
    let view = session.view().await;
    assert_eq!(view.spec.directories, [two.as_path()]);
    assert!(view.status.conditions.iter().any(|condition| condition.kind == ConditionType::SpecApplied));
    assert_eq!(said(&mut editor, &id, "opened").await[1], json!([one, two]));
    // A session without an agent is launched with them.
    session.stop().await;
    let loaded = editor.ask("session/load", open(Some(&id), &json!([one]))).await;
    assert!(loaded["result"].is_object(), "{loaded}");
    assert_eq!(said(&mut editor, &id, "opened").await[1], json!([one]));
    let refused = editor.ask("session/resume", open(Some(&id), &json!([daemon.root().join("gone")]))).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert_eq!(session.view().await.spec.directories, [one]);
}

#[tokio::test]
async fn the_servers_of_an_editor_reach_the_agent_without_those_that_have_secrets() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::bare_of(&daemon, TAKING);
    let hello = editor.ask("initialize", json!({ "protocolVersion": 1 })).await;
    let offered = &hello["result"]["agentCapabilities"]["mcpCapabilities"];
    assert_eq!((&offered["http"], &offered["sse"]), (&json!(true), &json!(true)), "{hello}");
    let http =
        |name: &str, header: Value| json!({ "type": "http", "name": name, "url": "https://h/mcp", "headers": header });
    let servers = json!([
        { "name": "files", "command": "/bin/true", "args": ["-v"], "env": [{ "name": "MODE", "value": "fast" }] },
        http("web", json!([])),
        http("team", json!([{ "name": "X-Team", "value": "web" }])),
        http("locked", json!([{ "name": "Authorization", "value": "planted-header" }])),
        { "name": "keyed", "command": "/bin/true", "args": [], "env": [{ "name": "API_KEY", "value": "planted-key" }] },
        { "type": "sse", "name": "old", "url": "https://h/sse", "headers": [] },
    ]);
    let opened = editor.ask("session/new", json!({ "cwd": daemon.work(), "mcpServers": servers })).await;
    let id = opened["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{opened}")).to_owned();
    let given = said(&mut editor, &id, "servers").await;
    let name = |server: &Value| server["name"].as_str().unwrap().to_owned();
    let names: Vec<String> = given.as_array().unwrap().iter().map(name).filter(|name| name != "agentd").collect();
    assert_eq!(names, ["files", "team", "web"], "this agent takes no SSE: {given}");
    let session = handle(&daemon, &id);
    let view = session.view().await;
    assert_eq!(view.spec.mcp.keys().collect::<Vec<_>>(), ["files", "old", "team", "web"]);
    let condition = view.status.conditions.iter().find(|one| one.kind == ConditionType::McpServersGiven).unwrap();
    assert_eq!(condition.message, "old: the agent takes no MCP servers over SSE");
    assert_eq!(daemon.holders("planted-"), Vec::<PathBuf>::new());

    // The servers of a later editor are added for the next launch, and the same ones change nothing.
    session.stop().await;
    let open = |servers: Value| json!({ "sessionId": id, "cwd": daemon.work(), "mcpServers": servers });
    let late = json!([http("team", json!([])), { "name": "late", "command": "/bin/true", "args": [], "env": [] }]);
    let loaded = editor.ask("session/load", open(late.clone())).await;
    assert!(loaded["result"].is_object(), "{loaded}");
    let given = said(&mut editor, &id, "servers").await;
    let of = |wanted: &str| given.as_array().unwrap().iter().find(|server| server["name"] == wanted).cloned();
    assert_eq!(of("team").unwrap()["headers"], json!([]), "{given}");
    assert!(of("late").is_some() && of("files").is_some(), "{given}");
    let generation = session.view().await.generation;
    for method in ["session/load", "session/resume"] {
        let loaded = editor.ask(method, open(late.clone())).await;
        assert!(loaded["result"].is_object(), "{loaded}");
    }
    assert_eq!(session.view().await.generation, generation);
}

#[tokio::test]
async fn the_sessions_of_an_editor_run_on_the_place_of_the_command() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config + &crate::place_check::places());
    daemon.run().await;
    let mut editor = Editor::named(&daemon, "test", &["--place", "near"]).await;
    let opened = editor.ask("session/new", json!({ "cwd": daemon.work(), "mcpServers": [] })).await;
    let id = opened["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{opened}")).to_owned();
    editor.turn(&id, "say there").await;
    assert_eq!(editor.texts().concat(), "there");
    let view = handle(&daemon, &id).view().await;
    assert_eq!(view.spec.place.as_deref(), Some("near"));
    assert_eq!(view.status.place.expect("the agent runs there").name, "near");

    let mut editor = Editor::named(&daemon, "test", &["--place", "moon"]).await;
    let refused = editor.ask("session/new", json!({ "cwd": daemon.work(), "mcpServers": [] })).await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("no place \"moon\""), "{refused}");
}
