//! The snapshot at the beginning of sessions' environments: captured once, captured again when it is out of date, and
//! never incomplete without a report.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use agentd_api::environment::{EnvironmentSpec, SnapshotSource};
use agentd_api::problem::Code;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionSpec, SessionView};
use agentd_api::snapshot::{LoginSnapshotView, SnapshotList, SnapshotState, TerminalSnapshotView};
use serde_json::json;

use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, paths};

async fn variables(session: &Session) -> BTreeMap<String, String> {
    let text = session.turn("env").await.text;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

async fn editor(session: &Session) -> Option<String> {
    variables(session).await.remove("EDITOR")
}

async fn status(daemon: &Daemon) -> LoginSnapshotView {
    let list: SnapshotList = daemon.client.get("/v1/snapshots").await.expect(200);
    let home = daemon.home();
    list.login_shells.into_iter().find(|view| view.home == home).expect("the user's own login shell is listed")
}

fn found(view: &SessionView) -> &Condition {
    let mut conditions = view.status.conditions.iter();
    conditions.find(|condition| condition.kind == ConditionType::SnapshotFresh).unwrap_or_else(|| panic!("{view:#?}"))
}

/// Writes a profile that counts its reads.
fn profile(daemon: &Daemon, rest: &str) {
    let text = format!("echo run >> {}\n{rest}\n", quoted(counter(daemon)));
    std::fs::write(daemon.home().join(".profile"), text).unwrap();
}

fn counter(daemon: &Daemon) -> PathBuf {
    daemon.root().join("counter")
}

fn runs(daemon: &Daemon) -> usize {
    std::fs::read_to_string(counter(daemon)).unwrap_or_default().lines().count()
}

/// A session that begins with this.
fn from(daemon: &Daemon, source: SnapshotSource, snapshot: Option<&str>) -> SessionSpec {
    let environment =
        EnvironmentSpec { source: Some(source), snapshot: snapshot.map(str::to_owned), ..EnvironmentSpec::default() };
    SessionSpec { environment, ..daemon.scripted(&[]) }
}

async fn send_terminal(daemon: &Daemon, editor: &str) -> String {
    let body = json!({ "variables": [
        { "name": "EDITOR", "value": editor },
        { "name": "PATH", "value": "/usr/bin:/bin" },
        { "name": "DEPLOY_TOKEN", "value": "needle-of-a-terminal" },
    ] });
    let view: TerminalSnapshotView = daemon.client.post("/v1/snapshots", &body).await.expect(201);
    assert_eq!(view.variables, 3);
    view.id
}

/// Returns whether a file below the directory contains these bytes.
fn holds(directory: &Path, needle: &str) -> Option<PathBuf> {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if let Some(found) = holds(&path, needle) {
                return Some(found);
            }
        } else if let Ok(bytes) = std::fs::read(&path)
            && bytes.windows(needle.len()).any(|window| window == needle.as_bytes())
        {
            return Some(path);
        }
    }
    None
}

fn agentctl(daemon: &Daemon, args: &[&str]) -> (String, String, bool) {
    let output = Command::new(paths::agentctl())
        .args(["--socket".as_ref(), daemon.client.socket().as_os_str()])
        .args(args)
        .env_clear()
        .envs([("EDITOR", "typed-in-a-terminal"), ("PATH", "/usr/bin:/bin")])
        .output()
        .expect("agentctl can be executed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.success())
}

#[tokio::test]
async fn fifty_launches_at_once_run_the_login_shell_once_and_a_changed_file_makes_it_run_exactly_once_more() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[limits]\nlaunches = 50\nactive_sessions = 200\n"));
    profile(&daemon, "export EDITOR=first");
    daemon.run().await;
    for (expected, value) in [(1, "first"), (2, "second")] {
        if value == "second" {
            profile(&daemon, "export EDITOR=second");
        }
        let spec = daemon.scripted(&[]);
        let sessions = created(&daemon, &spec, 50).await;
        for session in &sessions {
            session.wait_for_phase(Phase::Idle).await;
        }
        assert_eq!(runs(&daemon), expected, "{value}");
        assert_eq!(editor(&sessions[49]).await.as_deref(), Some(value));
        let view = status(&daemon).await;
        assert_eq!((view.captures, view.failures), (expected as u64, 0), "{view:#?}");
        assert_eq!(view.hits, expected as u64 * 49, "{view:#?}");
        for session in sessions {
            session.stop().await;
        }
    }
    let view = status(&daemon).await;
    assert_eq!(view.state, SnapshotState::Fresh, "{view:#?}");
    assert!(view.files.contains(&daemon.home().join(".profile")), "{view:#?}");
    assert!(view.files.contains(&daemon.home().join(".bash_profile")), "one that is not there is watched too");
}

