//! Refusals that few routes have, each with the state that it needs.

use std::fs;

use agentd_api::{Code, Route};
use serde_json::{Value, json};

use super::{assert_all_refused, others, others_of, prepared, target};
use crate::harness::dead::Dead;
use crate::harness::{Daemon, require};

/// Makes a call, and fails unless it is refused with this code.
async fn refused(daemon: &Daemon, (method, address): (&str, &str), body: Value, code: Code) {
    let answer = daemon.client.call(method, address, body.to_string()).await;
    assert_eq!(answer.problem().code, code, "{method} {address}: {answer:?}");
}

#[tokio::test]
async fn single_calls_are_refused_for_what_they_name() {
    let (daemon, _) = prepared("[limits]\nqueued_turns = 1", "none").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    fs::write(daemon.work().join(".agentd-env.sh"), "export A=1\n").unwrap();
    let agent = json!({ "name": "scripted", "command": ["/bin/true"] });
    refused(&daemon, ("POST", "/v1/agents"), agent, Code::NameTaken).await;
    let script = daemon.work().join(".agentd-env.sh");
    let shown = json!({ "directory": daemon.work(), "shown": { script.to_str().unwrap(): "0".repeat(64) } });
    refused(&daemon, ("POST", "/v1/scripts/allow"), shown, Code::ScriptChanged).await;
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": 1 } });
    refused(&daemon, ("POST", "/acp?agent=No%20Agent"), message, Code::InvalidId).await;

    session.prompt("hang").await;
    session.prompt("say second").await;
    refused(&daemon, ("POST", &session.path("/prompt")), json!({ "prompt": "say third" }), Code::QueueFull).await;

    let schedule = json!({
        "name": "nightly", "at": "2199-01-01T00:00:00Z", "session": { "directory": daemon.work(), "agent": "scripted" },
    });
    assert_eq!(daemon.client.post("/v1/schedules", &schedule).await.status, 201);
    let mut past = schedule.clone();
    past["at"] = json!("2001-01-01T00:00:00Z");
    refused(&daemon, ("PUT", "/v1/schedules/nightly"), past, Code::ScheduleInvalid).await;
    let body = schedule.to_string();
    let head = "host: a\r\ncontent-type: application/json\r\nconnection: close\r\nif-match: \"99\"";
    let length = body.len();
    let request = format!("PUT /v1/schedules/nightly HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}");
    let answer = String::from_utf8(daemon.client.raw(request.as_bytes()).await).unwrap();
    assert!(answer.contains("\"code\":\"generation-changed\""), "{answer}");
}

#[tokio::test]
async fn a_directory_that_is_silent_is_refused_wherever_it_is_needed() {
    if require::fuse().is_none() {
        return;
    }
    let daemon = Daemon::start().await;
    let mut dead = Dead::mount(daemon.work().join("dead"), "fuse", "dead", &[]);
    let mut target = target(&daemon, "none");
    target.directory.clone_from(&dead.path);
    target.spec["directory"] = json!(dead.path);
    let wrong = others_of(&daemon, &target, Code::DirectorySilent).await;
    dead.release();
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn a_session_that_cannot_be_read_is_named_by_calls_on_many_sessions() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.stop().await;
    daemon.kill9();
    fs::write(session.directory().join("session.json"), "{").unwrap();
    daemon.run().await;
    let (target, mut answers) = (target(&daemon, session.id.as_str()), Vec::new());
    for route in super::with(Code::SessionUnreadable) {
        if !route.path().contains("{session}") {
            answers.push((route, target.make(&daemon.client, route).await));
        }
    }
    assert_all_refused(&others(Code::SessionUnreadable, answers));
}

#[tokio::test]
async fn names_of_sessions_in_bodies_are_checked() {
    let (daemon, _) = prepared("", "none").await;
    for (code, name) in [(Code::InvalidId, "No Session"), (Code::NoSuchSession, "none")] {
        let mut target = target(&daemon, name);
        target.spec["parent"] = json!(name);
        let mut wrong = Vec::new();
        for route in super::with(code) {
            let is_named = !route.path().contains("{session}") && route != Route::Feed && route.path() != "/acp";
            // The path of the list would need another spelling of the name.
            if is_named && route != Route::Prerequisites {
                wrong.extend(others(code, [(route, target.make(&daemon.client, route).await)]));
            }
        }
        assert_all_refused(&wrong);
    }
}
