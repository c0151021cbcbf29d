//! A real agent, opencode. The tests that every real agent must pass are in `real_agent.rs`. A further test here covers
//! the environment of its tools.
//!
//! Findings with opencode-ai 1.18.33, from ACP without agentd:
//! - `initialize` answers after 1.2 s (4 s the first time): `loadSession: true`, `sessionCapabilities` close, fork,
//!   list, resume. The answer to `session/new` names the models; it comes before the first update of the session.
//! - With a provider of npm `@ai-sdk/openai-compatible` it asks `POST BASE/chat/completions`, streamed. Before the
//!   first turn it asks for a title without offering tools. It needs no network except loopback.
//! - Its tool `bash` runs `/bin/bash -c` as a direct child. The child has all variables of opencode. In addition,
//!   opencode sets `AGENT`, `OPENCODE`, `OPENCODE_CLIENT`, `OPENCODE_PID` and `npm_config_user_agent`, and bash sets
//!   `PWD`, `SHLVL` and `_`. The test does not rely on this list: it runs opencode itself in a known environment and
//!   observes the additions.
//! - A permission request has three options: `once` (`allow_once`), `always` (`allow_always`), `reject`
//!   (`reject_once`).
//! - After kill -9, both `session/load` (replays before it answers) and `session/resume` (does not replay) know the
//!   conversation.
//! - An unknown conversation is answered with -32603. After the end of its stdin it exits with 0 in 0.2 s.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::environment::{EnvironmentView, RunnerNames};
use agentd_api::event::OpenedBy;
use agentd_api::isolation::Isolation;
use agentd_api::session::{ConditionType, Phase, SessionSpec, SessionView};
use agentd_api::{Body, reason};
use serde_json::{Value, json};

#[cfg(target_os = "linux")]
use crate::harness::quote::quoted;
use crate::harness::{Daemon, process, require, within};
use crate::real_agent::{Model, RealAgent, argument, is_held_by_rules, whole_life};
use crate::repositories::Remote;
use crate::workflow::{approve, describe};

const TOOL: &str = "bash";

type Variables = BTreeMap<String, Vec<u8>>;

/// Prints the environment in a form that terminal, agent and model do not change.
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

/// Returns the entry of a model that takes images.
fn model_entry(name: &str) -> Value {
    json!({
        "name": name, "tool_call": true, "limit": { "context": 100_000, "output": 8_000 }, "attachment": true,
        "modalities": { "input": ["text", "image"], "output": ["text"] },
    })
}

