//! Refusals before the work of a route: the caller, the query, the body, and the session in the path.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use agentd_api::{Code, Route};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

use super::{assert_all_refused, others, others_of, prepared, target, with};
use crate::boundary::children;
use crate::harness::{Daemon, reached, within};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

#[tokio::test]
async fn each_route_refuses_unknown_query_keys() {
    let mut wrong = Vec::new();
    let (daemon, target) = prepared("", "none").await;
    let mut answers = Vec::new();
    for route in with(Code::InvalidRequest) {
        let address = target.address(route);
        let address = format!("{address}{}nonsense=1", if address.contains('?') { '&' } else { '?' });
        answers.push((route, daemon.client.call(route.method().as_str(), &address, "").await));
    }
    wrong.extend(others(Code::InvalidRequest, answers));
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn each_route_refuses_requests_over_tcp_without_the_token_for_another_host_and_from_another_site() {
    let mut daemon = Daemon::prepare();
    let file = daemon.root().join("token");
    fs::write(&file, TOKEN).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    daemon.configure(|config| format!("{config}\n[control]\ntcp = \"127.0.0.1:0\"\ntoken = {{ file = {file:?} }}\n"));
    daemon.run().await;
    let version: Value = daemon.client.get("/v1/version").await.expect(200);
    let tcp = version["tcp"].as_str().unwrap();
    let target = target(&daemon, "none");
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    let kinds = [
        (Code::Unauthorized, format!("host: {tcp}\r\n")),
        (Code::ForeignHost, format!("host: rebound.example\r\n{bearer}")),
        (Code::ForeignOrigin, format!("host: {tcp}\r\n{bearer}origin: http://evil.example\r\n")),
    ];
    for (code, head) in kinds {
        for route in with(code) {
            let request =
                format!("{} {} HTTP/1.1\r\n{head}connection: close\r\n\r\n", route.method(), target.address(route));
            let mut stream = TcpStream::connect(tcp).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            within("the answer", stream.read_to_end(&mut answer)).await.unwrap();
            reached::record_raw(request.as_bytes(), &answer);
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.contains(&format!("\"code\":\"{}\"", code.as_str())), "{route}: {answer}");
        }
    }
}

#[tokio::test]
async fn each_route_refuses_a_caller_inside_a_session_that_may_make_no_call() {
    let (daemon, _) = prepared("[control]\nguests = \"none\"", "none").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let target = target(&daemon, session.id.as_str());
    for route in with(Code::InSession) {
        let address = target.address(route);
        let answer = children::ask(&daemon, &session, route.method().as_str(), &address, &Value::Null).await;
        assert_eq!(children::refusal(&answer), "in-session", "{route}");
    }
}

#[tokio::test]
async fn each_route_with_a_session_refuses_ids_that_are_wrong_unknown_or_cannot_be_read() {
    let mut wrong = Vec::new();
    let (mut daemon, _) = prepared("", "none").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.stop().await;
    daemon.kill9();
    fs::write(session.directory().join("session.json"), "{").unwrap();
    daemon.run().await;
    for (code, id) in [
        (Code::InvalidId, "No%20Session"),
        (Code::NoSuchSession, "none"),
        (Code::SessionUnreadable, session.id.as_str()),
    ] {
        let (target, mut answers) = (target(&daemon, id), Vec::new());
        // Other routes name sessions in their bodies or not at all.
        for route in with(code).into_iter().filter(|route| route.path().contains("{session}")) {
            answers.push((route, target.make(&daemon.client, route).await));
        }
        wrong.extend(others(code, answers));
    }
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn each_route_with_a_body_refuses_bodies_that_are_wrong_too_large_or_late() {
    let mut wrong = Vec::new();
    let limits = "[limits]\nbody = \"64K\"\nprompt = \"64K\"\nbody_time = \"1s\"";
    let (daemon, _) = prepared(limits, "none").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let target = target(&daemon, session.id.as_str());
    for (code, body) in [(Code::MalformedRequest, "{"), (Code::BodyTooLarge, " ".repeat(65 << 10).as_str())] {
        let mut answers = Vec::new();
        for route in with(code) {
            let (method, address) = (route.method(), target.address(route));
            answers.push((route, daemon.client.call(method.as_str(), &address, body.to_owned()).await));
        }
        wrong.extend(others(code, answers));
    }
    // All at once, since each answer takes a third of a second.
    let mut late = JoinSet::new();
    for route in with(Code::BodyTimeout) {
        let (client, address) = (daemon.client.clone(), target.address(route));
        late.spawn(async move {
            let head = "host: a\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 9";
            let request = format!("{} {address} HTTP/1.1\r\n{head}\r\n\r\n{{", route.method());
            (route, String::from_utf8(client.raw(request.as_bytes()).await).unwrap())
        });
    }
    for (route, answer) in late.join_all().await {
        assert!(answer.contains("\"code\":\"body-timeout\""), "{route}: {answer}");
    }
    assert_all_refused(&wrong);
}

/// Holds a stream. That of an earlier request may not have ended yet.
async fn held(daemon: &Daemon) -> UnixStream {
    let open = async {
        loop {
            let mut stream = UnixStream::connect(daemon.client.socket()).await.unwrap();
            stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            let mut status = [0; 12];
            stream.read_exact(&mut status).await.unwrap();
            if status.ends_with(b"200") {
                return stream;
            }
        }
    };
    within("a stream", open).await
}

#[tokio::test]
async fn each_route_that_waits_or_streams_refuses_a_caller_with_too_many_streams() {
    let mut wrong = Vec::new();
    let (daemon, _) = prepared("[limits]\nstreams_per_caller = 1", "none").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let held = held(&daemon).await;
    let (target, mut answers) = (target(&daemon, session.id.as_str()), Vec::new());
    for route in with(Code::TooManyStreams) {
        let address = target.address(route).replace("?follow=false", "");
        let waits = route.keys().iter().any(|key| key.name == "wait");
        let address = if waits { format!("{address}?wait=5s") } else { address };
        let body = target.body(route);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let attempt = daemon.client.attempt(route.method().as_str(), &address, body, None);
        answers.push((route, tokio::time::timeout(Duration::from_secs(20), attempt).await.unwrap().unwrap()));
    }
    drop(held);
    wrong.extend(others(Code::TooManyStreams, answers));
    assert_all_refused(&wrong);
}

#[tokio::test]
async fn names_that_lead_to_nothing_are_refused() {
    let mut wrong = Vec::new();
    let (daemon, _) = prepared("", "none").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let target = target(&daemon, session.id.as_str());
    for code in [Code::NoSuchSchedule, Code::NoSuchRepository, Code::NoSuchTurn, Code::NoSuchPermission] {
        wrong.extend(others_of(&daemon, &target, code).await);
    }
    let none = super::target(&daemon, "none");
    for code in [Code::InvalidId, Code::NoSuchSession] {
        let id = if code == Code::InvalidId { "No Session" } else { "none" };
        let body = json!({ "select": { "sessions": [id] }, "answer": "deny" });
        let mut answers = Vec::new();
        for route in [Route::BulkStop, Route::BulkResume, Route::BulkRemove, Route::BulkAnswer] {
            let mut body = body.clone();
            if route != Route::BulkAnswer {
                body.as_object_mut().unwrap().remove("answer");
            }
            answers.push((route, daemon.client.post(route.path(), &body).await));
        }
        let prerequisites = none.address(Route::Prerequisites).replace("none", &id.replace(' ', "%20"));
        answers.push((Route::Prerequisites, daemon.client.get(&prerequisites).await));
        wrong.extend(others(code, answers));
    }
    assert_all_refused(&wrong);
}
