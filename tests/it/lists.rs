//! `GET /v1/sessions`: pages, filters, sparse items and tags; `HEAD`; the condition `NeedsAttention`; `agentctl ls`.

use std::collections::BTreeSet;
use std::process::Stdio;

use agentd_api::list::{SessionList, SessionSummary, attention_of};
use agentd_api::route::{Answer, Method};
use agentd_api::session::{PermissionPolicy, Phase, SessionSpec, SessionView, WholeList};
use agentd_api::{Code, Route};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::boundary::children::ask;
use crate::harness::client::in_query;
use crate::harness::ctl::{agentctl, ctl};
use crate::harness::{Daemon, Session, scripted_agent, within};

/// Returns the specification of a session that fails at once.
fn failing(daemon: &Daemon, more: &Value) -> SessionSpec {
    let mut spec = json!({ "directory": daemon.work(), "command": ["/bin/false"] });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

async fn failed(daemon: &Daemon, more: Value) -> Session {
    let session = daemon.create(&failing(daemon, &more)).await;
    session.wait_for_phase(Phase::Failed).await;
    session
}

/// Returns a session whose agent asks for a permission.
async fn asking(daemon: &Daemon) -> Session {
    let session = daemon.session(&SessionSpec { permissions: PermissionPolicy::Ask, ..daemon.scripted(&[]) }).await;
    session.prompt("tool echo run").await;
    session.wait_for("a question", |view| !view.status.permissions.is_empty()).await;
    session
}

/// Lets another daemon read the sessions that have ended. They have no task then, so nothing changes them.
async fn let_rest(daemon: &mut Daemon) {
    daemon.terminate().await;
    daemon.run().await;
    within("the list is at rest", async {
        loop {
            let tag = daemon.client.get("/v1/sessions").await.etag.expect("a list has a tag");
            if daemon.client.get_with("/v1/sessions", ("if-none-match", &tag)).await.status == 304 {
                return;
            }
        }
    })
    .await;
}

async fn list(daemon: &Daemon, query: &str) -> SessionList {
    daemon.client.get(&format!("/v1/sessions?{query}")).await.expect(200)
}

async fn ids(daemon: &Daemon, query: &str) -> BTreeSet<String> {
    list(daemon, query).await.sessions.into_iter().map(|item| item.id.to_string()).collect()
}

fn set(sessions: &[&Session]) -> BTreeSet<String> {
    sessions.iter().map(|session| session.id.to_string()).collect()
}

fn need(view: &SessionView) -> Option<&str> {
    attention_of(view).map(|condition| condition.reason.as_str())
}

#[tokio::test]
async fn a_session_needs_a_person_until_its_question_is_answered_or_it_is_resumed() {
    let daemon = Daemon::start().await;
    let asking = asking(&daemon).await;
    let view = asking.view().await;
    assert_eq!(need(&view), Some("PermissionRequested"));
    let answer = format!("/permissions/{}", view.status.permissions[0].id);
    let view: SessionView = asking.post(&answer, &json!("allow")).await.expect(200);
    assert_eq!(need(&view), None);
    asking.post("/stop?wait=60", &json!({})).await.expect::<SessionView>(202);
    assert_eq!(need(&asking.view().await), None, "a stopped session needs nothing");

    let failed = failed(&daemon, json!({})).await;
    let view = failed.view().await;
    let condition = attention_of(&view).expect("it has failed");
    assert_eq!((condition.reason.as_str(), Some(&condition.message)), ("Failed", view.status.message.as_ref()));
    let said = ctl(&daemon, &["show", failed.id.as_str()]).await.out;
    assert!(said.contains("NeedsAttention"), "{said}");
}

#[tokio::test]
async fn pages_have_each_session_once_although_others_are_created_and_removed() {
    let daemon = Daemon::start().await;
    let mut sessions = Vec::new();
    for number in 0..6 {
        sessions.push(failed(&daemon, json!({ "name": format!("s{number}") })).await);
    }
    let first = list(&daemon, "limit=2").await;
    let mut seen: Vec<String> = first.sessions.iter().map(|item| item.id.to_string()).collect();
    assert_eq!(seen, [sessions[0].id.to_string(), sessions[1].id.to_string()], "the order is that of creation");
    // The session of the cursor is removed, and one of the next page.
    for gone in [&sessions[1], &sessions[2]] {
        assert_eq!(daemon.client.call("DELETE", &gone.path("?force=true"), "").await.status, 204);
    }
    let new = failed(&daemon, json!({ "name": "new" })).await;
    let mut next = first.next;
    while let Some(cursor) = next {
        let page = list(&daemon, &format!("limit=2&after={cursor}")).await;
        assert!((1..=2).contains(&page.sessions.len()));
        seen.extend(page.sessions.iter().map(|item| item.id.to_string()));
        next = page.next;
    }
    let wanted: Vec<String> = [0, 1, 3, 4, 5]
        .map(|number| &sessions[number])
        .into_iter()
        .chain([&new])
        .map(|one| one.id.to_string())
        .collect();
    assert_eq!(seen, wanted);
    assert_eq!(list(&daemon, "limit=5").await.next, None, "no further session follows");
    assert_eq!(list(&daemon, "limit=4").await.sessions.len(), 4);
}

#[tokio::test]
async fn each_filter_chooses_and_several_choose_together() {
    let daemon = Daemon::start().await;
    let below = daemon.work().join("below");
    std::fs::create_dir(&below).unwrap();
    let asking = asking(&daemon).await;
    let web = failed(&daemon, json!({ "labels": { "team": "web" }, "directory": below })).await;
    let api = failed(&daemon, json!({ "labels": { "team": "api" } })).await;
    let idle = daemon.session(&daemon.scripted(&[])).await;
    let (work, agent) = (daemon.work(), scripted_agent());
    let scripted = agent.file_name().unwrap().display();
    let (work, below) = (in_query(&work), in_query(&below));
    for (query, wanted) in [
        ("phase=failed".to_owned(), set(&[&web, &api])),
        ("phase=busy,idle".to_owned(), set(&[&asking, &idle])),
        ("label=team".to_owned(), set(&[&web, &api])),
        (format!("agent={scripted}"), set(&[&asking, &idle])),
        ("agent=false".to_owned(), set(&[&web, &api])),
        (format!("directory={below}"), set(&[&web])),
        (format!("directory={below}/"), set(&[&web])),
        (format!("directory={work}"), set(&[&asking, &web, &api, &idle])),
        (format!("directory={work}/belo"), set(&[])),
        ("condition=NeedsAttention".to_owned(), set(&[&asking, &web, &api])),
        ("condition=!NeedsAttention".to_owned(), set(&[&idle])),
        ("condition=!Ready".to_owned(), set(&[&web, &api])),
        ("condition=Ready=False".to_owned(), set(&[&web, &api])),
        ("condition=Ready,NeedsAttention".to_owned(), set(&[&asking])),
        ("phase=failed&label=team%3Dweb".to_owned(), set(&[&web])),
        (format!("phase=failed&agent={scripted}"), set(&[])),
    ] {
        assert_eq!(ids(&daemon, &query).await, wanted, "{query}");
    }
    let page = list(&daemon, "phase=failed&limit=1").await;
    assert_eq!(page.sessions[0].id.as_str(), web.id.as_str());
    assert!(page.next.is_some(), "the filter comes before the page");
}

#[tokio::test]
async fn an_item_is_short_and_has_other_fields_on_request() {
    let mut daemon = Daemon::start().await;
    let spec = json!({ "name": "fix-login", "labels": { "team": "web" } });
    let session = failed(&daemon, spec).await;
    let idle = daemon.session(&daemon.scripted(&[])).await;
    idle.turn("say Fix the login page so that it accepts long names of users and of groups").await;
    let_rest(&mut daemon).await;
    let answer: Value = daemon.client.get("/v1/sessions").await.expect(200);
    for item in answer["sessions"].as_array().unwrap() {
        assert!(item.to_string().len() <= 400, "{} bytes: {item}", item.to_string().len());
    }
    let summary = list(&daemon, "").await.sessions.into_iter().find(|item| item.id.as_str() == session.id.as_str());
    assert_eq!(summary, Some(SessionSummary::of(&session.view().await)));

    let sparse: Value = daemon.client.get("/v1/sessions?fields=name,spec.labels&label=team").await.expect(200);
    let wanted = json!({ "sessions": [{ "name": "fix-login", "spec": { "labels": { "team": "web" } } }] });
    assert_eq!(sparse, wanted);
    let whole: WholeList = daemon.client.get("/v1/sessions?fields=*&label=team").await.expect(200);
    assert_eq!(whole.sessions, [session.view().await]);
}

#[tokio::test]
async fn a_client_that_has_the_list_gets_304_until_a_session_changes() {
    let mut daemon = Daemon::start().await;
    let session = failed(&daemon, json!({})).await;
    let_rest(&mut daemon).await;
    let mut tags = Vec::new();
    for query in ["", "?fields=*", "?fields=id,status.phase&limit=1"] {
        let path = format!("/v1/sessions{query}");
        let listed = daemon.client.get(&path).await;
        let tag = listed.etag.clone().expect("a list has a tag");
        assert_eq!(daemon.client.get(&path).await.etag.as_ref(), Some(&tag), "{path}");
        for known in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()] {
            let answer = daemon.client.get_with(&path, ("if-none-match", &known)).await;
            assert_eq!((answer.status.as_u16(), answer.body.len()), (304, 0), "{path} {known}");
            assert_eq!(answer.etag.as_ref(), Some(&tag), "{path} {known}");
        }
        let other = daemon.client.get_with(&path, ("if-none-match", "\"other\"")).await;
        assert_eq!((other.status.as_u16(), &other.body), (200, &listed.body), "{path}");
        tags.push((path, tag));
    }
    let title = json!({ "title": "another title" }).to_string();
    daemon.client.call("PUT", &session.path("/title"), title).await.expect::<SessionView>(200);
    for (path, tag) in &tags {
        let changed = daemon.client.get_with(path, ("if-none-match", tag)).await;
        assert_eq!(changed.status, 200, "{path}");
        assert_ne!(changed.etag.as_ref(), Some(tag), "{path}");
    }
    let before = daemon.client.get("/v1/sessions").await;
    assert!(before.json::<Value>().to_string().contains("another title"), "{before:?}");
    assert_eq!(daemon.client.call("DELETE", &session.path(""), "").await.status, 204);
    let after = daemon.client.get_with("/v1/sessions", ("if-none-match", &before.etag.unwrap())).await;
    assert_eq!(after.json::<Value>(), json!({ "sessions": [] }), "a removal is a change");
}

