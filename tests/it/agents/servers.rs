//! MCP servers of the configuration and of sessions: which an agent gets, and their secrets.

use std::os::unix::fs::PermissionsExt as _;

use agentd_api::mcp::McpOrigin;
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec, SessionView};
use serde_json::{Value, json};

use crate::harness::{Daemon, Session};

const TOKEN: &str = "hunter2-0123456789";

/// Starts a daemon with these tables and a secret `TOKEN`. The agent `s` is the scripted one.
async fn daemon(flags: &[&str], tables: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    let command = serde_json::to_string(&daemon.scripted(flags).command).unwrap();
    let file = daemon.root().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let secret = format!("[secrets.TOKEN]\nfile = \"{}\"\nenvironment = false\n", file.display());
    daemon.configure(|config| format!("{config}\n{secret}\n[agents.s]\ncommand = {command}\n{tables}\n"));
    daemon.run().await;
    daemon
}

fn spec(daemon: &Daemon, fields: &Value) -> SessionSpec {
    let mut spec = json!({ "directory": daemon.work(), "agent": "s" });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

/// Returns the servers that the agent was given, without agentd's own.
async fn given(session: &Session) -> Vec<Value> {
    let servers: Vec<Value> = serde_json::from_str(&session.turn("servers").await.text).unwrap();
    servers.into_iter().filter(|server| server["name"] != "agentd").collect()
}

fn names(servers: &[Value]) -> Vec<&str> {
    servers.iter().map(|server| server["name"].as_str().unwrap()).collect()
}

fn condition(view: &SessionView) -> Option<(ConditionStatus, &str)> {
    let found = view.status.conditions.iter().find(|one| one.kind == ConditionType::McpServersGiven)?;
    Some((found.status, &found.message))
}

const LAB: &str =
    "[mcp.lab]\ncommand = [\"sh\", \"-c\", \"true\"]\nenv = { MODE = \"fast\", KEY = { secret = \"TOKEN\" } }\n";

#[tokio::test]
async fn an_agent_gets_a_configured_server_with_its_secret_and_no_record_has_the_secret() {
    let mut daemon = daemon(&[], LAB).await;
    let session = daemon.session(&spec(&daemon, &json!({}))).await;
    let servers = session.turn("servers").await.text;
    // The agent has it, and its output is masked.
    assert!(servers.contains(r#""command":"/usr/bin/sh""#) || servers.contains(r#""command":"/bin/sh""#), "{servers}");
    assert!(servers.contains("‹secret›") && !servers.contains("‹secret TOKEN›"), "{servers}");
    // Only the server gets this secret.
    assert!(!session.turn("env").await.text.contains("TOKEN"));
    let journal = std::fs::read_to_string(session.directory().join("journal.jsonl")).unwrap();
    assert!(journal.contains("‹secret TOKEN›") && !journal.contains("\"value\":\"hunter2"), "{journal}");
    let view = session.view().await;
    assert_eq!(condition(&view), Some((ConditionStatus::True, "lab")));
    assert_eq!((view.status.mcp[0].name.as_str(), view.status.mcp[0].origin), ("lab", McpOrigin::Configuration));
    // A resume under another daemon gives the server again.
    session.stop().await;
    daemon.kill9();
    daemon.run().await;
    session.resume().await;
    assert_eq!(names(&given(&session).await), ["lab"]);
}

#[tokio::test]
async fn an_agent_and_a_session_choose_servers_and_a_session_has_its_own() {
    let tables = format!(
        "{LAB}\n[mcp.web]\nurl = \"https://tools.example/mcp\"\n\
         headers = {{ Authorization = {{ secret = \"TOKEN\", prefix = \"Bearer \" }} }}\n\
         [mcp.other]\ncommand = [\"true\"]\nagents = [\"claude\"]\n\
         [mcp.gone]\ncommand = [\"no-such-program\"]\ndirectories = [\"/nowhere/*\"]\n"
    );
    let daemon = daemon(&["--mcp"], &tables).await;
    let session = daemon.session(&spec(&daemon, &json!({}))).await;
    assert_eq!(names(&given(&session).await), ["lab", "web"]);
    let own = json!({ "mcp": {
        "lab": false, "gone": true, "mine": { "command": ["true"], "env": { "A": "b" } }, "agentd": false,
    } });
    let session = daemon.session(&spec(&daemon, &own)).await;
    let all: Vec<Value> = serde_json::from_str(&session.turn("servers").await.text).unwrap();
    assert_eq!(names(&all), ["mine", "web"], "and not agentd's own");
    assert_eq!(all[0]["env"], json!([{ "name": "A", "value": "b" }]));
    let view = session.view().await;
    let (status, message) = condition(&view).unwrap();
    assert!(status == ConditionStatus::False && message.contains("gone: there is no program"), "{message}");
    for (mcp, part) in [
        (json!({ "nothing": true }), "there is no MCP server \"nothing\""),
        (json!({ "x": {} }), "must have either `command` or `url`"),
        (json!({ "x": { "command": ["a"], "env": { "A": { "secret": "NONE" } } } }), "the secret \"NONE\""),
        (json!({ "agentd": { "command": ["a"] } }), "a name that is taken"),
    ] {
        let refused = spec(&daemon, &json!({ "mcp": mcp }));
        let problem = daemon.client.post("/v1/sessions", &refused).await.problem();
        assert!(problem.status == 400 && problem.detail.contains(part), "{problem:?}");
    }
}

#[tokio::test]
async fn a_link_gives_no_session_the_secret_of_a_directory() {
    let mut daemon = Daemon::prepare();
    let command = serde_json::to_string(&daemon.scripted(&[]).command).unwrap();
    let (file, away) = (daemon.root().join("token"), daemon.root().join("away"));
    std::fs::create_dir(&away).unwrap();
    std::os::unix::fs::symlink(&away, daemon.work().join("link")).unwrap();
    std::fs::create_dir(daemon.work().join("real")).unwrap();
    std::fs::write(&file, TOKEN).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let secret =
        format!("[secrets.TOKEN]\nfile = \"{}\"\ndirectories = [\"{}/*\"]\n", file.display(), daemon.work().display());
    daemon.configure(|config| format!("{config}\n{secret}\n[agents.s]\ncommand = {command}\n{LAB}\n"));
    daemon.run().await;
    for (name, gets_it) in [("real", true), ("link", false)] {
        let session = daemon.session(&spec(&daemon, &json!({ "directory": daemon.work().join(name) }))).await;
        let view = session.view().await;
        let said = condition(&view).unwrap();
        assert_eq!(said.0 == ConditionStatus::True, gets_it, "{name}: {said:?}");
        assert_eq!(names(&given(&session).await) == ["lab"], gets_it, "{name}");
    }
}

#[tokio::test]
async fn an_agent_without_http_works_without_the_server_and_the_condition_says_so() {
    let daemon = daemon(
        &[],
        "mcp = [\"web\"]\n[mcp.web]\nurl = \"https://tools.example/mcp\"\n[mcp.lab]\ncommand = [\"true\"]\n",
    )
    .await;
    let session = daemon.session(&spec(&daemon, &json!({}))).await;
    let all = session.turn("servers").await.text;
    assert_eq!(all, "[]", "the list of the agent names neither agentd's own nor lab");
    let view = session.view().await;
    assert_eq!(condition(&view), Some((ConditionStatus::False, "web: the agent takes no MCP servers over HTTP")));
}