async fn created(daemon: &Daemon, spec: &SessionSpec, count: usize) -> Vec<Session> {
    let mut sessions = Vec::new();
    for _ in 0..count {
        // The answer comes before the launch has made progress.
        sessions.push(daemon.create(spec).await);
    }
    sessions
}

#[tokio::test]
async fn a_file_that_appears_counts_as_changed() {
    let daemon = Daemon::start().await;
    assert_eq!(editor(&daemon.session(&daemon.scripted(&[])).await).await.as_deref(), Some("ed"));
    std::fs::write(daemon.home().join(".bash_profile"), "export EDITOR=from-another-file\n").unwrap();
    let session = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(editor(&session).await.as_deref(), Some("from-another-file"));
}

#[tokio::test]
async fn where_the_login_shell_fails_the_last_good_one_is_given_and_the_session_says_so() {
    let mut daemon = Daemon::prepare();
    profile(&daemon, "export EDITOR=good DEPLOY_TOKEN=needle-of-a-shell");
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let view = session.view().await;
    assert_eq!((found(&view).status, found(&view).reason.as_str()), (ConditionStatus::True, "LoginShell"));
    profile(&daemon, "export EDITOR=bad; exit 3");
    for restarted in [false, true] {
        if restarted {
            daemon.terminate().await;
            daemon.run().await;
        }
        let session = daemon.session(&daemon.scripted(&[])).await;
        assert_eq!(editor(&session).await.as_deref(), Some("good"));
        let view = session.view().await;
        let condition = found(&view);
        assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "Stale"), "{condition:?}");
        assert!(condition.message.contains("status 3"), "{condition:?}");
        assert_eq!(condition.message.contains("without DEPLOY_TOKEN"), restarted, "{condition:?}");
        assert_eq!(status(&daemon).await.state, SnapshotState::Stale);
    }
    assert_eq!(holds(&daemon.state(), "needle-of-a-shell"), None);
    let cache = paths::kept().join("agentd-cache/snapshots");
    assert_eq!(holds(&cache, "needle-of-a-shell"), None);
    for file in std::fs::read_dir(&cache).unwrap().flatten() {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0, "{}", file.path().display());
    }
}

#[tokio::test]
async fn a_session_begins_with_its_terminals_environment_and_after_a_restart_says_what_of_it_is_lost() {
    let mut daemon = Daemon::start().await;
    let id = send_terminal(&daemon, "typed").await;
    let session = daemon.session(&from(&daemon, SnapshotSource::Terminal, Some(&id))).await;
    assert_eq!(editor(&session).await.as_deref(), Some("typed"));
    assert_eq!(found(&session.view().await).reason, "Terminal");
    session.stop().await;
    daemon.terminate().await;
    daemon.run().await;
    session.resume().await;
    assert_eq!(editor(&session).await.as_deref(), Some("typed"));
    let view = session.view().await;
    let condition = found(&view);
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "SecretsMissing"));
    assert!(condition.message.contains("without DEPLOY_TOKEN"), "{condition:?}");
    assert_eq!(holds(&daemon.state(), "needle-of-a-terminal"), None);
    assert_eq!(runs(&daemon), 0);
}

