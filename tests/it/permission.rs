//! Permission requests: asked, answered once, by policy or by a client, and never left open.

use agentd_api::Code;
use agentd_api::event::{AnsweredBy, Body, PermissionOutcome};
use agentd_api::session::{PermissionPolicy, SessionView};
use serde_json::json;

use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session};

async fn asked(session: &Session) -> SessionView {
    session.wait_for("a permission request", |view| !view.status.permissions.is_empty()).await
}

fn resolved(session: &Session) -> Vec<(PermissionOutcome, AnsweredBy)> {
    session
        .journal()
        .into_iter()
        .filter_map(|event| match event.body {
            Body::PermissionResolved(resolved) => Some((resolved.outcome, resolved.by)),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn a_client_answers_a_request_by_option_and_only_once() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("ask").await;
    let request = asked(&session).await.status.permissions.remove(0);
    assert_eq!((request.title.as_str(), request.tool_kind.as_deref()), ("do something", Some("edit")));
    assert_eq!(request.options.len(), 4, "{request:?}");
    let path = format!("/permissions/{}", request.id);

    let problem = session.post(&path, &json!({ "option": "no-such-option" })).await.problem();
    assert_eq!(problem.code, Code::InvalidRequest, "{problem:?}");
    session.post(&path, &json!({ "option": "yes" })).await.expect::<SessionView>(200);
    assert_eq!(session.end_of(&accepted).await.text, "chosen yes");

    let problem = session.post(&path, &json!("deny")).await.problem();
    assert_eq!(problem.code, Code::PermissionAnswered, "{problem:?}");
    let problem = session.post("/permissions/p99", &json!("deny")).await.problem();
    assert_eq!(problem.code, Code::NoSuchPermission, "{problem:?}");
    assert_eq!(resolved(&session), [(PermissionOutcome::Selected("yes".into()), AnsweredBy::Client)]);
}

#[tokio::test]
async fn a_question_is_answered_under_its_id_exactly_as_the_agent_wrote_it() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    for id in [r#""\ud83d""#, r#""a-\uDE00\/é""#] {
        let accepted = session.prompt(&format!("ask-as {id}")).await;
        let request = asked(&session).await.status.permissions.remove(0);
        let (status, _, told) =
            ctl(&daemon, &["answer", session.id.as_str(), request.id.as_str(), "deny"]).await.parts();
        assert_eq!(status, Some(0), "{told}");
        assert_eq!(session.end_of(&accepted).await.text, "answered", "{id}");
    }
}

#[tokio::test]
async fn a_question_without_options_is_denied_as_cancelled_and_cannot_be_allowed() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("ask-without-options").await;
    let request = asked(&session).await.status.permissions.remove(0);
    let (id, permission) = (session.id.as_str(), request.id.as_str());
    let (status, shown, _) = ctl(&daemon, &["show", id]).await.parts();
    assert!(status == Some(0) && shown.contains(&format!("agentctl answer {id} {permission} deny\n")), "{shown}");
    let (status, _, told) = ctl(&daemon, &["answer", id, permission, "allow"]).await.parts();
    assert!(status == Some(1) && told.contains("cannot be allowed") && told.contains("deny it"), "{told}");
    let (status, _, told) = ctl(&daemon, &["answer", id, permission, "deny"]).await.parts();
    assert_eq!(status, Some(0), "{told}");
    let turn = session.end_of(&accepted).await;
    assert_eq!((turn.text.as_str(), turn.ended.stop_reason.as_deref()), ("chosen cancelled", Some("end_turn")));
    assert_eq!(resolved(&session), [(PermissionOutcome::Cancelled, AnsweredBy::Client)]);
}

#[tokio::test]
async fn allow_chooses_once_before_always_and_deny_rejects() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    for (answer, chosen) in [("allow", ["chosen yes-and-watch", "chosen yes"]), ("deny", ["chosen no"; 2])] {
        let accepted = session.prompt("ask").await;
        let request = asked(&session).await.status.permissions.remove(0);
        session.post(&format!("/permissions/{}", request.id), &json!(answer)).await.expect::<SessionView>(200);
        let text = session.end_of(&accepted).await.text;
        assert!(chosen.contains(&text.as_str()), "{answer}: {text}");
    }
}

#[tokio::test]
async fn a_policy_answers_without_a_client() {
    let daemon = Daemon::start().await;
    for (policy, expected) in [(PermissionPolicy::Allow, "ran\n"), (PermissionPolicy::Deny, "not allowed: no")] {
        let mut spec = daemon.scripted(&[]);
        spec.permissions = policy;
        let session = daemon.session(&spec).await;
        assert_eq!(session.turn("tool echo ran").await.text, expected);
        assert!(matches!(resolved(&session)[..], [(PermissionOutcome::Selected(_), AnsweredBy::Policy)]));
    }
}

