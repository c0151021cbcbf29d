//! Directories of the sessions' own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use agentd_api::Code;
use agentd_api::session::SessionSpec;
use agentd_api::spec::Workspace;
use serde_json::json;

use super::Remote;
use crate::harness::{Daemon, Session};

fn own(daemon: &Daemon, directory: &str) -> SessionSpec {
    SessionSpec { workspace: Some(Workspace::New), directory: directory.into(), ..daemon.scripted(&[]) }
}

fn place(daemon: &Daemon, session: &Session) -> PathBuf {
    daemon.state().join("workspaces").join(session.id.as_str())
}

async fn remove(daemon: &Daemon, session: &Session) {
    assert_eq!(daemon.client.call("DELETE", &session.path("?force=true"), "").await.status.as_u16(), 204);
}

#[tokio::test]
async fn a_workspace_is_created_kept_over_launches_and_removed_with_its_session() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&own(&daemon, "")).await;
    let place = place(&daemon, &session);
    assert_eq!(session.view().await.spec.directory, place);
    assert_eq!(session.turn("cwd").await.text, place.canonicalize().unwrap().display().to_string());
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o700);
    let variables = session.turn("env").await.text;
    for (name, value) in [("AGENTD_WORKSPACE", place.clone()), ("AGENTD_ARTIFACTS", place.join("artifacts"))] {
        assert!(variables.contains(&format!("\"{name}\":\"{}\"", value.display())), "{variables}");
    }
    fs::write(place.join("artifacts/result"), "42").unwrap();
    session.stop().await;
    daemon.kill9();
    daemon.run().await;
    let view = session.resume().await;
    assert!(view.status.staleness.is_empty(), "{:?}", view.status.staleness);
    assert_eq!(fs::read_to_string(place.join("artifacts/result")).unwrap(), "42");
    remove(&daemon, &session).await;
    assert!(!place.exists());
}

#[tokio::test]
async fn a_workspace_stays_by_setting_and_while_it_has_unsaved_work() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[workspaces]\nat_removal = \"keep\"\n"));
    daemon.run().await;
    let session = daemon.session(&own(&daemon, "")).await;
    let kept = place(&daemon, &session);
    remove(&daemon, &session).await;
    assert!(kept.exists());
    daemon.configure(|config| config.replace("at_removal = \"keep\"", "at_removal = \"remove\""));
    daemon.client.call("POST", "/v1/reload", "").await.expect::<serde_json::Value>(200);
    let remote = Remote::new(&daemon, "web");
    let cloned = SessionSpec { repos: vec![remote.spec()], ..own(&daemon, "") };
    let (busy, clean) = (daemon.session(&cloned).await, daemon.session(&cloned).await);
    fs::write(place(&daemon, &busy).join("web/new"), "mine").unwrap();
    for session in [&busy, &clean] {
        remove(&daemon, session).await;
    }
    assert_eq!(fs::read_to_string(place(&daemon, &busy).join("web/new")).unwrap(), "mine");
    assert!(!place(&daemon, &clean).exists());
    assert!(daemon.words().contains("uncommitted changes"), "the log says why");
}

#[tokio::test]
async fn the_directory_of_a_workspace_leads_below_it() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    for directory in ["../x", "/x", "a/../../x"] {
        let refused = daemon.client.post("/v1/sessions", &own(&daemon, directory)).await.problem();
        assert_eq!(refused.code, Code::InvalidRequest, "{directory}: {refused:?}");
    }
    let none = daemon.client.post("/v1/sessions", &json!({ "agent": "scripted" })).await.problem();
    assert!(none.detail.contains("no directory"), "{none:?}");
    let inside = SessionSpec { repos: vec![remote.spec()], ..own(&daemon, "web") };
    let session = daemon.session(&inside).await;
    let web = place(&daemon, &session).join("web");
    assert_eq!(session.turn("cwd").await.text, web.canonicalize().unwrap().display().to_string());
    let fixed = daemon.client.patch(&session.path(""), &json!({ "workspace": null }), None).await.problem();
    assert_eq!(fixed.code, Code::FieldFixed);
    let missing = daemon.create(&own(&daemon, "nothing")).await;
    missing.wait_for_phase(agentd_api::session::Phase::Failed).await;
    let taken = json!({ "workspace": "new", "agent": "scripted", "repos": [{ "url": "/r/x", "path": "artifacts" }] });
    assert_eq!(daemon.client.post("/v1/sessions", &taken).await.problem().code, Code::InvalidRequest);
}

#[tokio::test]
async fn a_repeated_creation_of_a_workspace_finds_its_session() {
    let daemon = Daemon::start().await;
    let body = serde_json::to_vec(&own(&daemon, "")).unwrap();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let answer = daemon.client.attempt("POST", "/v1/sessions", body.clone(), Some("key-1")).await.unwrap();
        ids.push(answer.expect::<agentd_api::session::SessionView>(202).id);
    }
    assert_eq!(ids[0], ids[1]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_guarded_agent_has_its_own_workspace_and_no_other() {
    use agentd_api::isolation::Isolation;

    use crate::harness::quote::quoted;

    let Some(()) = crate::harness::require::guard() else { return };
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let guarded = |daemon: &Daemon| SessionSpec {
        isolation: Some(Isolation::Guard),
        repos: vec![remote.spec()],
        ..own(daemon, "")
    };
    let (session, other) = (daemon.session(&guarded(&daemon)).await, daemon.session(&guarded(&daemon)).await);
    let (mine, foreign) = (place(&daemon, &session), place(&daemon, &other));
    let text = format!("do cat web/file && touch artifacts/x && ! ls {}/web", quoted(&foreign));
    let turn = session.turn(&text).await;
    assert!(format!("{:?}", turn.events).contains("second"), "{:?}", turn.events);
    assert!(mine.join("artifacts/x").exists());
    assert_eq!(super::git(&mine.join("web"), &["status", "--porcelain"]), "");
}
