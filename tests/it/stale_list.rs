//! Sessions that are stale are listed on request and can be pruned. Sessions at rest are checked when the list is made.

use std::fs;

use agentd_api::prune::PruneView;
use agentd_api::session::{SessionSpec, WholeList};
use agentd_api::staleness::StaleKind;
use serde_json::{Value, json};

use crate::boundary::children::{ask, running};
use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session};
use crate::staleness::{git, repository, spec, worked};

/// Returns the ids of the stale sessions with the kinds of their findings.
fn found(list: &WholeList) -> Vec<(&str, Vec<StaleKind>)> {
    let kinds = |findings: &[agentd_api::staleness::StaleFinding]| findings.iter().map(|one| one.kind).collect();
    list.sessions.iter().map(|view| (view.id.as_str(), kinds(&view.status.staleness))).collect()
}

async fn stale(daemon: &Daemon) -> WholeList {
    let list: WholeList = daemon.client.get("/v1/sessions?stale=true&fields=*").await.expect(200);
    assert_eq!((list.unreadable.len(), list.unchecked.len()), (0, 0), "{list:#?}");
    list
}

async fn in_repository(daemon: &Daemon, name: &str) -> Session {
    let directory = repository(daemon, name);
    let spec = SessionSpec { name: Some(name.parse().unwrap()), ..spec(daemon, &directory) };
    worked(daemon, &spec).await
}

#[tokio::test]
async fn stale_sessions_are_listed_with_their_present_findings_and_pruned() {
    let daemon = Daemon::start().await;
    let (moved, gone, same) = (
        in_repository(&daemon, "moved").await,
        in_repository(&daemon, "gone").await,
        in_repository(&daemon, "same").await,
    );
    assert_eq!(found(&stale(&daemon).await), []);
    let said = ctl(&daemon, &["ls", "--stale"]).await;
    assert_eq!((said.status, said.out.as_str(), said.err.as_str()), (Some(0), "", "no session is stale\n"));

    git(&daemon.work().join("moved"), &["switch", "-qc", "elsewhere"]);
    fs::remove_dir_all(daemon.work().join("gone")).unwrap();
    let list = stale(&daemon).await;
    let mut found = found(&list);
    found.sort_unstable();
    let mut wanted = [(moved.id.as_str(), vec![StaleKind::Branch]), (gone.id.as_str(), vec![StaleKind::Directory])];
    wanted.sort_unstable();
    assert_eq!(found, wanted);
    // The list of all sessions is made without looking at directories.
    let all: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    assert!(all.sessions.len() == 3 && all.sessions.iter().all(|view| view.status.staleness.is_empty()));
    let said = ctl(&daemon, &["ls", "--stale"]).await;
    assert!(said.status == Some(0) && said.out.contains("FINDING") && !said.out.contains("same"), "{said:?}");
    let row = said.out.lines().find(|row| row.contains("moved")).unwrap();
    assert!(row.contains("branch") && row.contains("note") && row.contains("\"elsewhere\""), "{row}");
    let list: WholeList = serde_json::from_str(&ctl(&daemon, &["--json", "ls", "--stale"]).await.out).unwrap();
    assert_eq!(list.sessions.len(), 2);

    let dry: PruneView = daemon.client.post("/v1/prune", &json!({ "stale": true, "dry_run": true })).await.expect(200);
    assert_eq!(dry.sessions.len(), 2);
    let of_branch = dry.sessions.iter().find(|session| session.id == moved.id.as_str()).unwrap();
    assert!(of_branch.reasons.iter().any(|reason| reason.starts_with("branch: ")), "{of_branch:?}");
    let young: PruneView =
        daemon.client.post("/v1/prune", &json!({ "stale": true, "older_than_seconds": 3600 })).await.expect(200);
    assert_eq!(young.sessions, []);
    let said = ctl(&daemon, &["prune", "--stale", "--yes"]).await;
    assert!(said.out.contains("removed 2 sessions, "), "{said:?}");
    assert!(!moved.directory().exists() && !gone.directory().exists() && same.directory().exists());
}

#[tokio::test]
async fn an_agent_sees_only_its_own_findings() {
    let (daemon, session) = running().await;
    let other = in_repository(&daemon, "other").await;
    git(&daemon.work().join("other"), &["switch", "-qc", "elsewhere"]);
    assert_eq!(found(&stale(&daemon).await), [(other.id.as_str(), vec![StaleKind::Branch])]);
    let (status, list) = ask(&daemon, &session, "GET", "/v1/sessions?stale=true&fields=*", &Value::Null).await;
    assert_eq!((status, &list["sessions"]), (200, &json!([])));
}
