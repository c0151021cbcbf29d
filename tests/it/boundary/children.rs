//! Sessions that an agent creates with `control.guests = "children"`. Their directories are below the agent's
//! directory, and they have no more rights than the agent.

use std::fs;
use std::os::unix::fs::symlink;

use agentd_api::session::{PermissionPolicy, Phase, SessionSpec, SessionView};
use agentd_api::{Problem, SessionId};
use serde_json::{Value, json};

use crate::harness::ctl::ctl;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, reached, scripted_agent};

/// Sends a request from inside the session's agent, and returns its answer.
pub(crate) async fn ask(daemon: &Daemon, session: &Session, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let words = [scripted_agent(), "ask".into(), daemon.client.socket().into(), method.into(), path.into()].map(quoted);
    let turn = session.turn(&format!("do {} {}", words.join(" "), quoted(body.to_string()))).await;
    let status = turn.text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let document = turn.text.split("\r\n\r\n").nth(1).and_then(|text| serde_json::from_str(text.trim()).ok());
    let document: Value = document.unwrap_or_default();
    reached::record(method, path, document.to_string().as_bytes());
    (status.unwrap_or_else(|| panic!("{}", turn.text)), document)
}

pub(crate) fn refusal(answer: &(u16, Value)) -> String {
    let problem: Problem =
        serde_json::from_value(answer.1.clone()).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
    assert!(problem.hint.is_some(), "{problem:?}");
    problem.code.as_str()
}

pub(crate) async fn running() -> (Daemon, Session) {
    let daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[control]\nguests = \"children\"\nguest_sessions = 2\n"));
    let mut daemon = daemon;
    daemon.run().await;
    for name in ["sub", "sub/deep"] {
        fs::create_dir(daemon.work().join(name)).unwrap();
    }
    fs::create_dir(daemon.root().join("elsewhere")).unwrap();
    symlink(daemon.root().join("elsewhere"), daemon.work().join("out")).unwrap();
    symlink(daemon.work().join("sub"), daemon.work().join("link")).unwrap();
    let session = daemon.session(&daemon.scripted(&[])).await;
    (daemon, session)
}

