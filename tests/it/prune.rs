//! Removal of sessions that are no longer used: by age, phase and name, after a dry run, and never of an active one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use agentd_api::audit::AuditList;
use agentd_api::prune::{PruneRequest, PruneView};
use agentd_api::session::{Phase, SessionSpec, SessionView};
use agentd_api::{Body, Code};
use serde_json::{Value, json};

use crate::boundary::children::{ask, running};
use crate::harness::ctl::{agentctl, ctl};
use crate::harness::terminal::Terminal;
use crate::harness::{Daemon, Session, process};

async fn prune(daemon: &Daemon, request: Value) -> PruneView {
    daemon.client.post("/v1/prune", &request).await.expect(200)
}

fn ids(view: &PruneView) -> Vec<&str> {
    view.sessions.iter().map(|session| session.id.as_str()).collect()
}

/// Returns the ids of the sessions that stay, with the reasons.
fn kept(view: &PruneView) -> Vec<(&str, &str)> {
    view.kept.iter().map(|session| (session.id.as_str(), session.reason.as_str())).collect()
}

async fn named(daemon: &Daemon, name: &str) -> Session {
    let spec = SessionSpec { name: Some(name.parse().unwrap()), ..daemon.scripted(&[]) };
    daemon.session(&spec).await
}

async fn stopped(daemon: &Daemon, name: &str) -> Session {
    let session = named(daemon, name).await;
    session.stop().await;
    session
}

/// Moves the times of a session at rest, whose daemon is down, to the year 2020.
fn put_back(session: &Session, view: &SessionView) {
    for time in [view.created, view.status.updated] {
        let year = time.strftime("%Y-").to_string();
        for file in ["journal.jsonl", "session.json"] {
            let file = session.directory().join(file);
            let text = fs::read_to_string(&file).unwrap();
            fs::write(&file, text.replace(&format!("\"{year}"), "\"2020-")).unwrap();
        }
    }
}

fn du(directory: &Path) -> u64 {
    let output = Command::new("du").args(["-s", "--block-size=512"]).arg(directory).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 512
}

#[tokio::test]
async fn sessions_are_pruned_by_age_and_phase_with_the_sizes_that_du_reports_and_a_dry_run_removes_nothing() {
    let mut daemon = Daemon::start().await;
    let (old, new, idle) = (stopped(&daemon, "old").await, stopped(&daemon, "new").await, named(&daemon, "idle").await);
    let failed = named(&daemon, "failed").await;
    process::kill9(failed.view().await.status.agent_pid.unwrap());
    failed.wait_for_phase(Phase::Failed).await;
    let views = [old.view().await, failed.view().await];
    daemon.terminate().await;
    for (session, view) in [(&old, &views[0]), (&failed, &views[1])] {
        put_back(session, view);
    }
    fs::write(old.directory().join("large"), vec![7; 300_000]).unwrap();
    daemon.run().await;
    idle.wait_for_phase(Phase::Idle).await;

    let request = json!({ "older_than_seconds": 86_400 * 30, "dry_run": true });
    for _ in 0..2 {
        let view = prune(&daemon, request.clone()).await;
        assert!(view.dry_run && ids(&view).len() == 2, "{view:#?}");
        for (session, found) in [(&old, Phase::Stopped), (&failed, Phase::Failed)] {
            let pruned = view.sessions.iter().find(|pruned| pruned.id == session.id.as_str()).unwrap();
            assert_eq!((pruned.phase, pruned.bytes), (Some(found), Some(du(&session.directory()))), "{pruned:#?}");
            assert!(pruned.age_seconds > 86_400 * 365 && pruned.name.is_some(), "{pruned:#?}");
            assert!(pruned.last_activity.to_string().starts_with("2020-"), "{pruned:#?}");
        }
        assert_eq!(view.bytes, du(&old.directory()) + du(&failed.directory()));
    }
    let of_phase = |phases: Value| json!({ "older_than_seconds": 86_400 * 30, "phases": phases, "dry_run": true });
    assert_eq!(ids(&prune(&daemon, of_phase(json!(["failed"]))).await), [failed.id.as_str()]);
    assert_eq!(ids(&prune(&daemon, of_phase(json!(["pending"]))).await), [""; 0]);
    let young = prune(&daemon, json!({ "older_than_seconds": 0, "names": ["new", "old"], "dry_run": true })).await;
    assert_eq!(ids(&young), [old.id.as_str(), new.id.as_str()], "the oldest is first");

    let freed = view_of(&daemon, json!({ "older_than_seconds": 86_400 * 30 }), [&old, &failed]).await;
    assert!(freed > 300_000);
    for session in [&old, &failed] {
        assert!(!session.directory().exists());
        assert_eq!(daemon.client.get(&session.path("")).await.problem().code, Code::NoSuchSession);
        let audit: AuditList = daemon.client.get(&format!("/v1/audit?session={}", session.id)).await.expect(200);
        let last = audit.records.last().unwrap();
        assert_eq!((last.method.as_str(), last.path.as_str(), last.status), ("POST", "/v1/prune", 200));
    }
    assert_eq!((new.view().await.status.phase, idle.view().await.status.phase), (Phase::Stopped, Phase::Idle));
    new.resume().await;
}