#[tokio::test]
async fn a_cancelled_turn_answers_its_open_requests_cancelled() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("ask").await;
    asked(&session).await;
    daemon.client.call("POST", &session.path("/cancel"), "").await.expect::<SessionView>(202);
    assert_eq!(session.end_of(&accepted).await.ended.stop_reason.as_deref(), Some("cancelled"));
    assert!(session.view().await.status.permissions.is_empty());
    assert_eq!(resolved(&session), [(PermissionOutcome::Cancelled, AnsweredBy::Cancel)]);
}

#[tokio::test]
async fn a_request_survives_the_daemon_and_is_answered_to_the_next() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("ask").await;
    let before = asked(&session).await.status.permissions;
    daemon.kill9();
    daemon.run().await;
    let after = asked(&session).await.status.permissions;
    assert_eq!(after, before);
    session.post(&format!("/permissions/{}", after[0].id), &json!({ "option": "no" })).await.expect::<SessionView>(200);
    assert_eq!(session.end_of(&accepted).await.text, "chosen no");
}

/// Tests the README's rule with requests in the form of real agents: the title is the model's text, and the command is
/// in another field.
#[tokio::test]
async fn a_denial_holds_whatever_the_title_says_and_who_is_asked_sees_what_will_run() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        format!("{config}\n[[permissions]]\nkind = \"execute\"\ntitle = \"git push*\"\nanswer = \"deny\"\n")
    });
    daemon.run().await;
    let mut spec = daemon.scripted(&[]);
    spec.permissions = PermissionPolicy::Allow;
    let session = daemon.session(&spec).await;
    let ask = |before: serde_json::Value, call: serde_json::Value| {
        format!("ask-for {}", json!({ "before": before, "call": call }))
    };
    let copilot = |command: &str| {
        let input = json!({ "command": command });
        let call = json!({ "toolCallId": "t", "title": "run a command", "kind": "execute", "rawInput": input });
        ask(json!(null), call)
    };
    let before = json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "Terminal", "kind": "execute",
        "status": "pending", "rawInput": { "command": "cd x && git push", "description": "tidy up" } });
    let codex = json!({ "toolCallId": "t", "title": "tidy up", "kind": "execute",
        "rawInput": { "command": ["bash", "-lc", "git push; ls"] } });
    for (prompt, expected) in [
        (copilot("git push"), "chosen no"),
        (copilot("ls && sudo git -C x push"), "chosen no"),
        (copilot("git status"), "chosen yes"),
        (ask(before.clone(), json!({ "toolCallId": "t", "title": "tidy up" })), "chosen no"),
        (ask(json!(null), codex), "chosen no"),
    ] {
        assert_eq!(session.turn(&prompt).await.text, expected, "{prompt}");
    }
    // The command is unknown or has unknown parts, so a person is asked, and sees the command or that it is missing.
    let unknown = ask(json!(null), json!({ "toolCallId": "u", "title": "run a command", "kind": "execute" }));
    for (prompt, seen) in [(unknown, None), (copilot("X=git; $X push"), Some("X=git; $X push"))] {
        let accepted = session.prompt(&prompt).await;
        let request = asked(&session).await.status.permissions.remove(0);
        assert_eq!(request.details.command.as_deref(), seen);
        let (_, shown, _) = ctl(&daemon, &["show", session.id.as_str()]).await.parts();
        assert!(seen.is_none_or(|seen| shown.contains(&format!("    $ {seen}\n"))), "{shown}");
        session.post(&format!("/permissions/{}", request.id), &json!("allow")).await.expect::<SessionView>(200);
        assert_eq!(session.end_of(&accepted).await.text, "chosen yes");
    }
}

#[tokio::test]
async fn a_request_has_its_paths_and_changes_in_the_journal_the_api_and_on_the_screen() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let call = json!({ "toolCallId": "e", "title": "tidy up", "kind": "edit", "locations": [{ "path": "/work/a" }],
        "content": [{ "type": "diff", "path": "/work/a", "oldText": "old words", "newText": "new words" }] });
    session.prompt(&format!("ask-for {}", json!({ "call": call }))).await;
    let request = asked(&session).await.status.permissions.remove(0);
    assert_eq!((request.details.paths.len(), request.details.diffs[0].new.as_str()), (1, "new words"));
    let recorded = session.journal().into_iter().find_map(|event| match event.body {
        Body::PermissionRequested(requested) => Some(requested.request),
        _ => None,
    });
    assert_eq!(recorded.as_ref(), Some(&request));
    let (_, shown, _) = ctl(&daemon, &["show", session.id.as_str()]).await.parts();
    assert!(
        shown.contains("change /work/a\n") && shown.contains("- old words\n") && shown.contains("+ new words\n"),
        "{shown}"
    );
}