#[tokio::test]
async fn bad_queries_are_refused_with_a_hint() {
    let daemon = Daemon::start().await;
    for (query, word) in [
        ("limit=0", "from 1"),
        ("limit=-1", "whole number"),
        ("after=k3m", "next"),
        ("phase=Idle", "idle"),
        ("condition=Moon", "CONDITION"),
        ("directory=src", "whole path"),
        ("fields=moon", "attention"),
        ("fields=spec.moon", "initial_prompt"),
        ("fields=*,id", "remove the others"),
        ("fields=", "fields"),
        ("stale=true&limit=1", "remove limit"),
        ("order=name", "after"),
        ("limit=1&limit=2", "at most once"),
    ] {
        let problem = daemon.client.get(&format!("/v1/sessions?{query}")).await.problem();
        assert_eq!(problem.code, Code::InvalidRequest, "{query}");
        assert!(problem.hint.as_deref().unwrap_or_default().contains(word), "{query}: {:?}", problem.hint);
    }
}

#[tokio::test]
async fn a_process_inside_a_session_sees_its_own_session_only() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let other = failed(&daemon, json!({ "labels": { "team": "web" } })).await;
    for query in ["?fields=id", "?fields=id&limit=5"] {
        let (status, list) = ask(&daemon, &session, "GET", &format!("/v1/sessions{query}"), &Value::Null).await;
        assert_eq!((status, list), (200, json!({ "sessions": [{ "id": session.id }] })), "{query}");
    }
    for query in ["?label=team", "?phase=failed", "?condition=NeedsAttention"] {
        let (status, list) = ask(&daemon, &session, "GET", &format!("/v1/sessions{query}"), &Value::Null).await;
        assert_eq!((status, list), (200, json!({ "sessions": [] })), "{query}");
        assert_eq!(ids(&daemon, &query[1..]).await, set(&[&other]), "the owner sees it: {query}");
    }
}