/// Prunes, and expects exactly these sessions. Returns the number of freed bytes.
async fn view_of(daemon: &Daemon, request: Value, sessions: [&Session; 2]) -> u64 {
    let view = prune(daemon, request).await;
    let mut found = ids(&view);
    let mut wanted = sessions.map(|session| session.id.as_str());
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!((found.as_slice(), view.dry_run), (wanted.as_slice(), false), "{view:#?}");
    view.bytes
}

#[tokio::test]
async fn an_active_session_is_never_pruned_and_a_request_without_a_criterion_is_refused() {
    let daemon = Daemon::start().await;
    let session = named(&daemon, "busy").await;
    let view = prune(&daemon, json!({ "names": ["busy"], "older_than_seconds": 0 })).await;
    assert_eq!((ids(&view), kept(&view)), (vec![], vec![(session.id.as_str(), "it is idle")]));
    assert_eq!(session.turn("say still here").await.text, "still here");
    for bad in [json!({}), json!({ "dry_run": true }), json!({ "phases": ["busy"] })] {
        let problem = daemon.client.post("/v1/prune", &bad).await.problem();
        assert_eq!((problem.code, problem.hint.is_some()), (Code::InvalidRequest, true), "{bad}");
    }
    let unknown = daemon.client.post("/v1/prune", &json!({ "names": ["nobody"] })).await.problem();
    assert_eq!(unknown.code, Code::NoSuchSession);
    let odd = daemon.client.post("/v1/prune", &json!({ "older_then": 1 })).await.problem();
    assert_eq!(odd.code, Code::MalformedRequest);
}

#[tokio::test]
async fn a_session_stays_while_its_parent_or_its_child_is_active_and_an_agent_prunes_nothing() {
    let (daemon, parent) = running().await;
    let spec = json!({ "directory": daemon.work().join("sub") });
    let (status, created) = ask(&daemon, &parent, "POST", "/v1/sessions?wait=30", &spec).await;
    assert_eq!(status, 202, "{created}");
    let view: SessionView = serde_json::from_value(created).unwrap();
    let child = Session::new(view.id, daemon.client.clone(), daemon.state());
    let all = json!({ "older_than_seconds": 0 });
    let (status, refused) = ask(&daemon, &parent, "POST", "/v1/prune", &all).await;
    assert_eq!((status, refused["code"].as_str()), (403, Some("in-session")));

    child.stop().await;
    let reason = format!("the session {} that created it is idle", parent.id);
    let view = prune(&daemon, all.clone()).await;
    assert_eq!((ids(&view), view.kept.len()), (vec![], 2));
    assert!(kept(&view).contains(&(child.id.as_str(), reason.as_str())), "{view:#?}");
    child.resume().await;
    parent.stop().await;
    let view = prune(&daemon, all.clone()).await;
    let reason = format!("the session {} that it created is idle", child.id);
    assert!(ids(&view).is_empty() && kept(&view).contains(&(parent.id.as_str(), reason.as_str())), "{view:#?}");
    child.stop().await;
    view_of(&daemon, all, [&parent, &child]).await;
}

#[tokio::test]
async fn a_session_that_was_used_after_the_dry_run_loses_nothing() {
    let daemon = Daemon::start().await;
    let (used, unused) = (stopped(&daemon, "used").await, stopped(&daemon, "unused").await);
    let request = PruneRequest { older_than_seconds: Some(0), dry_run: true, ..PruneRequest::default() };
    let seen: PruneView = daemon.client.post("/v1/prune", &request).await.expect(200);
    let confirmed: BTreeMap<String, u64> =
        seen.sessions.iter().map(|session| (session.id.clone(), session.last_seq)).collect();
    used.resume().await;
    assert_eq!(used.turn("say precious").await.text, "precious");
    used.stop().await;
    let later = stopped(&daemon, "later").await;
    let request = PruneRequest { confirmed: Some(confirmed), dry_run: false, ..request };
    let view: PruneView = daemon.client.post("/v1/prune", &request).await.expect(200);
    assert_eq!(ids(&view), [unused.id.as_str()]);
    assert_eq!(kept(&view), [(used.id.as_str(), "it has changed")]);
    assert!(used.journal().iter().any(|event| matches!(event.body, Body::TurnEnded(_))));
    used.resume().await;
    assert_eq!(later.view().await.status.phase, Phase::Stopped, "it was not in the dry run");
}

