//! The description of the control endpoint (`docs/reference/openapi.json`): the daemon serves the document, and real
//! answers fit the document. `tools.rs` shows that programs of others understand it.

mod described;
mod tools;

use agentd_api::session::SessionView;
use agentd_api::{Route, route};
use described::Description;
use serde_json::{Value, json};

use crate::harness::client::in_query;
use crate::harness::{Daemon, Session};

/// Routes whose answers other tests check: `tests/it/editor/` speaks the protocol of editors over `/acp`.
const ELSEWHERE: &[Route] =
    &[Route::AcpSend, Route::AcpStream, Route::AcpEnd, Route::AnswerRequest, Route::RemoveRepository, Route::Metrics];

#[tokio::test]
async fn the_daemon_serves_the_committed_description_and_says_when_a_client_has_it() {
    let daemon = Daemon::start().await;
    let answer = daemon.client.get("/v1/openapi.json").await;
    assert_eq!((answer.status.as_u16(), answer.content_type.as_str()), (200, "application/json"));
    let committed = std::fs::read(described::file()).unwrap();
    assert!(answer.body == committed, "the daemon serves another text than the repository has; build the daemon again");
    let tag = answer.etag.clone().expect("the description has an ETag");
    let request =
        format!("GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\nconnection: close\r\nif-none-match: {tag}\r\n\r\n");
    let known = String::from_utf8(daemon.client.raw(request.as_bytes()).await).unwrap().to_ascii_lowercase();
    assert!(known.starts_with("http/1.1 304") && known.ends_with("\r\n\r\n") && known.contains(&tag), "{known}");
}

#[test]
fn the_description_has_each_route_code_kind_and_phase() {
    let description = Description::read();
    let document = &description.document;
    for route in Route::ALL {
        let method = route.method().as_str().to_ascii_lowercase();
        assert!(document["paths"][route.path()][&method].is_object(), "{route}");
    }
    let values = |name: &str| document["components"]["schemas"][name]["enum"].as_array().cloned().unwrap_or_default();
    for code in agentd_api::Code::ALL {
        assert!(values("Code").contains(&json!(code.as_str())), "{}", code.as_str());
        assert_eq!(document["x-problem-codes"][code.as_str()]["status"], code.status());
    }
    let kinds = &document["components"]["schemas"]["Event"]["discriminator"]["mapping"];
    for kind in agentd_api::Body::KINDS {
        assert!(kinds[kind.name].is_string(), "{}", kind.name);
    }
    for kind in agentd_api::session::ConditionType::NAMES {
        assert!(values("ConditionType").contains(&json!(kind.name)), "{}", kind.name);
    }
    for reason in agentd_api::reason::ALL {
        assert!(document["x-condition-reasons"][reason.name].is_string(), "{}", reason.name);
    }
    assert!(values("Phase").contains(&json!("backing-off")) && !values("Phase").contains(&json!("unknown")));
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn an_answer_that_does_not_fit_is_found() {
    let description = Description::read();
    let fits = |status, kind: &str, body: &Value| {
        description.check(Route::Health, status, kind, body.to_string().as_bytes()).is_ok()
    };
    let problem = |code: &str| json!({ "status": 403, "code": code, "detail": "no" });
    assert!(fits(200, "application/json", &json!({ "status": "ok", "later": 1 })));
    assert!(!fits(200, "application/json", &json!({ "status": "poorly" })));
    assert!(!fits(200, "application/json", &json!({})));
    assert!(!fits(200, "text/plain", &json!({ "status": "ok" })));
    assert!(!fits(418, "application/json", &json!({ "status": "ok" })));
    assert!(fits(403, "application/problem+json", &problem("foreign-host")));
    assert!(!fits(403, "application/problem+json", &problem("in-session")), "the code is of another route");
    let event =
        |data: Value| json!({ "seq": 1, "time": "2026-01-01T00:00:00Z", "kind": "launch.failed", "data": data });
    let of_stream = |data| description.check_item(Route::Events, &event(data).to_string());
    assert!(of_stream(json!({ "launch": 1, "reason": "X", "message": "no" })).is_ok());
    assert!(of_stream(json!({ "launch": "1" })).is_err());
}

/// Configuration for the calls that need one: a prerequisite that is not met, and a key.
const MORE: &str = "\n[environment.encryption]\nenabled = true\n\n[prerequisites.gate]\nplugin = \"mount\"\n\
    settings = { path = \"/no/such/tools\", kind = \"nfs*\" }\nrequired_by = { tags = [\"gated\"] }\n\n\
    [[hooks]]\nname = \"phone\"\non = [\"turn.ended\"]\ncommand = [\"/bin/true\"]\n";

/// Calls of a daemon whose answers are checked.
struct Checked<'a> {
    daemon: &'a Daemon,
    description: Description,
    /// Routes with a successful answer.
    seen: Vec<Route>,
}