/// Sends `HEAD`, and returns the head of the answer and everything after it.
async fn head(daemon: &Daemon, path: &str) -> (String, String) {
    let request = format!("HEAD {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let answer = String::from_utf8(daemon.client.raw(request.as_bytes()).await).expect("the answer is text");
    let (head, rest) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer:?}"));
    (head.to_ascii_lowercase(), rest.to_owned())
}

#[tokio::test]
async fn head_has_the_headers_of_get_and_no_body_on_each_route() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    for route in Route::ALL.iter().filter(|route| route.method() == Method::Get) {
        let path = route.path().replace("{session}", session.id.as_str()).replace("{name}", "whitelist");
        let (head, rest) = head(&daemon, &path).await;
        let status: u16 = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        assert!(status != 405 && status < 500 && rest.is_empty(), "{route}: {head} {rest:?}");
        if status == 200 && route.answer() != Answer::Nothing {
            assert!(head.contains("content-type: "), "{route}: {head}");
        }
        let is_stream = matches!(route.answer(), Answer::Stream(_));
        assert!(head.contains("content-length: ") || (is_stream && status == 200), "{route}: {head}");
    }
    for path in ["/v1/sessions?fields=id", &session.path("/repos"), "/healthz"] {
        let (head, answer) = (head(&daemon, path).await.0, daemon.client.get(path).await);
        let length = format!("content-length: {}", answer.body.len());
        assert!(head.lines().any(|line| line == length), "{path}: {head}");
        assert_eq!(head.contains("etag: "), answer.etag.is_some(), "{path}: {head}");
    }
    let (refused, _) = head(&daemon, "/v1/prune").await;
    assert!(refused.contains(" 405 ") && refused.contains("allow: post"), "{refused}");
    let (refused, _) = head(&daemon, "/v1/sessions/nobody").await;
    assert!(refused.contains(" 404 "), "{refused}");
    let recorded: Value = daemon.client.get("/v1/audit").await.json();
    assert!(!recorded.to_string().contains("\"path\":\"/v1/doctor\""), "HEAD changes nothing: {recorded}");
}