#[tokio::test]
async fn a_resume_and_a_prune_at_once_have_one_winner() {
    let daemon = Daemon::start().await;
    let (mut resumed, mut pruned) = (0, 0);
    for round in 0..10 {
        let session = stopped(&daemon, "torn").await;
        let request = json!({ "names": ["torn"] });
        let path = session.path("/resume?wait=60");
        let (resuming, pruning) = (daemon.client.call("POST", &path, ""), daemon.client.post("/v1/prune", &request));
        // The first to be polled begins first.
        let (resume, prune) = if round % 2 == 0 {
            tokio::join!(resuming, pruning)
        } else {
            let (prune, resume) = tokio::join!(pruning, resuming);
            (resume, prune)
        };
        // The prune may find no such session only after its own removal, which happens once.
        let view: PruneView = prune.expect(200);
        if resume.status == 202 {
            assert_eq!(ids(&view), [""; 0], "{view:#?}");
            assert_eq!(session.turn("say alive").await.text, "alive");
            daemon.client.call("DELETE", &session.path("?force"), "").await;
            resumed += 1;
        } else {
            assert_eq!(ids(&view), [session.id.as_str()], "{resume:?}");
            assert!(!session.directory().exists());
            pruned += 1;
        }
    }
    assert_eq!(resumed + pruned, 10);
}

#[tokio::test]
async fn an_unreadable_session_is_pruned_on_request_and_not_while_its_agent_runs() {
    let mut daemon = Daemon::impatient().await;
    let (rests, runs) = (stopped(&daemon, "rests").await, named(&daemon, "runs").await);
    let keeper = runs.view().await.status.keeper_pid.unwrap();
    daemon.kill9();
    for session in [&rests, &runs] {
        fs::write(session.directory().join("session.json"), "{").unwrap();
    }
    daemon.run().await;
    let view = prune(&daemon, json!({ "older_than_seconds": 0 })).await;
    assert_eq!((ids(&view), kept(&view)), (vec![], vec![]));
    let view = prune(&daemon, json!({ "unreadable": true, "older_than_seconds": 3600 })).await;
    assert_eq!((ids(&view), kept(&view)), (vec![], vec![]), "their files are new");
    let refused = daemon.client.post("/v1/prune", &json!({ "names": [rests.id] })).await.problem();
    assert_eq!(refused.code, Code::SessionUnreadable);
    let view = prune(&daemon, json!({ "unreadable": true, "dry_run": true })).await;
    assert_eq!((ids(&view), view.kept.len()), (vec![rests.id.as_str()], 1));
    assert_eq!((view.sessions[0].phase, view.sessions[0].bytes), (None, Some(du(&rests.directory()))));
    let view = prune(&daemon, json!({ "unreadable": true })).await;
    assert_eq!((ids(&view), view.kept[0].id.as_str()), (vec![rests.id.as_str()], runs.id.as_str()));
    assert!(!rests.directory().exists() && runs.directory().exists() && process::is_alive(keeper));
}

#[tokio::test]
async fn agentctl_prune_lists_first_asks_at_a_terminal_and_removes_with_yes() {
    let daemon = Daemon::start().await;
    let (one, two, three) =
        (stopped(&daemon, "one").await, stopped(&daemon, "two").await, stopped(&daemon, "three").await);
    let usage = ctl(&daemon, &["prune"]).await;
    assert_eq!(usage.status, Some(2), "{usage:?}");
    let said = ctl(&daemon, &["prune", "--older-than", "0", "one"]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.out.contains("one") && said.out.contains("would remove 1 session, "), "{}", said.out);
    assert!(said.err.contains("nothing was removed") && said.err.contains("--yes"), "{}", said.err);
    let said = ctl(&daemon, &["prune", "--phase", "stopped", "-n"]).await;
    assert!(said.out.contains("would remove 3 sessions, ") && said.err.is_empty(), "{said:?}");
    let view: PruneView =
        serde_json::from_str(&ctl(&daemon, &["--json", "prune", "--phase", "stopped"]).await.out).unwrap();
    assert!(view.dry_run && view.sessions.len() == 3, "{view:?}");
    assert_eq!(ctl(&daemon, &["prune", "--phase", "failed", "--yes"]).await.err, "no session matches\n");

    let mut asking = Terminal::run(&agentctl(&daemon, &["prune", "one"]), 120);
    asking.shows("Remove 1 session with all stored data").await;
    asking.types("n\n");
    assert!(asking.ends().await.success());
    assert!(one.directory().exists());
    let mut asking = Terminal::run(&agentctl(&daemon, &["prune", "one"]), 120);
    asking.shows("[y/N]").await;
    asking.types("y\n");
    asking.shows("removed 1 session").await;
    assert!(asking.ends().await.success() && !one.directory().exists());

    let said = ctl(&daemon, &["prune", "two", "--yes"]).await;
    assert!(said.status == Some(0) && said.out.contains("removed 1 session, "), "{said:?}");
    let said = ctl(&daemon, &["--json", "prune", "three", "--yes"]).await;
    let view: PruneView = serde_json::from_str(&said.out).unwrap();
    assert_eq!((view.dry_run, ids(&view)), (false, vec![three.id.as_str()]));
    assert!(!two.directory().exists() && !three.directory().exists());
}
