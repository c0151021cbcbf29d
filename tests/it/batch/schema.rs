//! Answers with a JSON Schema: satisfied, asked for twice, and not satisfied; and schemas that are not valid.

use std::time::Duration;

use agentd_api::completion::{LONGEST_SCHEMA, Outcome};
use agentd_api::event::SyntheticCause;
use agentd_api::session::{Phase, PromptAccepted, SessionSpec};
use agentd_api::{Body, Code};
use serde_json::{Value, json};

use super::{batch, run};
use crate::harness::{Daemon, Session, process};

fn schema() -> Value {
    json!({ "type": "object", "required": ["ok"], "properties": { "ok": { "type": "boolean" } } })
}

fn with_schema(daemon: &Daemon, prompt: &str) -> SessionSpec {
    SessionSpec { answer_schema: Some(schema()), ..batch(daemon, prompt) }
}

/// Returns the number of checks in the journal.
fn checks(session: &Session) -> usize {
    session.journal().iter().filter(|event| matches!(event.body, Body::AnswerChecked(_))).count()
}

#[tokio::test]
async fn an_answer_that_satisfies_its_schema_is_the_structured_answer() {
    let daemon = Daemon::start().await;
    for prompt in ["say {\"ok\":true}", "speak \"Here:\\n\\n```json\\n{\\\"ok\\\": true}\\n```\""] {
        let (session, view, done) = run(&daemon, &with_schema(&daemon, prompt)).await;
        assert_eq!((view.status.phase, done.structured.clone()), (Phase::Completed, Some(json!({ "ok": true }))));
        assert_eq!(checks(&session), 1);
    }
}

#[tokio::test]
async fn an_answer_that_violates_its_schema_is_asked_for_once_more() {
    let daemon = Daemon::start().await;
    let prompt = "next \"{\\\"ok\\\":false}\"\nsay {\"ok\":7}";
    let (session, _, done) = run(&daemon, &with_schema(&daemon, prompt)).await;
    assert_eq!((done.outcome, done.structured.clone()), (Outcome::Completed, Some(json!({ "ok": false }))));
    assert_eq!(done.answer.as_deref(), Some("{\"ok\":false}"), "the first answer is not part of it");
    let sent: Vec<String> = session
        .journal()
        .iter()
        .filter_map(|event| match &event.body {
            Body::AgentIn(line) if line.get().contains("session/prompt") => Some(line.get().to_owned()),
            _ => None,
        })
        .collect();
    assert_eq!(sent.len(), 2);
    assert!(sent[1].contains("at /ok: 7 is not of type"), "{sent:?}");
    // A second mismatch fails the turn.
    let (session, view, done) = run(&daemon, &with_schema(&daemon, "next \"no\"\nsay {\"ok\":7}")).await;
    assert_eq!((done.outcome, done.exit_status, view.status.phase), (Outcome::Schema, 6, Phase::Failed));
    assert!(done.reason.contains("is not JSON") && done.structured.is_none(), "{done:#?}");
    assert_eq!(checks(&session), 2);
}

#[tokio::test]
async fn a_prompt_of_an_interactive_session_may_have_a_schema() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let prompt = |text: &str| json!({ "prompt": text, "schema": schema() });
    let accepted: PromptAccepted = session.post("/prompt", &prompt("say {\"ok\":true}")).await.expect(202);
    assert_eq!(session.end_of(&accepted).await.ended.synthetic, None);
    let accepted: PromptAccepted = session.post("/prompt", &prompt("next \"no\"\nsay no")).await.expect(202);
    let ended = session.end_of(&accepted).await.ended;
    assert_eq!(ended.synthetic.map(|synthetic| synthetic.cause), Some(SyntheticCause::AnswerInvalid));
    assert_eq!(session.view().await.status.phase, Phase::Idle, "the session continues");
    // A cancelled turn is not checked, and neither is a refused turn.
    let accepted: PromptAccepted = session.post("/prompt", &prompt("stop-reason refusal")).await.expect(202);
    assert_eq!(session.end_of(&accepted).await.ended.stop_reason.as_deref(), Some("refusal"));
    assert_eq!(checks(&session), 3);
}

#[tokio::test]
async fn a_schema_that_is_not_valid_is_refused_with_its_place() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let long = "x".repeat(LONGEST_SCHEMA);
    for (schema, place) in [
        (json!({ "properties": { "a": { "type": "colour" } } }), "at /properties/a/type"),
        (json!(7), "at /"),
        (json!({ "$ref": "https://example.invalid/x.json" }), "not valid"),
        (json!({ "$ref": "file:///etc/passwd" }), "not valid"),
        (json!({ "title": long }), "longer than 64 KiB"),
    ] {
        let body = json!({ "prompt": "say x", "schema": schema });
        let problem = session.post("/prompt", &body).await.problem();
        assert_eq!(problem.code, Code::SchemaInvalid, "{problem:?}");
        assert!(problem.detail.contains(place) && problem.hint.is_some(), "{problem:?}");
        let mut spec = serde_json::to_value(batch(&daemon, "say x")).unwrap();
        spec["answer_schema"] = schema;
        assert_eq!(daemon.client.post("/v1/sessions", &spec).await.problem().code, Code::SchemaInvalid);
    }
    let spec = json!({ "directory": daemon.work(), "answer_schema": schema() });
    assert_eq!(daemon.client.post("/v1/sessions", &spec).await.problem().code, Code::InvalidRequest, "no prompt");
}

#[tokio::test]
async fn a_hostile_schema_harms_only_its_own_check() {
    let daemon = Daemon::start().await;
    // Each level doubles the work, and no level ends it early.
    let mut definitions = serde_json::Map::new();
    for level in 0..60 {
        let next = json!({ "$ref": format!("#/$defs/d{}", level + 1) });
        definitions.insert(format!("d{level}"), json!({ "allOf": [next, { "not": { "not": next } }] }));
    }
    definitions.insert("d60".to_owned(), json!({ "type": "object" }));
    let hostile = json!({ "$ref": "#/$defs/d0", "$defs": definitions });
    let spec = SessionSpec { answer_schema: Some(hostile), ..batch(&daemon, "say {}") };
    let asked = daemon.client.post("/v1/sessions", &spec).await;
    if asked.status.as_u16() == 202 {
        let view: agentd_api::session::SessionView = asked.json();
        let session = Session::new(view.id, daemon.client.clone(), daemon.state());
        let (_, done) = super::result(&session).await;
        assert_eq!(done.outcome, Outcome::Schema, "{done:#?}");
        assert!(done.reason.contains("could not be checked"), "{done:#?}");
    } else {
        assert_eq!(asked.problem().code, Code::SchemaInvalid);
    }
    let other = daemon.session(&daemon.scripted(&[])).await;
    let served = tokio::time::timeout(Duration::from_secs(30), other.turn("say served")).await.expect("it is served");
    assert_eq!(served.text, "served");
    assert!(process::running(daemon.root(), "agentd", Some("check-answer")).is_empty(), "no check is left");
}