#[tokio::test]
async fn ls_prints_the_wanted_sessions_and_columns_with_those_that_need_a_person_first() {
    let daemon = Daemon::start().await;
    let idle = daemon.session(&SessionSpec { name: "calm".parse().ok(), ..daemon.scripted(&[]) }).await;
    let failed = failed(&daemon, json!({ "name": "broken", "labels": { "team": "web" } })).await;
    let ls = async |arguments: &[&str]| {
        let said = ctl(&daemon, &[&["ls"], arguments].concat()).await;
        assert_eq!(said.status, Some(0), "{arguments:?}: {said:?}");
        said.out
    };
    let table = ls(&[]).await;
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].contains("NEEDS") && rows[1].contains("broken") && rows[1].contains("Failed"), "{table}");
    assert!(rows[2].contains("calm") && rows.len() == 3, "{table}");
    assert_eq!(ls(&["--sort", "created", "-q"]).await, format!("{}\n{}\n", idle.id, failed.id));
    assert_eq!(ls(&["--sort", "-name", "-o", "name"]).await, "calm\nbroken\n");
    for (arguments, wanted) in [
        (&["-l", "team=web"][..], "broken\n"),
        (&["--phase", "idle,busy"], "calm\n"),
        (&["--condition", "!NeedsAttention"], "calm\n"),
        (&["--agent", "false"], "broken\n"),
        (&["--dir", "no/such/place"], ""),
    ] {
        assert_eq!(ls(&[arguments, &["-o", "name"]].concat()).await, wanted, "{arguments:?}");
    }
    let columns = "custom-columns=NAME:.spec.name,TEAM:.spec.labels.team";
    assert_eq!(ls(&["-o", columns]).await, "NAME    TEAM\nbroken  web\ncalm    <none>\n");
    assert_eq!(ls(&["-o", columns, "--no-headers", "--phase", "failed"]).await, "broken  web\n");
    assert!(ls(&["-o", "wide"]).await.contains("team=web"));
    let json: WholeList = serde_json::from_str(&ls(&["-o", "json", "--phase", "failed"]).await).unwrap();
    assert_eq!((json.sessions.len(), &json.sessions[0].id), (1, &failed.id));
    let yaml = ls(&["-o", "yaml", "--phase", "failed"]).await;
    assert!(yaml.starts_with("---\nsessions:\n") && yaml.contains("name: broken"), "{yaml}");
    let shown = ctl(&daemon, &["show", "broken", "--yaml"]).await.out;
    assert!(shown.starts_with("---\n") && shown.contains(&format!("id: {}\n", failed.id)), "{shown}");
    let refused = ctl(&daemon, &["show", "nobody", "--yaml"]).await;
    assert!(refused.status == Some(1) && refused.out.contains("code: no-such-session"), "{refused:?}");
    let stream = ctl(&daemon, &["events", "broken", "--yaml"]).await;
    assert!(stream.status == Some(2) && stream.err.contains("--json"), "{stream:?}");
    let wrong = ctl(&daemon, &["ls", "--phase", "asleep"]).await;
    assert!(wrong.status == Some(2) && wrong.err.contains("backing-off"), "{wrong:?}");

    idle.post("/stop?wait=60", &json!({})).await.expect::<SessionView>(202);
    assert!(!ls(&[]).await.contains("calm") && ls(&["-a"]).await.contains("calm"));
    assert!(ls(&["--phase", "stopped"]).await.contains("calm"));
}