impl Checked<'_> {
    /// Makes a call that succeeds, and returns the answer.
    async fn ok(&mut self, method: &str, path: &str, body: Value) -> Value {
        let (route, answer) = self.ask(method, path, body).await;
        assert!(answer.status.is_success(), "{method} {path}: {answer:?}");
        self.seen.push(route);
        if answer.body.is_empty() { Value::Null } else { answer.json() }
    }

    /// Makes a call that is refused with this code.
    async fn refused(&mut self, method: &str, path: &str, body: Value, code: &str) {
        let (_, answer) = self.ask(method, path, body).await;
        assert_eq!(answer.problem().code.as_str(), code, "{method} {path}: {answer:?}");
    }

    async fn ask(&mut self, method: &str, path: &str, body: Value) -> (Route, crate::harness::Response) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.daemon.client.call(method, path, body).await;
        let route = route::find(method, path.split('?').next().unwrap_or_default()).expect("the path has a route");
        let fits = self.description.check(route, answer.status.as_u16(), &answer.content_type, &answer.body);
        fits.unwrap_or_else(|why| panic!("{method} {path}: {why}\n{answer:?}"));
        (route, answer)
    }
}

#[tokio::test]
async fn real_answers_and_events_fit_the_description() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config + MORE + &crate::place_check::places());
    daemon.run().await;
    let mut checked = Checked { daemon: &daemon, description: Description::read(), seen: Vec::new() };
    of_the_daemon(&mut checked).await;
    of_a_session(&mut checked).await;
    of_schedules(&mut checked).await;
    checked.ok("POST", "/v1/hooks/phone/test", Value::Null).await;
    checked.refused("POST", "/v1/hooks/none/test", Value::Null, "no-such-hook").await;
    for query in ["", "?stale", "?label=team=web"] {
        checked.ok("GET", &format!("/v1/sessions{query}"), Value::Null).await;
    }
    checked.ok("GET", "/v1/audit?limit=1000", Value::Null).await;
    of_many(&mut checked).await;
    checked.ok("POST", "/v1/prune", json!({ "dry_run": true, "older_than_seconds": 0 })).await;
    checked.ok("POST", "/v1/drain", Value::Null).await;
    checked.ok("GET", "/v1/drain", Value::Null).await;
    checked.refused("GET", "/readyz", Value::Null, "not-ready").await;
    checked.ok("DELETE", "/v1/drain", Value::Null).await;
    let missing: Vec<String> = Route::ALL
        .iter()
        .filter(|route| !checked.seen.contains(route) && !ELSEWHERE.contains(route))
        .map(ToString::to_string)
        .collect();
    assert!(missing.is_empty(), "no answer of these routes was checked: {missing:?}");
}

