//! Refusals of the work itself: a session, a specification or a daemon in a state that does not allow the call.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use agentd_api::session::{Phase, SessionSpec};
use agentd_api::{Code, Route};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::calls::Target;
use super::{assert_all_refused, others, others_of, prepared, target, with};
use crate::harness::{Daemon, Session, process};

/// Returns the target of calls on this session.
fn on(daemon: &Daemon, session: &Session) -> Target {
    target(daemon, session.id.as_str())
}

/// Returns a session that has ended, with these fields in its specification.
async fn stopped(daemon: &Daemon, fields: Value) -> Session {
    let mut spec = serde_json::to_value(daemon.scripted(&[])).unwrap();
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let session = daemon.session(&serde_json::from_value::<SessionSpec>(spec).unwrap()).await;
    session.stop().await;
    session
}

/// Returns a session that has completed, so that a prompt launches it.
async fn completed(daemon: &Daemon) -> Session {
    let spec = SessionSpec { initial_prompt: Some("say done".into()), interactive: false, ..daemon.scripted(&[]) };
    let session = daemon.create(&spec).await;
    session.wait_for_phase(Phase::Completed).await;
    session
}

/// The prerequisite of the calls.
const GATE: &str = "[prerequisites.gate]\nplugin = \"mount\"\nsettings = { path = \"/no/such\", kind = \"nfs*\" }";

/// The routes that launch a session. A run of a schedule records the refusal, and is answered.
const LAUNCHES: [Route; 3] = [Route::CreateSession, Route::Resume, Route::Prompt];

/// Makes the calls that launch a session, each on a session of its own, and lists those
/// that are not refused with the code.
async fn launches(daemon: &Daemon, (at_rest, done): (&Session, &Session), code: Code) -> Vec<String> {
    let mut answers = Vec::new();
    for route in LAUNCHES {
        let session = if route == Route::Prompt { done } else { at_rest };
        answers.push((route, on(daemon, session).make(&daemon.client, route).await));
    }
    others(code, answers)
}

