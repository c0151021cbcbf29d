//! A real agent, opencode, against the stand-in model server on loopback. No network, no account.
//!
//! What was found with opencode-ai 1.18.33, by speaking ACP to it without agentd:
//! - `initialize` answers after 1.2 s (4 s the first time): `loadSession: true`, `sessionCapabilities` close, fork, list, resume.
//!   The answer to `session/new` names the models; it comes before the first update of the session.
//! - With a provider of npm `@ai-sdk/openai-compatible` it asks `POST BASE/chat/completions`, streamed. Before the first turn
//!   it asks for a title without offering tools. It needs no network: with none but loopback it does the same.
//! - Its tool `bash` runs `/bin/bash -c` as a direct child. That child's environment has, besides what opencode was given, `AGENT`, `OPENCODE`,
//!   `OPENCODE_CLIENT`, `OPENCODE_PID` and `npm_config_user_agent` of opencode, and `PWD`, `SHLVL`, `_` of bash. Nothing is taken away. The test
//!   does not trust this list: it runs opencode itself in a known environment and looks what is added.
//! - A permission request has three options: `once` (`allow_once`), `always` (`allow_always`), `reject` (`reject_once`).
//! - After kill -9 both `session/load` (replays before it answers) and `session/resume` (does not) know what was said.
//! - An unknown conversation is answered with -32603. After the end of its stdin it exits with 0 in 0.2 s.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use agentd_api::environment::EnvironmentView;
use agentd_api::event::{Body, OpenedBy, SyntheticCause};
use agentd_api::session::{PermissionPolicy, Phase, SessionSpec};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::harness::model_server::{Asked, ModelServer, Reply};
use crate::harness::{Daemon, process, require, session, until, within};

type Variables = BTreeMap<String, Vec<u8>>;

/// Prints the environment in a form that survives a terminal's, an agent's and a model's ideas of text.
const PRINT_ENVIRONMENT: &str = "env -0 | od -An -v -tx1 | tr -d ' \\n'";

fn read_environment(printed: &str) -> Variables {
    let hex = printed.trim().as_bytes();
    let byte = |pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Vec<u8> = hex.chunks(2).map_while(byte).collect();
    let variables: Variables = bytes
        .split(|&byte| byte == 0)
        .filter_map(|variable| {
            let equals = variable.iter().position(|&byte| byte == b'=')?;
            Some((String::from_utf8_lossy(&variable[..equals]).into_owned(), variable[equals + 1..].to_vec()))
        })
        .collect();
    assert!(variables.contains_key("PATH"), "this is no environment: {printed:?}");
    variables
}

/// A model that obeys the last thing the user said.
async fn obedient_model(gate: Arc<Semaphore>) -> ModelServer {
    ModelServer::start(move |asked: &Asked| {
        let user = asked.texts("user");
        let last = user.last().map_or("", String::as_str);
        match asked.last_role() {
            _ if !asked.has_tools() => Reply::Text("a title".to_owned()),
            "tool" => Reply::Text("the tool ran".to_owned()),
            _ if last.contains("print the environment") => Reply::Tool {
                name: "bash".to_owned(),
                arguments: json!({ "command": PRINT_ENVIRONMENT, "description": "prints the environment" }),
            },
            _ if last.contains("take your time") => Reply::Held(Arc::clone(&gate), "that took a while".to_owned()),
            _ => Reply::Text(format!("you said: {}", user.join(" | "))),
        }
    })
    .await
}

/// The variables that opencode needs to talk to this model and to nobody else.
fn settings(model: &ModelServer) -> Vec<(&'static str, String)> {
    let config = json!({
        "model": "stand-in/model",
        "small_model": "stand-in/model",
        "provider": { "stand-in": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Stand-in",
            "options": { "baseURL": model.base_url(), "apiKey": "none" },
            "models": { "model": { "name": "Model", "tool_call": true, "limit": { "context": 100_000, "output": 8_000 } } },
        } },
        "permission": { "bash": "ask" },
        "autoupdate": false,
        "share": "disabled",
    });
    vec![
        ("OPENCODE_CONFIG_CONTENT", config.to_string()),
        ("OPENCODE_DISABLE_AUTOUPDATE", "1".to_owned()),
        ("OPENCODE_DISABLE_MODELS_FETCH", "1".to_owned()),
        ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1".to_owned()),
    ]
}

/// A session with opencode, its settings exported by the session's own script: agentd has no other way to give an agent a variable.
fn spec(daemon: &Daemon, opencode: &Path, model: &ModelServer) -> SessionSpec {
    let mut spec = session::spec(daemon.work(), vec![opencode.display().to_string(), "acp".to_owned()]);
    let exports = settings(model).into_iter().map(|(name, value)| format!("export {name}='{value}'\n"));
    spec.env_setup = Some(exports.collect());
    spec.permissions = PermissionPolicy::Allow;
    spec
}

/// The environment that the tool printed, as the model heard it.
fn heard(model: &ModelServer) -> Variables {
    let asked = model.asked();
    let printed = asked.iter().rev().find_map(|asked| asked.texts("tool").pop());
    read_environment(&printed.expect("a tool's result came back to the model"))
}