#[tokio::test]
async fn ls_watches_and_prints_the_changed_sessions() {
    let daemon = Daemon::start().await;
    failed(&daemon, json!({ "name": "first" })).await;
    let mut command = tokio::process::Command::from(agentctl(&daemon, &["ls", "--watch", "-o", "name"]));
    let mut watching = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = async || within("a line", lines.next_line()).await.unwrap().expect("it watches");
    assert_eq!(next().await, "first");
    daemon.create(&failing(&daemon, &json!({ "name": "second" }))).await;
    // The first session may have changed in the meantime.
    let mut line = next().await;
    while line == "first" {
        line = next().await;
    }
    assert_eq!(line, "second");
    watching.kill().await.unwrap();
}

#[tokio::test]
async fn ls_watches_over_a_restart_and_prints_an_item_for_each_change() {
    let mut daemon = Daemon::start().await;
    failed(&daemon, json!({ "name": "first" })).await;
    let mut command = tokio::process::Command::from(agentctl(&daemon, &["ls", "--watch", "-o", "json"]));
    let mut watching = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut item = async |change: &str, name: &str| loop {
        let line = within(name, lines.next_line()).await.unwrap().expect("it watches");
        let item: Value = serde_json::from_str(&line).unwrap();
        if item["change"] == change && item["session"]["spec"]["name"] == name {
            return item;
        }
    };
    item("added", "first").await;
    daemon.terminate().await;
    daemon.run().await;
    let second = failed(&daemon, json!({ "name": "second" })).await;
    let added = item("added", "second").await;
    assert_eq!(added["session"]["id"], second.id.as_str());
    daemon.kill9();
    daemon.run().await;
    assert_eq!(daemon.client.call("DELETE", &second.path("?force=true"), "").await.status, 204);
    item("removed", "second").await;
    watching.kill().await.unwrap();
}