#[tokio::test]
async fn an_agent_creates_prompts_and_stops_sessions_below_its_directory_and_no_other() {
    let (mut daemon, session) = running().await;
    let (work, other) = (daemon.work(), daemon.session(&daemon.scripted(&[])).await);
    let command = daemon.scripted(&[]).command;
    let own = |change: Value| {
        let mut spec = json!({ "directory": work.join("sub") });
        spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        spec
    };
    for bad in [
        json!({ "directory": daemon.root().join("elsewhere") }),
        json!({ "directory": work.join("out") }),
        json!({ "directory": work.join("sub/../..") }),
        json!({ "agent": "scripted" }),
        json!({ "command": ["/bin/sh", "-c", "exit"] }),
        json!({ "permissions": "allow" }),
        json!({ "tags": ["lab"] }),
        json!({ "env_setup": "export A=1" }),
        json!({ "environment": { "source": "stored" } }),
    ] {
        let answer = ask(&daemon, &session, "POST", "/v1/sessions", &own(bad.clone())).await;
        assert_eq!((answer.0, refusal(&answer).as_str()), (403, "in-session"), "{bad}");
    }
    let answer = ask(&daemon, &session, "POST", "/v1/sessions?force", &own(json!({}))).await;
    assert_eq!(refusal(&answer), "in-session");

    // The first child uses the parent's agent, which is the default. The second names that agent, and its directory is
    // a link that stays inside the parent's directory.
    let (status, made) = ask(&daemon, &session, "POST", "/v1/sessions", &own(json!({ "name": "first" }))).await;
    assert_eq!((status, &made["parent"]), (202, &json!(session.id)), "{made}");
    let by_link = own(json!({ "directory": work.join("link"), "command": command, "permissions": "deny" }));
    let (status, second) = ask(&daemon, &session, "POST", "/v1/sessions?wait=60", &by_link).await;
    assert_eq!((status, &second["spec"]["directory"]), (202, &json!(work.join("sub"))), "{second}");
    let third = ask(&daemon, &session, "POST", "/v1/sessions", &own(json!({}))).await;
    assert_eq!((third.0, refusal(&third).as_str()), (429, "too-many-sessions"));

    let id: SessionId = serde_json::from_value(made["id"].clone()).unwrap();
    let child = Session::new(id.clone(), daemon.client.clone(), daemon.state());
    child.wait_for_phase(Phase::Idle).await;
    let (status, accepted) =
        ask(&daemon, &session, "POST", &child.path("/prompt"), &json!({ "prompt": "say hi" })).await;
    assert_eq!(status, 202, "{accepted}");
    assert_eq!(child.end_of(&serde_json::from_value(accepted).unwrap()).await.text, "hi");
    for rest in ["", "/environment"] {
        assert_eq!(ask(&daemon, &session, "GET", &child.path(rest), &Value::Null).await.0, 200, "{rest}");
    }
    // A child cannot create children, and cannot control its parent or its sibling.
    let grandchild = ask(&daemon, &child, "POST", "/v1/sessions", &own(json!({}))).await;
    assert_eq!(refusal(&grandchild), "in-session");
    for target in [session.path("/stop"), format!("/v1/sessions/{}/stop", second["id"].as_str().unwrap())] {
        assert_eq!(refusal(&ask(&daemon, &child, "POST", &target, &Value::Null).await), "in-session", "{target}");
    }

    // The next daemon still knows the parent of each child.
    daemon.kill9();
    daemon.run().await;
    let view = child.view().await;
    assert_eq!(view.parent.as_ref(), Some(&session.id));
    assert!(ctl(&daemon, &["show", "first"]).await.out.contains(&format!("the session {}", session.id)));
    session.wait_for_phase(Phase::Idle).await;
    let asked = child.prompt("ask").await;
    let request =
        child.wait_for("a question", |view| !view.status.permissions.is_empty()).await.status.permissions[0].id.clone();
    for (method, path) in [
        ("POST", child.path(&format!("/permissions/{request}"))),
        ("POST", child.path("/resume")),
        ("DELETE", child.path("?force")),
        ("POST", other.path("/stop")),
        ("GET", other.path("")),
        ("POST", session.path("/stop")),
    ] {
        let answer = ask(&daemon, &session, method, &path, &json!({ "option": "yes" })).await;
        assert_eq!(refusal(&answer), "in-session", "{method} {path}");
    }
    let (status, list) = ask(&daemon, &session, "GET", "/v1/sessions", &Value::Null).await;
    assert_eq!((status, list["sessions"].as_array().map(Vec::len)), (200, Some(3)), "{list}");
    assert_eq!(ask(&daemon, &session, "POST", &child.path("/stop?wait=60"), &Value::Null).await.0, 202);
    child.wait_for_phase(Phase::Stopped).await;
    child.end_of(&asked).await;
    assert_eq!(other.view().await.status.phase, Phase::Idle);
    // After a child has ended, the agent can create another.
    assert_eq!(ask(&daemon, &session, "POST", "/v1/sessions", &own(json!({}))).await.0, 202);
}

#[tokio::test]
async fn an_agent_that_is_listed_may_be_a_childs_and_a_key_of_somebody_elses_session_gives_none() {
    let (daemon, _) = running().await;
    daemon.configure(|config| config.replace("guest_sessions = 2", "guest_agents = [\"scripted\"]"));
    daemon.client.call("POST", "/v1/reload", "").await.expect::<Value>(200);
    let strict = SessionSpec { permissions: PermissionPolicy::Deny, ..daemon.scripted(&[]) };
    let session = daemon.session(&strict).await;
    let spec = |policy: &str| json!({ "directory": daemon.work(), "agent": "scripted", "permissions": policy });
    let lax = ask(&daemon, &session, "POST", "/v1/sessions", &spec("ask")).await;
    assert_eq!(refusal(&lax), "in-session");
    let (status, made) = ask(&daemon, &session, "POST", "/v1/sessions?wait=60", &spec("deny")).await;
    let made: SessionView = serde_json::from_value(made.clone()).unwrap_or_else(|error| panic!("{error}: {made}"));
    assert_eq!((status, made.parent), (202, Some(session.id.clone())));
}