async fn of_the_daemon(checked: &mut Checked<'_>) {
    let directory = checked.daemon.work();
    std::fs::write(directory.join("note"), "").unwrap();
    let scripts = format!("/v1/scripts?directory={}&diff", in_query(&directory));
    for path in [
        "/healthz",
        "/readyz",
        "/v1/version",
        "/v1/openapi.json",
        "/v1/agents",
        "/v1/catalogue",
        "/v1/catalogue?agent=demo",
        "/v1/doctor",
        "/v1/plugins",
        "/v1/plugins/whitelist",
        "/v1/prerequisites",
        "/v1/places",
        "/v1/reload",
        "/v1/drain",
        "/v1/secrets",
        "/v1/snapshots",
        "/v1/schedules",
        "/v1/hooks",
        "/v1/directories?path=/usr/",
        scripts.as_str(),
    ] {
        checked.ok("GET", path, Value::Null).await;
    }
    let decision = json!({ "directory": directory });
    for (path, body) in [
        ("/v1/agents", json!({ "name": "another", "command": ["/bin/true"], "dry_run": true })),
        ("/v1/agents/scripted/environment", json!({ "directory": directory })),
        ("/v1/reload?dry_run", Value::Null),
        ("/v1/scripts/allow", decision.clone()),
        ("/v1/scripts/deny", decision),
        ("/v1/secrets/check", Value::Null),
        ("/v1/prerequisites/gate/check", json!({})),
        ("/v1/places/near/check", Value::Null),
        (
            "/v1/snapshots",
            json!({ "variables": [{ "name": "A", "value": "b" }, { "name": "B", "value": { "base64": "/w==" } }] }),
        ),
        ("/v1/snapshots/refresh", Value::Null),
        ("/v1/snapshots/invalidate", Value::Null),
        ("/v1/environment/rotate-key", Value::Null),
        ("/v1/environment/keep", json!({ "names": ["FROM_PROFILE"] })),
    ] {
        checked.ok("POST", path, body).await;
    }
    checked.refused("GET", "/v1/plugins/none", Value::Null, "no-such-plugin").await;
    checked.refused("GET", "/v1/catalogue?agent=none", Value::Null, "no-such-agent").await;
    checked.refused("GET", "/v1/scripts", Value::Null, "invalid-request").await;
    checked.refused("GET", "/v1/directories?path=/none/x", Value::Null, "no-such-directory").await;
    checked.refused("POST", "/v1/prerequisites/none/check", json!({}), "no-such-prerequisite").await;
    checked.refused("POST", "/v1/places/none/check", Value::Null, "no-such-place").await;
}

async fn of_a_session(checked: &mut Checked<'_>) {
    let mut spec = serde_json::to_value(checked.daemon.scripted(&[])).unwrap();
    spec["name"] = json!("described");
    spec["labels"] = json!({ "team": "web" });
    spec["limits"] = json!({ "idle_seconds": "1h", "memory": "4G" });
    let view = checked.ok("POST", "/v1/sessions?wait=60", spec).await;
    let view: SessionView = serde_json::from_value(view).unwrap();
    let session = Session::new(view.id, checked.daemon.client.clone(), checked.daemon.state());
    let path = |rest: &str| format!("/v1/sessions/described{rest}");
    session.turn("say hello").await;
    let accepted = session.prompt("ask").await;
    let asked = session.wait_for("a permission request", |view| !view.status.permissions.is_empty()).await;
    let permission = &asked.status.permissions[0].id;
    checked.ok("GET", &path(""), Value::Null).await;
    checked.ok("POST", &path(&format!("/permissions/{permission}")), json!({ "option": "yes" })).await;
    session.end_of(&accepted).await;
    for (method, rest, body) in [
        ("GET", "/environment?values", Value::Null),
        ("GET", "/environment/diff?values", Value::Null),
        ("GET", "/validation", Value::Null),
        ("GET", "/options", Value::Null),
        ("GET", "/note", Value::Null),
        ("PATCH", "/context", json!({ "sets": { "files": ["/etc/hostname", "/no/such/file"] } })),
        ("GET", "/context", Value::Null),
        ("PUT", "/hint", json!({ "hint": "source setup.sh" })),
        ("PUT", "/title", json!({ "title": null })),
        ("PUT", "/progress", json!({ "message": "half way", "percent": 50 })),
        ("PUT", "/script-proposal", json!({ "text": "export A=1", "explanation": "needed" })),
        ("GET", "/script-proposal?diff", Value::Null),
        ("POST", "/prerequisites/check", Value::Null),
        ("POST", "/observed", Value::Null),
        ("PATCH", "", json!({ "labels": { "team": "web", "stage": "test" }, "limits": { "tasks": null } })),
        ("GET", "/repos", Value::Null),
        ("POST", "/prompt", json!({ "prompt": "hang" })),
        ("POST", "/cancel", Value::Null),
    ] {
        checked.ok(method, &path(rest), body).await;
    }
    let source = checked.daemon.root().join("no-repository");
    let repository = json!({ "url": source, "name": "lib" });
    checked.ok("POST", &path("/repos"), repository).await;
    let running = session.prompt("hang").await.turn;
    let queued = session.prompt("say later").await.turn;
    for turn in [queued, running] {
        checked.ok("DELETE", &path(&format!("/turns/{turn}")), Value::Null).await;
    }
    checked.refused("DELETE", &path("/turns/t99"), Value::Null, "no-such-turn").await;
    checked.refused("POST", &path("/permissions/p99"), json!("deny"), "no-such-permission").await;
    checked.refused("POST", &path("/prompt"), json!({ "no": 1 }), "malformed-request").await;
    checked.ok("POST", &path("/stop?wait=60"), Value::Null).await;
    checked.ok("POST", &path("/resume?wait=60"), Value::Null).await;
    checked.refused("DELETE", &path(""), Value::Null, "wrong-phase").await;
    events(checked, &session).await;
    checked.ok("DELETE", &path("?force"), Value::Null).await;
    checked.refused("GET", &path(""), Value::Null, "no-such-session").await;
}