/// Returns the variables with which opencode talks only to this model.
fn settings(model: &Model) -> Vec<(&'static str, String)> {
    let config = json!({
        "model": "stand-in/model",
        "small_model": "stand-in/model",
        "provider": { "stand-in": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Stand-in",
            "options": { "baseURL": format!("{}/v1", model.server.origin()), "apiKey": "none" },
            "models": {
                "model": model_entry("Model"),
                "other": model_entry("Other"),
            },
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

pub(crate) fn opencode(program: &Path, model: &Model) -> RealAgent {
    RealAgent {
        entry: None,
        mode: None,
        command: vec![argument(program), "acp".to_owned()],
        settings: settings(model),
        reopened_by: OpenedBy::Resume,
        isolation: Isolation::None,
    }
}

/// Returns the environment that the tool printed, as the model received it.
fn heard(model: &Model) -> Variables {
    let asked = model.server.asked();
    let printed = asked.iter().rev().find_map(|asked| asked.texts("tool").pop());
    read_environment(&printed.expect("a tool's result came back to the model"))
}

/// Runs opencode without agentd in a known environment, lets its tool print the tool's environment, and returns the
/// names of the added variables.
fn added_by_opencode(opencode: &Path, model: &Model, home: &Path) -> Vec<String> {
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
    let prompt = json!([{ "type": "text", "text": format!("run: {PRINT_ENVIRONMENT}") }]);
    call(3, "session/prompt", json!({ "sessionId": session["sessionId"], "prompt": prompt }));
    drop(stdin);
    child.wait().expect("it can be waited for");
    let tool = heard(model);
    assert!(given.keys().all(|name| tool.contains_key(name)), "opencode took something away");
    tool.into_keys().filter(|name| !given.contains_key(name)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_agents_tool_runs_in_exactly_the_environment_that_agentd_reports() {
    let Some(program) = require::opencode() else { return };
    let daemon = Daemon::start().await;
    let model = Arc::new(Model::start(TOOL).await);
    let directly = tokio::task::spawn_blocking({
        let (program, model, home) = (program.clone(), Arc::clone(&model), daemon.root().join("direct"));
        std::fs::create_dir(&home).unwrap();
        move || added_by_opencode(&program, &model, &home)
    });
    let added = within("opencode's turn without agentd", directly).await.unwrap();

    let session = daemon.session(&opencode(&program, &model).spec(&daemon)).await;
    let turn = session.turn(&format!("run: {PRINT_ENVIRONMENT}")).await;
    assert_eq!((turn.text.as_str(), turn.ended.stop_reason.as_deref()), ("the tool ran", Some("end_turn")));
    let mut tool = heard(&model);
    tool.retain(|name, _| !added.contains(name));

    let view: EnvironmentView = daemon.client.get(&session.path("/environment?values=true")).await.expect(200);
    // A secret value is not printed, because opencode's configuration can contain keys.
    let secret: Vec<&str> =
        view.variables.iter().filter(|variable| variable.secret).map(|variable| variable.name.as_str()).collect();
    assert_eq!(secret, ["OPENCODE_CONFIG_CONTENT"]);
    assert!(tool["OPENCODE_CONFIG_CONTENT"].starts_with(b"{"));
    tool.insert("OPENCODE_CONFIG_CONTENT".to_owned(), Vec::new());
    let reported: Variables = view
        .variables
        .into_iter()
        .filter(|variable| !added.contains(&variable.name))
        .map(|variable| (variable.name, variable.value.map(|value| value.0).unwrap_or_default()))
        .collect();
    assert_eq!(tool, reported, "besides {added:?}");

    session.stop().await;
    process::assert_only(&[daemon.pid()], daemon.root(), "something is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_is_held_by_a_rule_and_shows_its_command() {
    let Some(program) = require::opencode() else { return };
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        format!("{config}\n[[permissions]]\nkind = \"execute\"\ntitle = \"git push*\"\nanswer = \"deny\"\n")
    });
    daemon.run().await;
    let model = Model::start(TOOL).await;
    is_held_by_rules(&daemon, &opencode(&program, &model)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_calls_agentds_tools_by_itself_and_its_session_keeps_what_it_set() {
    let Some(program) = require::opencode() else { return };
    let daemon = Daemon::start().await;
    let model = Model::start(TOOL).await;
    let session = daemon.session(&opencode(&program, &model).spec(&daemon)).await;
    let file = daemon.work().join("driver.c");
    std::fs::write(&file, "").unwrap();
    for (tool, arguments) in [
        ("set_relevant_context", json!({ "set": "files", "items": [file] })),
        ("set_environment_hint", json!({ "hint": "connect the VPN first" })),
        ("set_title", json!({ "title": "port the driver" })),
        ("propose_environment_script", json!({ "script": "export CC=clang", "explanation": "gcc is too old" })),
        ("set_relevant_context", json!({ "set": "files", "items": ["driver.c"] })),
    ] {
        // opencode puts the server's name before the tool's.
        let turn = session.turn(&format!("call: agentd_{tool} {arguments}")).await;
        assert_eq!(turn.text, "the tool ran", "{tool}");
    }
    let refused = model.server.asked().iter().rev().find_map(|asked| asked.texts("tool").pop());
    let refused = refused.expect("the last tool's result came back to the model");
    assert!(refused.contains("driver.c") && refused.contains("hint: "), "the model reads the refusal: {refused}");

    session.stop().await;
    session.resume().await;
    let status = session.view().await.status;
    let files: Vec<String> =
        status.context.into_iter().flat_map(|context| context.sets["files"].clone()).map(|item| item.value).collect();
    assert_eq!(files, [file.to_str().unwrap()]);
    assert_eq!(status.hint.as_deref(), Some("connect the VPN first"));
    assert_eq!(status.title.as_deref(), Some("port the driver"));
    assert_eq!(status.script_proposal.and_then(|proposal| proposal.explanation).as_deref(), Some("gcc is too old"));
    // The resumed agent has the tools as well.
    let turn = session.turn("call: agentd_get_relevant_context {}").await;
    assert_eq!(turn.text, "the tool ran");
    let note = turn.events.iter().find_map(|event| match &event.body {
        Body::TurnStarted(started) => started.note.clone(),
        _ => None,
    });
    let note = note.expect("the first turn after the resume has a note");
    assert!(note.contains("connect the VPN first") && note.contains("driver.c"), "{note}");
    let known = model.server.asked().iter().rev().find_map(|asked| asked.texts("tool").pop()).unwrap_or_default();
    assert!(known.contains(file.to_str().unwrap()), "{known}");
    session.stop().await;
    process::assert_only(&[daemon.pid()], daemon.root(), "something is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_sees_a_repository_that_was_added_in_a_turn_in_its_next_turn() {
    let Some(program) = require::opencode() else { return };
    let daemon = Daemon::start().await;
    let (model, remote) = (Model::start(TOOL).await, Remote::new(&daemon, "web"));
    let session = daemon.session(&opencode(&program, &model).spec(&daemon)).await;
    let accepted = session.prompt("take your time").await;
    model.heard("take your time").await;
    daemon.client.post(&session.path("/repos"), &remote.spec()).await.expect::<Value>(202);
    assert!(!daemon.work().join("web").exists(), "it waits for the end of the turn");
    model.release();
    session.end_of(&accepted).await;
    let ended = Instant::now();
    let next = session.prompt("run: cat web/file").await;
    let mut events = session.events(&format!("after={}", next.after_seq)).await;
    events.until("the next turn starts", |event| matches!(event.body, Body::TurnStarted(_))).await;
    assert!(ended.elapsed() < Duration::from_secs(3), "{:?}", ended.elapsed());
    session.end_of(&next).await;
    let read = model.server.asked().iter().rev().find_map(|asked| asked.texts("tool").pop());
    assert!(read.is_some_and(|text| text.contains("second")), "the agent read the file of the repository");
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_copies_its_conversation_for_a_session_that_continues_it() {
    let Some(program) = require::opencode() else { return };
    let daemon = Daemon::start().await;
    let model = Model::start(TOOL).await;
    let parent = daemon.session(&opencode(&program, &model).spec(&daemon)).await;
    parent.turn("run: echo the word is plum").await;
    let own = parent.view().await;
    let child = SessionSpec {
        parent: Some(parent.id.as_str().parse().unwrap()),
        env_setup: own.spec.env_setup.clone(),
        permissions: own.spec.permissions,
        ..SessionSpec::new("")
    };
    let child = daemon.session(&child).await;
    let view = child.view().await;
    let ready = view.status.conditions.iter().find(|condition| condition.kind == ConditionType::ConversationReady);
    assert_eq!(ready.unwrap().reason, reason::FORKED);
    assert_ne!(view.status.conversation, own.status.conversation);
    // Each conversation has the earlier messages, and none of the later messages of the other.
    parent.turn("run: echo the parent says pear").await;
    child.turn("run: echo the child says cherry").await;
    let asked = model.server.asked();
    let last =
        |words: &str| asked.iter().rev().find(|asked| asked.texts("user").iter().any(|text| text.contains(words)));
    for (words, other) in [("the parent says", "cherry"), ("the child says", "pear")] {
        let heard = last(words).unwrap().texts("user").join("\n");
        assert!(heard.contains("the word is plum") && !heard.contains(other), "{heard}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_keeps_its_conversation_over_a_switch_of_the_workflow() {
    let Some(program) = require::opencode() else { return };
    let daemon = Daemon::start().await;
    let model = Model::start(TOOL).await;
    let session = daemon.session(&opencode(&program, &model).spec(&daemon)).await;
    session.turn("run: echo the word is plum").await;
    let conversation = session.view().await.status.conversation;
    let directory = daemon.root().join("flows/review");
    let file =
        describe(&directory, "name = \"review\"\nsystem_prompt = \"Judge kindly.\"\nstartup_prompt = \"run: pwd\"\n");
    approve(&daemon, &file).await;
    let switch = json!({ "workflow": { "directory": directory } });
    daemon.client.patch(&session.path(""), &switch, None).await.expect::<Value>(200);
    let has_worked = |view: &SessionView| {
        view.active_workflow().is_some() && view.status.phase == Phase::Idle && view.status.queue.is_empty()
    };
    session.wait_for("the startup prompt is answered", has_worked).await;
    assert_eq!(session.view().await.status.conversation, conversation);
    let asked = model.server.asked();
    let last = asked.iter().rev().find(|asked| asked.has_tools && asked.texts("tool").len() == 2);
    let heard = last.expect("it was asked after the tool of the startup prompt").texts("user").join("\n");
    assert!(heard.contains("the word is plum") && heard.contains("Judge kindly."), "{heard}");
    // Its process works in the workflow's directory, and its tools where it has the conversation.
    let found = session.view().await.status.conditions.into_iter().find(|one| one.kind == ConditionType::WorkflowReady);
    let message = found.unwrap().message;
    assert!(message.contains("continues its conversation only in"), "{message}");
    session.turn("run: echo on").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_gets_the_model_of_the_runners_variable() {
    let Some(program) = require::opencode() else { return };
    let daemon = Daemon::start().await;
    let model = Model::start(TOOL).await;
    for (text, expected) in [("in/model", "model is stand-in/model"), ("big-pickle", "model is opencode/big-pickle")] {
        let mut spec = opencode(&program, &model).spec(&daemon);
        spec.environment.compatibility = Some(RunnerNames::Ambient);
        spec.environment.env.insert("LLM_MODEL".to_owned(), text.to_owned());
        let session = daemon.session(&spec).await;
        let of = |view: &SessionView| {
            let mut conditions = view.status.conditions.iter();
            conditions.find(|one| one.kind == ConditionType::OptionsApplied).map(|one| one.message.clone())
        };
        let view = session.wait_for("the model is set", |view| of(view).is_some()).await;
        assert_eq!(of(&view).as_deref(), Some(expected));
        session.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_comes_through_a_whole_life() {
    let Some(program) = require::opencode() else { return };
    let mut daemon = Daemon::start().await;
    let model = Model::start(TOOL).await;
    whole_life(&mut daemon, &opencode(&program, &model), &model).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn opencode_comes_through_a_whole_life_behind_walls() {
    let (Some(program), Some(())) = (require::opencode(), require::guard()) else { return };
    let mut daemon = Daemon::start().await;
    let model = Model::start(TOOL).await;
    let guarded = RealAgent { isolation: Isolation::Guard, ..opencode(&program, &model) };
    whole_life(&mut daemon, &guarded, &model).await;

    daemon.client.post("/v1/reload", &json!({})).await;
    let session = daemon.session(&guarded.spec(&daemon)).await;
    assert_eq!(session.view().await.status.isolation.map(|held| held.level), Some(Isolation::Guard));
    let script = daemon.work().join("tools.sh");
    std::fs::write(&script, crate::guard::use_of_tools(&daemon.work().join("tools"))).unwrap();
    session.turn(&format!("run: sh {} > done", quoted(script))).await;
    assert_eq!(std::fs::read_to_string(daemon.work().join("done")).unwrap(), "all of it worked\n");
    let hidden = format!("run: cat {} > seen", quoted(daemon.root().join("config/agentd.toml")));
    session.turn(&hidden).await;
    assert_eq!(std::fs::read_to_string(daemon.work().join("seen")).unwrap(), "");
    session.stop().await;
    process::assert_only(&[daemon.pid()], daemon.root(), "something is left");
}