/// Runs opencode without agentd in an environment that is known, lets its tool print its own, and returns what was added.
fn added_by_opencode(opencode: &Path, model: &ModelServer, home: &Path) -> Vec<String> {
    let mut given: BTreeMap<String, String> =
        settings(model).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    given.insert("HOME".to_owned(), home.display().to_string());
    given.insert("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned());
    let mut child = Command::new(opencode)
        .arg("acp")
        .env_clear()
        .envs(&given)
        .current_dir(home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("opencode can be executed");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is a pipe")).lines();
    let mut call = |id: u32, method: &str, params: Value| -> Value {
        writeln!(stdin, "{}", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .expect("it reads");
        loop {
            let line = lines.next().expect("opencode answers before it ends").expect("its stdout is UTF-8");
            let message: Value = serde_json::from_str(&line).expect("opencode prints JSON");
            if message["method"] == "session/request_permission" {
                let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "once" } });
                writeln!(stdin, "{}", json!({ "jsonrpc": "2.0", "id": message["id"], "result": outcome }))
                    .expect("it reads");
            } else if message["id"] == id && message["method"].is_null() {
                return message["result"].clone();
            }
        }
    };
    call(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let session = call(2, "session/new", json!({ "cwd": home, "mcpServers": [] }));
    let prompt = json!([{ "type": "text", "text": "print the environment" }]);
    call(3, "session/prompt", json!({ "sessionId": session["sessionId"], "prompt": prompt }));
    drop(stdin);
    child.wait().expect("it can be waited for");
    let tool = heard(model);
    assert!(given.keys().all(|name| tool.contains_key(name)), "opencode took something away");
    tool.into_keys().filter(|name| !given.contains_key(name)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_agents_tool_runs_in_exactly_the_environment_that_agentd_reports() {
    let Some(opencode) = require::opencode() else { return };
    let daemon = Daemon::start().await;
    let model = Arc::new(obedient_model(Arc::new(Semaphore::new(0))).await);
    let directly = tokio::task::spawn_blocking({
        let (opencode, model, home) = (opencode.clone(), Arc::clone(&model), daemon.root().join("direct"));
        std::fs::create_dir(&home).unwrap();
        move || added_by_opencode(&opencode, &model, &home)
    });
    let added = within("opencode's turn without agentd", directly).await.unwrap();

    let session = daemon.session(&spec(&daemon, &opencode, &model)).await;
    let turn = session.turn("print the environment").await;
    assert_eq!((turn.text.as_str(), turn.ended.stop_reason.as_deref()), ("the tool ran", Some("end_turn")));
    let mut tool = heard(&model);
    tool.retain(|name, _| !added.contains(name));

    let view: EnvironmentView = daemon.client.get(&session.path("/environment?values=true")).await.expect(200);
    let reported: Variables = view
        .variables
        .into_iter()
        .filter(|variable| !added.contains(&variable.name))
        .map(|variable| (variable.name, variable.value.map(|value| value.0).unwrap_or_default()))
        .collect();
    assert_eq!(tool, reported, "besides {added:?}");

    let kinds: Vec<String> = session
        .journal()
        .into_iter()
        .filter_map(|event| match event.body {
            Body::PermissionRequested(asked) => asked.request.tool_kind,
            _ => None,
        })
        .collect();
    assert_eq!(kinds, ["execute"], "it asked before it ran the command");
    session.stop().await;
    assert_eq!(process::of(daemon.root()), [daemon.pid()], "something is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_agent_survives_the_daemon_and_its_conversation_survives_the_agent() {
    let Some(opencode) = require::opencode() else { return };
    let mut daemon = Daemon::start().await;
    let gate = Arc::new(Semaphore::new(0));
    let model = obedient_model(Arc::clone(&gate)).await;
    let session = daemon.session(&spec(&daemon, &opencode, &model)).await;

    let accepted = session.prompt("my favourite colour is teal; take your time").await;
    until("the model was asked", || model.asked().iter().any(Asked::has_tools)).await;
    daemon.kill9();
    gate.add_permits(1);
    daemon.run().await;
    assert_eq!(session.end_of(&accepted).await.text, "that took a while");

    let accepted = session.prompt("once more, take your time").await;
    until("the model was asked again", || model.asked().iter().filter(|asked| asked.has_tools()).count() >= 2).await;
    process::kill9(session.view().await.status.agent_pid.unwrap());
    let cut = session.end_of(&accepted).await.ended;
    assert_eq!(cut.synthetic.map(|synthetic| synthetic.cause), Some(SyntheticCause::AgentExited));
    session.wait_for_phase(Phase::Failed).await;

    session.resume().await;
    let text = session.turn("what is my favourite colour?").await.text;
    assert!(text.contains("teal") && text.contains("once more"), "{text}");
    let opened: Vec<OpenedBy> = session
        .journal()
        .into_iter()
        .filter_map(|event| match event.body {
            Body::ConversationOpened(opened) => Some(opened.by),
            _ => None,
        })
        .collect();
    assert_eq!(opened, [OpenedBy::New, OpenedBy::Resume]);
}