#[tokio::test]
async fn what_was_stored_at_creation_is_given_again_at_each_launch() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&from(&daemon, SnapshotSource::Stored, None)).await;
    session.stop().await;
    std::fs::write(daemon.home().join(".profile"), "export EDITOR=changed\n").unwrap();
    session.resume().await;
    assert_eq!(editor(&session).await.as_deref(), Some("ed"));
    assert_eq!(found(&session.view().await).reason, "Stored");
    let fresh = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(editor(&fresh).await.as_deref(), Some("changed"));
}

#[tokio::test]
async fn sessions_of_one_directory_share_a_terminals_environment_where_that_is_configured() {
    let mut daemon = Daemon::prepare();
    daemon
        .configure(|config| config.replace("[environment]\n", "[environment]\nsource = \"terminal\"\nshare = true\n"));
    daemon.run().await;
    let problem = daemon.client.post("/v1/sessions", &daemon.scripted(&[])).await.problem();
    assert_eq!((problem.status, problem.code), (422, Code::SnapshotNeeded));

    let id = send_terminal(&daemon, "typed").await;
    let first = daemon.session(&from(&daemon, SnapshotSource::Terminal, Some(&id))).await;
    let second = daemon.session(&daemon.scripted(&[])).await;
    for session in [&first, &second] {
        assert_eq!(editor(session).await.as_deref(), Some("typed"));
    }
    let mut alone = daemon.scripted(&[]);
    alone.environment.shared = Some(false);
    assert_eq!(daemon.client.post("/v1/sessions", &alone).await.problem().code, Code::SnapshotNeeded);
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_meant_is_refused() {
    let daemon = Daemon::start().await;
    let unknown = from(&daemon, SnapshotSource::Terminal, Some("nobody"));
    assert_eq!(daemon.client.post("/v1/sessions", &unknown).await.problem().code, Code::NoSuchSnapshot);
    let id = send_terminal(&daemon, "typed").await;
    let both = from(&daemon, SnapshotSource::Stored, Some(&id));
    assert_eq!(daemon.client.post("/v1/sessions", &both).await.problem().code, Code::InvalidRequest);
    for name in ["", "A=B"] {
        let body = json!({ "variables": [{ "name": name, "value": "x" }] });
        assert_eq!(daemon.client.post("/v1/snapshots", &body).await.problem().code, Code::InvalidRequest, "{name:?}");
    }
}

#[tokio::test]
async fn agentctl_sends_its_own_environment_and_shows_runs_and_forgets_snapshots() {
    let mut daemon = Daemon::prepare();
    profile(&daemon, "export EDITOR=ed");
    daemon.run().await;
    let directory = daemon.work().display().to_string();
    let new = ["new", "--agent", "scripted", "--dir", &directory, "--ready", "60", "--env-from", "terminal"];
    let (id, stderr, done) = agentctl(&daemon, &new);
    assert!(done, "{stderr}");
    let session = Session::new(id.trim().parse().unwrap(), daemon.client.clone(), daemon.state());
    assert_eq!(editor(&session).await.as_deref(), Some("typed-in-a-terminal"));
    assert_eq!(runs(&daemon), 0);

    let (table, _, _) = agentctl(&daemon, &["snapshot", "status"]);
    assert!(table.contains("empty") && table.contains("TERMINAL"), "{table}");
    for (command, state, expected) in [("refresh", "fresh", 1), ("refresh", "fresh", 2), ("invalidate", "empty", 2)] {
        let (table, stderr, done) = agentctl(&daemon, &["snapshot", command]);
        assert!(done && table.contains(state), "{command}: {table}{stderr}");
        assert_eq!(runs(&daemon), expected, "{command}");
    }
    let (json, _, _) = agentctl(&daemon, &["snapshot", "status", "--json"]);
    serde_json::from_str::<SnapshotList>(&json).unwrap();

    profile(&daemon, "exit 3");
    let (_, stderr, done) = agentctl(&daemon, &["snapshot", "refresh"]);
    assert!(!done && stderr.contains("status 3"), "{stderr}");
}
