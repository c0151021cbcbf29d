//! agentd's own MCP server, called by an agent that starts it as agentd named it.

use std::fs;

use agentd_api::context::ContextView;
use agentd_api::event::Body;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, SessionSpec};
use serde_json::{Value, json};

use crate::harness::ctl::ctl;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, scripted_agent};

/// Lets the agent call tools of its server. Returns a result for each.
pub(crate) async fn call(session: &Session, calls: &Value) -> Vec<Value> {
    obey(session, &json!({ "calls": calls })).await
}

async fn obey(session: &Session, wanted: &Value) -> Vec<Value> {
    let text = session.turn(&format!("mcp {wanted}")).await.text;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the answer of a tool that succeeded.
fn answer(result: &Value) -> Value {
    assert_eq!(result["error"], false, "{result}");
    serde_json::from_str(result["text"].as_str().unwrap()).unwrap()
}

/// Returns the text of a tool that failed.
fn failure(result: &Value) -> String {
    assert_eq!(result["error"], true, "{result}");
    result["text"].as_str().unwrap().to_owned()
}

async fn session(daemon: &Daemon) -> Session {
    daemon.session(&daemon.scripted(&[])).await
}

/// Returns the MCP servers that the agent was given when its conversation was opened last.
fn given(session: &Session) -> Value {
    let opened = |event| match event {
        Body::AgentIn(line) => {
            let message: Value = serde_json::from_str(line.get()).unwrap();
            let method = message["method"].as_str().unwrap_or_default().to_owned();
            ["session/new", "session/load", "session/resume"]
                .contains(&method.as_str())
                .then(|| message["params"]["mcpServers"].clone())
        }
        _ => None,
    };
    session.journal().into_iter().rev().find_map(|event| opened(event.body)).expect("a conversation was opened")
}

#[tokio::test]
async fn what_an_agent_reports_by_its_tools_is_kept_by_its_session() {
    let mut daemon = Daemon::start().await;
    let session = session(&daemon).await;
    let file = daemon.work().join("main.rs");
    fs::write(&file, "").unwrap();
    let results = call(
        &session,
        &json!([
            ["set_relevant_context", { "set": "files", "items": [file] }],
            ["set_relevant_context", { "set": "ports", "items": [8080] }],
            ["set_relevant_context", { "set": "applet", "items": ["wave", "zoom=2"], "applet_url": "http://h/w" }],
            ["set_environment_hint", { "hint": "connect the VPN first" }],
            ["set_title", { "title": "port the driver" }],
            ["report_progress", { "message": "compiling", "percent": 40 }],
            ["get_relevant_context", { "set": "ports" }],
            ["get_environment", {}],
            ["get_environment", { "names": ["HOME", "NO_SUCH_VARIABLE"] }],
            ["check_prerequisites", {}],
        ]),
    )
    .await;
    assert_eq!(answer(&results[3]), json!({ "hint": "connect the VPN first" }));
    assert_eq!(answer(&results[6])["sets"], json!({ "ports": [{ "value": "8080" }] }));
    let all = answer(&results[7]);
    let home = all["variables"].as_array().unwrap().iter().find(|one| one["name"] == "HOME").unwrap();
    assert!(home["provider"].is_string() && home["value"].is_null(), "{home}");
    let asked = answer(&results[8]);
    assert_eq!(asked["variables"][0]["value"], daemon.home().to_str().unwrap(), "{asked}");
    assert_eq!(asked["not_set"], json!(["NO_SUCH_VARIABLE"]));
    assert_eq!(answer(&results[9]), json!({ "prerequisites": [] }));

    let status = session.view().await.status;
    assert_eq!(status.title.as_deref(), Some("port the driver"));
    assert_eq!(status.hint.as_deref(), Some("connect the VPN first"));
    let progress = status.progress.expect("progress was reported");
    assert_eq!((progress.message.as_str(), progress.percent), ("compiling", Some(40)));
    let context: ContextView = daemon.client.get(&session.path("/context")).await.expect(200);
    assert_eq!(context.sets["files"][0].value, file.to_str().unwrap());
    assert_eq!(context.applet_url.as_deref(), Some("http://h/w"));

    // The server outlives the daemon: its next call reaches the next daemon.
    daemon.kill9();
    daemon.run().await;
    let results = obey(&session, &json!({ "calls": [["set_title", { "title": "later" }]], "end": true })).await;
    assert_eq!(answer(&results[0]), json!({ "title": "later" }));
    assert_eq!(results[1], 0, "the end of its input ends the server in order");
    assert_eq!(session.view().await.status.title.as_deref(), Some("later"));
    session.stop().await;
    session.resume().await;
    assert_eq!(session.view().await.status.hint.as_deref(), Some("connect the VPN first"));
    assert_eq!(given(&session)[0]["name"], "agentd", "a resumed conversation has the server too");
}

#[tokio::test]
async fn a_refusal_is_a_result_with_its_reason_and_its_remedy_and_the_server_goes_on() {
    let daemon = Daemon::start().await;
    let session = session(&daemon).await;
    let many: Vec<String> = (0..11).map(|n| format!("/f{n}")).collect();
    let results = call(
        &session,
        &json!([
            ["set_relevant_context", { "set": "files", "items": many }],
            ["set_relevant_context", { "set": "files", "items": ["src/main.rs"] }],
            ["set_relevant_context", { "set": "ports", "items": [70000] }],
            ["set_title", { "name": "x" }],
            ["propose_environment_script", { "script": " ", "explanation": "nothing" }],
            ["report_progress", { "message": "still here" }],
        ]),
    )
    .await;
    let failures: Vec<String> = results[..5].iter().map(failure).collect();
    for (text, expected) in failures.iter().zip(["10", "src/main.rs", "70000", "name", "empty"]) {
        assert!(text.contains(expected) && text.contains("hint: "), "{expected}: {text}");
    }
    answer(&results[5]);
    assert_eq!(session.view().await.status.context, None, "a refused change changes nothing");
    let listed = obey(&session, &json!({ "list": true })).await;
    assert_eq!(listed[0]["tools"].as_array().unwrap().len(), 8, "{}", listed[0]);
}

#[tokio::test]
async fn a_tool_call_for_another_session_is_refused() {
    let daemon = Daemon::start().await;
    let (own, other) = (session(&daemon).await, session(&daemon).await);
    let calls = json!([
        ["set_relevant_context", { "set": "ports", "items": [1] }],
        ["get_relevant_context", {}],
        ["set_environment_hint", { "hint": "forged" }],
        ["get_environment", {}],
        ["check_prerequisites", {}],
        ["propose_environment_script", { "script": "export FORGED=1", "explanation": "forged" }],
        ["set_title", { "title": "forged" }],
        ["report_progress", { "message": "forged" }],
    ]);
    for victim in [other.id.as_str(), "no-such-session"] {
        let results = obey(&own, &json!({ "calls": calls, "env": { "AGENTD_SESSION": victim } })).await;
        for result in &results[..8] {
            let text = failure(result);
            assert!(text.contains("inside the session") && text.contains("hint: "), "{text}");
            assert!(!text.contains(victim), "a guest learns nothing about {victim}: {text}");
        }
    }
    // Without the server too: the daemon refuses, not the server.
    let agent = quoted(scripted_agent());
    let socket = quoted(daemon.client.socket());
    for (method, path, body) in [
        ("PATCH", "/context", json!({ "sets": { "ports": ["1"] } })),
        ("PUT", "/script-proposal", json!({ "text": "export FORGED=1" })),
        ("POST", "/prerequisites/check", Value::Null),
        ("GET", "/script-proposal", Value::Null),
    ] {
        let request = format!("do {agent} ask {socket} {method} {} {}", other.path(path), quoted(body.to_string()));
        let said = own.turn(&request).await.text;
        assert!(said.contains("403") && said.contains("in-session"), "{method} {path}: {said}");
    }
    let status = other.view().await.status;
    assert_eq!((status.context, status.hint, status.progress), (None, None, None));
    assert_eq!((status.script_proposal, status.title), (None, None));
    assert!(!other.directory().join("proposed-env.sh").exists());
    // A process of a session approves nothing.
    let path = own.directory().join("proposed-env.sh");
    let body = json!({ "directory": path });
    let said = own.turn(&format!("do {agent} ask {socket} POST /v1/scripts/allow {}", quoted(body.to_string()))).await;
    assert!(said.text.contains("in-session"), "{}", said.text);
}

#[tokio::test]
async fn the_server_is_left_out_by_setting_for_all_agents_or_for_one() {
    let mut daemon = Daemon::prepare();
    let command = json!([scripted_agent()]);
    daemon.configure(|config| {
        let agents = format!("[agents.with]\ncommand = {command}\nmcp = true\n[agents.without]\ncommand = {command}\n");
        format!("{config}\n[mcp]\nenabled = false\n{agents}")
    });
    daemon.run().await;
    for (agent, servers) in [("with", 1), ("without", 0)] {
        let spec = SessionSpec { agent: Some(agent.parse().unwrap()), ..SessionSpec::new(daemon.work()) };
        let session = daemon.session(&spec).await;
        assert_eq!(given(&session).as_array().unwrap().len(), servers, "{agent}");
    }
    let plain = session(&daemon).await;
    assert_eq!(given(&plain), json!([]));
    assert_eq!(plain.turn("mcp {}").await.text, "no server");
}

/// Returns the variable that the proposed scripts of these tests set, as the agent has it.
async fn variable(session: &Session) -> Option<String> {
    let text = session.turn("env").await.text;
    let environment: Value = serde_json::from_str(&text).unwrap();
    environment["PROPOSED"].as_str().map(str::to_owned)
}

async fn relaunched(session: &Session) -> Condition {
    session.stop().await;
    let view = session.resume().await;
    view.status.conditions.into_iter().find(|one| one.kind == ConditionType::EnvironmentValid).unwrap()
}

async fn propose(session: &Session, value: &str) -> Value {
    let script = format!("export PROPOSED={value}\n");
    let arguments = json!({ "script": script, "explanation": format!("it needs {value}") });
    answer(&call(session, &json!([["propose_environment_script", arguments]])).await[0])
}

fn is_not_run(condition: &Condition, session: &Session, state: &str) {
    assert_eq!(condition.status, ConditionStatus::False, "{condition:?}");
    assert_eq!(condition.reason, "ScriptNotApproved", "{condition:?}");
    let command = format!("`agentctl env allow --session {}`", session.id);
    assert!(condition.message.contains(&command) && condition.message.contains(state), "{}", condition.message);
}

#[tokio::test]
async fn a_proposed_script_runs_after_its_approval_and_not_after_it_was_changed_again() {
    let daemon = Daemon::start().await;
    let spec = SessionSpec { env_setup: Some("export PROPOSED=own\n".to_owned()), ..daemon.scripted(&[]) };
    let session = daemon.session(&spec).await;
    let id = session.id.to_string();
    let nothing = ctl(&daemon, &["env", "allow", "--session", &id, "--yes"]).await;
    assert!(nothing.status == Some(1) && nothing.err.contains("no script was proposed"), "{nothing:?}");

    let told = propose(&session, "one").await;
    assert_eq!(told["state"], "not-approved");
    assert!(told["next"].as_str().unwrap().contains(&format!("agentctl env allow --session {id}")), "{told}");
    let proposal = session.view().await.status.script_proposal.expect("the status has the proposal");
    assert_eq!(proposal.explanation.as_deref(), Some("it needs one"));
    is_not_run(&relaunched(&session).await, &session, "not-approved");
    assert_eq!(variable(&session).await.as_deref(), Some("own"), "the launch continued without the script");

    // Without a terminal and without --yes nothing is approved.
    let unread = ctl(&daemon, &["env", "allow", "--session", &id]).await;
    assert!(unread.status == Some(1) && unread.err.contains("nothing was approved"), "{unread:?}");
    assert!(unread.out.contains("export PROPOSED=one") && unread.out.contains("it needs one"), "{unread:?}");
    assert_eq!(ctl(&daemon, &["env", "allow", "--session", &id, "--yes"]).await.status, Some(0));
    let listed = ctl(&daemon, &["env", "scripts", "--session", &id]).await;
    assert!(listed.out.contains("approved") && !listed.out.contains("not-approved"), "{listed:?}");
    assert_eq!(relaunched(&session).await.status, ConditionStatus::True);
    assert_eq!(variable(&session).await.as_deref(), Some("one"), "it runs after the session's own script");

    propose(&session, "two").await;
    is_not_run(&relaunched(&session).await, &session, "changed");
    assert_eq!(variable(&session).await.as_deref(), Some("own"));
    let changed = ctl(&daemon, &["env", "allow", "--session", &id]).await;
    assert!(changed.out.contains("-export PROPOSED=one\n+export PROPOSED=two"), "{changed:?}");

    // The approved text may run again. A process that writes the file approves nothing.
    propose(&session, "one").await;
    assert_eq!(relaunched(&session).await.status, ConditionStatus::True);
    let file = session.directory().join("proposed-env.sh");
    session.turn(&format!("do echo export PROPOSED=three > {}", quoted(&file))).await;
    is_not_run(&relaunched(&session).await, &session, "changed");
    assert_eq!(variable(&session).await.as_deref(), Some("own"));
    let listed: Value = daemon.client.get(&session.path("/script-proposal")).await.expect(200);
    assert_eq!(listed["scripts"][0]["explanation"], Value::Null, "the explanation is of another script: {listed}");

    assert_eq!(ctl(&daemon, &["env", "deny", "--session", &id]).await.status, Some(0));
    assert_eq!(relaunched(&session).await.status, ConditionStatus::True, "a denial is the owner's wish");
    assert_eq!(variable(&session).await.as_deref(), Some("own"));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_guarded_agent_reaches_its_session_by_its_own_socket() {
    use agentd_api::isolation::Isolation;

    let Some(()) = crate::harness::require::guard() else { return };
    let mut daemon = Daemon::start().await;
    let spec = SessionSpec { isolation: Some(Isolation::Guard), ..daemon.scripted(&[]) };
    let session = daemon.session(&spec).await;
    answer(&call(&session, &json!([["set_title", { "title": "behind walls" }]])).await[0]);
    daemon.kill9();
    daemon.run().await;
    answer(&call(&session, &json!([["report_progress", { "message": "still there" }]])).await[0]);
    let status = session.view().await.status;
    assert_eq!(status.title.as_deref(), Some("behind walls"));
    assert_eq!(status.progress.map(|progress| progress.message).as_deref(), Some("still there"));
    propose(&session, "one").await;
    let file = session.directory().join("proposed-env.sh");
    assert!(file.exists(), "the daemon stored the script");
    session.turn(&format!("do echo export PROPOSED=x > {}", quoted(&file))).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "export PROPOSED=one\n", "the agent cannot reach the file");
}