/// Checks each event of a session.
async fn events(checked: &mut Checked<'_>, session: &Session) {
    let answer = session.client.get(&session.path("/events?follow=false")).await;
    assert_eq!((answer.status.as_u16(), answer.content_type.as_str()), (200, "application/x-ndjson"));
    let text = String::from_utf8(answer.body.to_vec()).expect("a journal is UTF-8");
    for line in text.lines() {
        let fits = checked.description.check_item(Route::Events, line);
        fits.unwrap_or_else(|why| panic!("{why}\n{line}"));
    }
    assert!(text.lines().count() > 40, "{text}");
    checked.seen.push(Route::Events);
}

/// Checks the stream of all events, and the calls on many sessions.
async fn of_many(checked: &mut Checked<'_>) {
    let answer = checked.daemon.client.get("/v1/events?follow=false").await;
    assert_eq!((answer.status.as_u16(), answer.content_type.as_str()), (200, "application/x-ndjson"));
    for line in String::from_utf8(answer.body.to_vec()).expect("the feed is UTF-8").lines() {
        let fits = checked.description.check_item(Route::Feed, line);
        fits.unwrap_or_else(|why| panic!("{why}\n{line}"));
    }
    checked.seen.push(Route::Feed);
    let select = json!({ "all": true });
    for (call, body) in [
        ("stop", json!({ "select": select, "wait": true })),
        ("resume", json!({ "select": select })),
        ("answer", json!({ "select": select, "answer": "deny" })),
        ("remove", json!({ "select": select, "force": true })),
    ] {
        checked.ok("POST", &format!("/v1/bulk/{call}"), body).await;
        checked.refused("POST", &format!("/v1/bulk/{call}"), json!({ "no": 1 }), "malformed-request").await;
    }
}

async fn of_schedules(checked: &mut Checked<'_>) {
    let session = json!({ "directory": checked.daemon.work(), "agent": "scripted" });
    let schedule = json!({ "name": "nightly", "at": "2199-01-01T00:00:00Z", "session": session });
    checked.ok("POST", "/v1/schedules", schedule.clone()).await;
    checked.refused("POST", "/v1/schedules", schedule.clone(), "name-taken").await;
    checked.ok("PUT", "/v1/schedules/nightly", schedule).await;
    checked.ok("GET", "/v1/schedules/nightly", Value::Null).await;
    checked.ok("POST", "/v1/schedules/nightly/run", Value::Null).await;
    checked.ok("GET", "/v1/schedules", Value::Null).await;
    checked.ok("DELETE", "/v1/schedules/nightly", Value::Null).await;
    checked.refused("GET", "/v1/schedules/nightly", Value::Null, "no-such-schedule").await;
}