#[tokio::test]
async fn each_command_to_a_session_whose_keeper_is_silent_is_refused() {
    let mut wrong = Vec::new();
    let daemon = Daemon::impatient().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.prompt("ask").await;
    let asked = session.wait_for("a question", |view| !view.status.permissions.is_empty()).await;
    kill(process::pid(asked.status.keeper_pid.unwrap()), Signal::SIGSTOP).unwrap();
    wrong.extend(others_of(&daemon, &on(&daemon, &session), Code::KeeperSilent).await);
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn each_command_to_a_session_whose_journal_cannot_be_written_is_refused() {
    let mut wrong = Vec::new();
    let mut daemon = Daemon::prepare();
    fs::create_dir_all(daemon.state().join("faults")).unwrap();
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.prompt("ask").await;
    session.wait_for("a question", |view| !view.status.permissions.is_empty()).await;
    let fault = format!("refuse {}", nix::errno::Errno::ENOSPC as i32);
    fs::write(daemon.state().join("faults/journal.append.before"), fault).unwrap();
    wrong.extend(others_of(&daemon, &on(&daemon, &session), Code::JournalNotWritable).await);
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn each_command_in_the_wrong_phase_is_refused() {
    let mut wrong = Vec::new();
    let (daemon, _) = prepared("", "none").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let running = on(&daemon, &session);
    let of_running = [Route::Resume, Route::RemoveSession, Route::Cancel];
    let mut answers = Vec::new();
    for route in of_running {
        answers.push((route, running.make(&daemon.client, route).await));
    }
    session.stop().await;
    for route in with(Code::WrongPhase).into_iter().filter(|route| !of_running.contains(route)) {
        answers.push((route, running.make(&daemon.client, route).await));
    }
    wrong.extend(others(Code::WrongPhase, answers));
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn a_daemon_that_launches_no_session_refuses_each_launch() {
    let mut wrong = Vec::new();
    let (mut daemon, _) = prepared("[limits]\nactive_sessions = 2", "none").await;
    let (at_rest, done) = (stopped(&daemon, json!({})).await, completed(&daemon).await);
    let (_first, _second) = (daemon.session(&daemon.scripted(&[])).await, daemon.session(&daemon.scripted(&[])).await);
    wrong.extend(launches(&daemon, (&at_rest, &done), Code::TooManySessions).await);
    daemon.client.call("POST", "/v1/drain?wait=60s", "").await.expect::<Value>(202);
    wrong.extend(launches(&daemon, (&at_rest, &done), Code::Draining).await);
    daemon.client.call("DELETE", "/v1/drain", "").await.expect::<Value>(200);

    // A provider that cannot be loaded, then a mistake in the file.
    let right = fs::read_to_string(daemon.root().join("config/agentd.toml")).unwrap();
    let plugin = "[plugins.broken]\npath = \"/no/such/plugin.wasm\"\n";
    for (code, lines) in [(Code::EnvironmentNotBuilt, plugin), (Code::ConfigurationInvalid, "[limits\n")] {
        daemon.kill9();
        let broken =
            right.replace("[environment]", "[environment]\nproviders = [\"snapshot\", \"whitelist\", \"broken\"]");
        let broken = if code == Code::EnvironmentNotBuilt { broken } else { right.clone() };
        daemon.configure(|_| format!("{broken}\n{lines}"));
        daemon.run().await;
        let target = on(&daemon, &at_rest);
        let mut answers = Vec::new();
        for route in with(code) {
            let target = if route == Route::Prompt { on(&daemon, &done) } else { target.clone() };
            answers.push((route, target.make(&daemon.client, route).await));
        }
        wrong.extend(others(code, answers));
    }
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn a_directory_that_is_gone_is_refused_wherever_it_is_needed() {
    let mut wrong = Vec::new();
    let (daemon, _) = prepared(GATE, "none").await;
    let (at_rest, done) = (stopped(&daemon, json!({})).await, completed(&daemon).await);
    let target = on(&daemon, &at_rest);
    fs::remove_dir_all(daemon.work()).unwrap();
    let mut answers = Vec::new();
    for route in with(Code::NoSuchDirectory) {
        let target = if route == Route::Prompt { on(&daemon, &done) } else { target.clone() };
        answers.push((route, target.make(&daemon.client, route).await));
    }
    wrong.extend(others(Code::NoSuchDirectory, answers));
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn an_agent_that_is_not_configured_is_refused_wherever_it_is_needed() {
    let mut wrong = Vec::new();
    let mut daemon = Daemon::prepare();
    let command = json!(crate::harness::scripted_agent());
    daemon.configure(|config| format!("{config}\n[agents.going]\ncommand = [{command}]\n"));
    daemon.run().await;
    let going = json!({ "command": null, "agent": "going" });
    let at_rest = stopped(&daemon, going.clone()).await;
    let spec = json!({ "directory": daemon.work(), "agent": "going" });
    let mut target = Target { spec, change: json!({ "agent": "gone" }), agent: "gone".into(), ..on(&daemon, &at_rest) };
    daemon.configure(|config| config.replace("[agents.going]", "[agents.other]"));
    daemon.client.call("POST", "/v1/reload", "").await.expect::<Value>(200);
    target.session = at_rest.id.to_string();
    wrong.extend(others_of(&daemon, &target, Code::NoSuchAgent).await);
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn a_specification_with_a_mistake_is_refused_wherever_it_is_accepted() {
    let mut wrong = Vec::new();
    let (daemon, _) = prepared("", "none").await;
    let session = stopped(&daemon, json!({})).await;
    stopped(&daemon, json!({ "name": "taken" })).await;
    let schedule = on(&daemon, &session).body(Route::AddSchedule);
    assert_eq!(daemon.client.post("/v1/schedules", &schedule).await.status, 201);
    for (code, field, value) in [
        (Code::NameTaken, "name", json!("taken")),
        (Code::NoSuchPrerequisite, "requires", json!(["nothing"])),
        (Code::NoSuchPlace, "place", json!("moon")),
        (Code::SecretInEnvironment, "environment", json!({ "set": { "API_TOKEN": "0123456789abcdef0123" } })),
        (Code::SchemaInvalid, "answer_schema", json!({ "type": 7 })),
    ] {
        let mut target = on(&daemon, &session);
        target.spec[field] = value.clone();
        if code == Code::SchemaInvalid {
            target.spec["interactive"] = json!(false);
            target.spec["initial_prompt"] = json!("say so");
        }
        target.change = json!({ field: value });
        wrong.extend(others_of(&daemon, &target, code).await);
    }
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn an_environment_that_cannot_be_had_is_refused_wherever_it_is_needed() {
    let mut wrong = Vec::new();
    let mut daemon = Daemon::prepare();
    let key = daemon.root().join("key");
    fs::write(&key, "1".repeat(64)).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    daemon.configure(|config| {
        format!("{config}\n{GATE}\n[environment.encryption]\nenabled = true\nkey = {{ file = {key:?} }}\n")
    });
    daemon.run().await;
    let stored = json!({ "environment": { "refresh": "stored" } });
    let session = stopped(&daemon, stored).await;
    let target = on(&daemon, &session);
    fs::remove_file(&key).unwrap();
    wrong.extend(others_of(&daemon, &target, Code::KeyUnavailable).await);
    fs::write(&key, "1".repeat(64)).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(session.directory().join("environment.json"), "{").unwrap();
    wrong.extend(others_of(&daemon, &target, Code::EnvironmentUnreadable).await);
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn a_snapshot_of_a_terminal_that_is_missing_is_refused_wherever_it_is_needed() {
    let mut wrong = Vec::new();
    let (daemon, _) = prepared("", "none").await;
    for (code, environment) in [
        (Code::SnapshotNeeded, json!({ "source": "terminal" })),
        (Code::NoSuchSnapshot, json!({ "source": "terminal", "snapshot": "none" })),
    ] {
        let session = stopped(&daemon, json!({})).await;
        let mut target = on(&daemon, &session);
        target.spec["environment"] = environment.clone();
        target.change = json!({ "environment": environment });
        wrong.extend(others_of(&daemon, &target, code).await);
    }
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn approvals_that_cannot_be_read_are_refused_wherever_they_are_needed() {
    let mut wrong = Vec::new();
    let (mut daemon, target) = prepared("", "none").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    fs::write(daemon.work().join(".agentd-env.sh"), "export A=1\n").unwrap();
    daemon.kill9();
    fs::write(daemon.state().join("trust.json"), "{").unwrap();
    daemon.run().await;
    let target = Target { session: session.id.to_string(), ..target };
    wrong.extend(others_of(&daemon, &target, Code::ApprovalsUnreadable).await);
    assert_all_refused(&wrong);
}
