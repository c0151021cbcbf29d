//! Questions of an agent with a form or a page. They are shown, and answered once: at the command line, at a terminal
//! or by another program.

use agentd_api::Code;
use agentd_api::elicitation::Elicitation;
use agentd_api::event::{AnsweredBy, Body};
use agentd_api::session::{PermissionPolicy, PermissionRequest, SessionView};
use serde_json::{Value, json};

use crate::harness::ctl::{agentctl, ctl};
use crate::harness::terminal::Terminal;
use crate::harness::{Daemon, Session};

fn question() -> Value {
    json!({
        "mode": "form", "message": "How shall it be built?\nAnswer all.",
        "requestedSchema": { "type": "object", "required": ["jobs", "kind"], "properties": {
            "jobs": { "type": "integer", "minimum": 1, "maximum": 64 },
            "kind": { "type": "string", "title": "Kind", "oneOf": [
                { "const": "dbg", "title": "Debug" }, { "const": "opt", "title": "Release" } ] },
            "clean": { "type": "boolean", "default": false },
        } },
    })
}

/// Returns the answer that the agent reports.
fn told(text: &str) -> Value {
    serde_json::from_str(text.strip_prefix("told ").expect("the agent reports an answer")).expect("it is JSON")
}

async fn asked(session: &Session) -> PermissionRequest {
    let view = session.wait_for("a question", |view| !view.status.permissions.is_empty()).await;
    view.status.permissions[0].clone()
}

#[tokio::test]
async fn a_form_is_answered_with_values_that_fit_and_bad_ones_lose_nothing() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt(&format!("elicit {}", question())).await;
    let request = asked(&session).await;
    assert!(matches!(&request.elicitation, Some(Elicitation::Form { .. })), "{request:?}");
    assert_eq!(request.title, "How shall it be built?\nAnswer all.");
    let path = format!("/permissions/{}", request.id);
    for (wrong, named) in [
        (json!("allow"), "jobs"),
        (json!({ "form": { "jobs": 65, "kind": "opt" } }), "from 1 to 64"),
        (json!({ "form": { "jobs": 2, "kind": "Release" } }), "one of dbg, opt"),
        (json!({ "form": { "jobs": 2, "kind": "opt", "extra": 1 } }), "extra"),
        (json!({ "option": "once" }), "decline"),
    ] {
        let problem = session.post(&path, &wrong).await.problem();
        assert_eq!(problem.code, Code::InvalidRequest, "{problem:?}");
        assert!(problem.detail.contains(named), "{problem:?}");
    }
    session.post(&path, &json!({ "form": { "jobs": 2, "kind": "opt" } })).await.expect::<SessionView>(200);
    let answer = json!({ "action": "accept", "content": { "clean": false, "jobs": 2, "kind": "opt" } });
    assert_eq!(told(&session.end_of(&accepted).await.text), answer);
    let problem = session.post(&path, &json!("deny")).await.problem();
    assert_eq!(problem.code, Code::PermissionAnswered, "{problem:?}");
}

#[tokio::test]
async fn the_command_line_shows_the_form_and_takes_its_values() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let id = session.id.as_str();
    let accepted = session.prompt(&format!("elicit {}", question())).await;
    let request = asked(&session).await.id.to_string();
    let (_, shown, _) = ctl(&daemon, &["show", id]).await.parts();
    for part in ["jobs: (a whole number from 1 to 64)", "2) Release", "default false", "--field NAME=VALUE"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let (status, _, said) = ctl(&daemon, &["answer", id, &request, "--field", "jobs=many"]).await.parts();
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("from 1 to 64") && said.contains("agentctl show"), "{said}");
    let (status, _, said) = ctl(&daemon, &["answer", id, &request, "allow", "--field", "jobs=1"]).await.parts();
    assert_eq!(status, Some(2), "{said}");
    let fields = ["answer", id, &request, "--field", "jobs=8", "--field", "kind=release", "--field", "clean=yes"];
    assert_eq!(ctl(&daemon, &fields).await.status, Some(0));
    let answer = json!({ "action": "accept", "content": { "clean": true, "jobs": 8, "kind": "opt" } });
    assert_eq!(told(&session.end_of(&accepted).await.text), answer);
}

#[tokio::test]
async fn a_form_is_filled_in_at_a_terminal_and_the_typed_prompt_waits() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let mut terminal = Terminal::run(&agentctl(&daemon, &["attach", session.id.as_str()]), 100);
    let one = json!({ "mode": "form", "message": "Which way?", "requestedSchema": {
        "required": ["way"], "properties": { "way": { "type": "string", "enum": ["left", "right"] } } } });
    session.prompt(&format!("elicit {one}")).await;
    terminal.shows("press 1 to 2").await;
    terminal.types("2");
    terminal.shows("\"way\":\"right\"").await;

    session.prompt(&format!("elicit {}", question())).await;
    // The order of the fields is the agent's.
    terminal.shows("press y to answer").await;
    terminal.types("y");
    terminal.shows("Esc stops; jobs: ").await;
    terminal.types("900\r");
    terminal.shows("does not fit").await;
    terminal.types("9\r");
    terminal.shows("Esc stops; Kind: ").await;
    terminal.types("1\r");
    terminal.shows("Esc stops; clean [false]: ").await;
    terminal.types("\r");
    terminal.shows("\"jobs\":9,\"kind\":\"dbg\",\"clean\":false").await;
    terminal.types("\u{4}");
    assert_eq!(terminal.ends().await.code(), Some(0));
}

#[tokio::test]
async fn pages_are_opened_by_a_person_and_policies_and_cancels_end_questions() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let page = json!({ "mode": "url", "message": "Log in", "elicitationId": "e1", "url": "https://example.test/x" });
    let accepted = session.prompt(&format!("elicit {page}")).await;
    let request = asked(&session).await.id.to_string();
    let (_, shown, _) = ctl(&daemon, &["show", session.id.as_str()]).await.parts();
    assert!(shown.contains("page https://example.test/x"), "{shown}");
    assert_eq!(ctl(&daemon, &["answer", session.id.as_str(), &request, "allow"]).await.status, Some(0));
    assert_eq!(session.end_of(&accepted).await.text, r#"told {"action":"accept"}"#);

    let accepted = session.prompt(&format!("elicit {}", question())).await;
    asked(&session).await;
    ctl(&daemon, &["cancel", session.id.as_str()]).await;
    assert!(session.end_of(&accepted).await.text.contains(r#"{"action":"cancel"}"#));
    // A mode of a later protocol can only be declined.
    let new = json!({ "mode": "telepathy", "message": "Think" });
    let accepted = session.prompt(&format!("elicit {new}")).await;
    let request = asked(&session).await.id;
    let problem = session.post(&format!("/permissions/{request}"), &json!("allow")).await.problem();
    assert_eq!(problem.code, Code::InvalidRequest, "{problem:?}");
    session.post(&format!("/permissions/{request}"), &json!("deny")).await.expect::<SessionView>(200);
    assert_eq!(session.end_of(&accepted).await.text, r#"told {"action":"decline"}"#);

    let mut spec = daemon.scripted(&[]);
    spec.permissions = PermissionPolicy::Deny;
    let silent = daemon.session(&spec).await;
    let accepted = silent.prompt(&format!("elicit {}", question())).await;
    assert_eq!(silent.end_of(&accepted).await.text, r#"told {"action":"decline"}"#);
    let by = silent.journal().into_iter().find_map(|event| match event.body {
        Body::PermissionResolved(resolved) => Some(resolved.by),
        _ => None,
    });
    assert_eq!(by, Some(AnsweredBy::Policy));
}
