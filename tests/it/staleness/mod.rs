//! Facts about a session's directory, and staleness: each kind under each policy, on real directories and repositories.

mod hostile;
mod questions;
mod repository;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use agentd_api::event::Body;
use agentd_api::session::{
    Condition, ConditionStatus, ConditionType, PermissionOrigin, PermissionPolicy, Phase, SessionSpec, SessionView,
};
use agentd_api::staleness::{StaleKind, StalePolicy};
use serde_json::json;

use crate::harness::ctl::ctl;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session};

/// Runs git in the directory, with no settings but the needed ones.
pub(crate) fn git(directory: &Path, arguments: &[&str]) {
    let status = Command::new("git")
        .args(["-c", "user.name=kim", "-c", "user.email=kim@example.com", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .current_dir(directory)
        .env_remove("GIT_DIR")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("git can be run");
    assert!(status.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&status.stderr));
}

/// Creates a repository with one commit on the branch `main`, and returns its directory.
pub(crate) fn repository(daemon: &Daemon, name: &str) -> PathBuf {
    let directory = daemon.work().join(name);
    fs::create_dir(&directory).unwrap();
    git(&directory, &["init", "-q"]);
    fs::write(directory.join("file"), "1\n").unwrap();
    git(&directory, &["add", "."]);
    git(&directory, &["commit", "-qm", "first"]);
    directory
}

/// Writes the script that starts the scripted agent of a directory with this version.
fn agent(daemon: &Daemon, directory: &Path, version: &str) -> PathBuf {
    let name = directory.file_name().unwrap().to_str().unwrap();
    let program = daemon.root().join(format!("agent-{name}"));
    let text = format!("#!/bin/sh\nexec {} --version {version} \"$@\"\n", quoted(crate::harness::scripted_agent()));
    // The former file may still be in use.
    let _ = fs::remove_file(&program);
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// Builds the spec of a session in this directory. Its policy allows all requests of its agent.
pub(crate) fn spec(daemon: &Daemon, directory: &Path) -> SessionSpec {
    let mut spec = daemon.scripted(&[]);
    spec.command.as_mut().unwrap()[0] = agent(daemon, directory, "1").display().to_string();
    spec.permissions = PermissionPolicy::Allow;
    directory.clone_into(&mut spec.directory);
    spec
}

fn key(kind: StaleKind) -> String {
    kind.as_str().replace('-', "_")
}

/// Gives one kind this policy and ignores the others, and reloads.
async fn configure(daemon: &Daemon, kind: StaleKind, policy: StalePolicy, rest: &str) {
    let others = StaleKind::ALL.iter().filter(|other| **other != kind);
    let lines = others.map(|other| format!("{} = \"ignore\"\n", key(*other))).collect::<Vec<_>>().concat();
    let policy = format!("{} = \"{}\"\n", key(kind), policy.as_str());
    daemon.configure(|config| {
        let before = config.split("\n[staleness]").next().unwrap_or_default().to_owned();
        format!("{before}\n[staleness]\n{lines}{policy}{rest}")
    });
    daemon.client.call("POST", "/v1/reload", "").await.expect::<serde_json::Value>(200);
}

fn condition(view: &SessionView, kind: StaleKind) -> Option<&Condition> {
    view.status.conditions.iter().find(|condition| condition.kind == kind.condition())
}

fn script(daemon: &Daemon, text: &str) {
    fs::write(daemon.root().join("config/env-setup.sh"), text).unwrap();
}

/// Changes the surroundings of the session so that it is stale in this way.
fn change(daemon: &Daemon, directory: &Path, kind: StaleKind) {
    match kind {
        StaleKind::Directory => {
            let moved = directory.with_extension("moved");
            fs::rename(directory, &moved).unwrap();
            let copied = Command::new("cp").arg("-a").arg(&moved).arg(directory).status().unwrap();
            assert!(copied.success());
        }
        StaleKind::Repository => git(directory, &["remote", "add", "other", "https://kim:planted-pass@host.invalid/r"]),
        StaleKind::Branch => git(directory, &["switch", "-qc", "other"]),
        StaleKind::Head => git(directory, &["commit", "-q", "--allow-empty", "-m", "second"]),
        StaleKind::Scripts => script(daemon, "export EDITOR=vi # changed\n"),
        StaleKind::Environment => script(daemon, "export EDITOR=needle-value\n"),
        StaleKind::Unused => {}
        StaleKind::AgentVersion => drop(agent(daemon, directory, "2")),
        StaleKind::Unknown => unreachable!("no test has this kind"),
    }
}

/// Returns words of the kind's message.
fn words(kind: StaleKind) -> &'static str {
    match kind {
        StaleKind::Directory => "another directory is at",
        StaleKind::Repository => "\"other\" is new",
        StaleKind::Branch => "on the branch \"other\", and was on the branch \"main\"",
        StaleKind::Head => "at the commit",
        StaleKind::Scripts => "env-setup.sh\" has changed",
        StaleKind::Environment => "since the agent last worked: EDITOR",
        StaleKind::Unused => "last used at",
        StaleKind::AgentVersion => "\"scripted\" \"2\", and was \"scripted\" \"1\"",
        StaleKind::Unknown => unreachable!("no test has this kind"),
    }
}

/// Returns agentd's own question.
async fn asked(session: &Session) -> SessionView {
    let is_open =
        |view: &SessionView| view.status.permissions.iter().any(|request| request.origin == PermissionOrigin::Agentd);
    session.wait_for("agentd asks", is_open).await
}

async fn begin_resume(session: &Session) {
    session.post("/resume", &json!({})).await.expect::<SessionView>(202);
}

/// Creates a session whose agent has worked, and stops it.
pub(crate) async fn worked(daemon: &Daemon, spec: &SessionSpec) -> Session {
    let session = daemon.session(spec).await;
    session.turn("say hello").await;
    session.stop().await;
    session
}

/// Checks each kind under one policy.
async fn each_kind(policy: StalePolicy) {
    let daemon = Daemon::start().await;
    for kind in StaleKind::ALL.iter().copied() {
        let what = format!("{} under {}", kind.as_str(), policy.as_str());
        script(&daemon, "export EDITOR=vi\n");
        configure(&daemon, kind, policy, "").await;
        let directory = repository(&daemon, kind.as_str());
        let session = worked(&daemon, &spec(&daemon, &directory)).await;
        let view = session.resume().await;
        assert_eq!(view.status.staleness, [], "{what}, unchanged");
        let held = condition(&view, kind).map(|condition| condition.status);
        // The condition about the directory is older than the policies.
        let is_looked_for = policy != StalePolicy::Ignore || kind == StaleKind::Directory;
        assert_eq!(held, is_looked_for.then_some(ConditionStatus::True), "{what}, unchanged");
        session.turn("say again").await;
        session.stop().await;

        change(&daemon, &directory, kind);
        if kind == StaleKind::Unused {
            configure(&daemon, kind, policy, "unused_after = \"1ms\"\n").await;
        }
        begin_resume(&session).await;
        if policy == StalePolicy::Ask {
            let view = asked(&session).await;
            assert_eq!(view.status.phase, Phase::Waiting, "{what}");
            let request = &view.status.permissions[0];
            assert!(request.title.contains(words(kind)), "{what}: {request:?}");
            let path = format!("/permissions/{}", request.id);
            session.post(&path, &json!("allow")).await.expect::<SessionView>(200);
        }
        let view = session.wait_for(&what, |view| view.status.phase.is_settled()).await;
        if policy == StalePolicy::Ignore {
            assert_eq!(view.status.phase, Phase::Idle, "{what}: {view:#?}");
            assert_eq!(
                (view.status.staleness.len(), condition(&view, kind).map(|one| one.status)),
                (0, held),
                "{what}"
            );
            continue;
        }
        let expected = if policy == StalePolicy::Refuse { Phase::Failed } else { Phase::Idle };
        assert_eq!(view.status.phase, expected, "{what}: {view:#?}");
        let found: Vec<_> = view.status.staleness.iter().map(|finding| (finding.kind, finding.policy)).collect();
        assert_eq!(found, [(kind, policy)], "{what}: {view:#?}");
        let stale = condition(&view, kind).unwrap_or_else(|| panic!("{what}: {view:#?}"));
        assert!(stale.status == ConditionStatus::False && stale.message.contains(words(kind)), "{what}: {stale:?}");
        if policy == StalePolicy::Refuse {
            let message = view.status.message.unwrap_or_default();
            assert!(message.contains(&format!("staleness.{}", key(kind))), "{what}: {message}");
        } else {
            session.turn("say the rest").await;
            session.stop().await;
        }
    }
    assert_eq!(daemon.holders("planted-pass"), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn nothing_is_looked_for_under_the_policy_ignore() {
    each_kind(StalePolicy::Ignore).await;
}

#[tokio::test]
async fn each_kind_is_found_and_recorded_under_the_policy_note() {
    each_kind(StalePolicy::Note).await;
}

#[tokio::test]
async fn each_kind_is_found_and_recorded_under_the_policy_warn() {
    each_kind(StalePolicy::Warn).await;
}

#[tokio::test]
async fn each_kind_is_asked_about_under_the_policy_ask() {
    each_kind(StalePolicy::Ask).await;
}

#[tokio::test]
async fn each_kind_fails_the_launch_under_the_policy_refuse() {
    each_kind(StalePolicy::Refuse).await;
}

#[tokio::test]
async fn a_directory_that_is_gone_fails_the_launch_under_every_policy() {
    let daemon = Daemon::start().await;
    configure(&daemon, StaleKind::Directory, StalePolicy::Ignore, "").await;
    let directory = repository(&daemon, "gone");
    let session = worked(&daemon, &spec(&daemon, &directory)).await;
    fs::rename(&directory, directory.with_extension("moved")).unwrap();
    begin_resume(&session).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let gone = condition(&view, StaleKind::Directory).unwrap();
    assert_eq!((gone.status, gone.reason.as_str()), (ConditionStatus::False, "DirectoryGone"));
}

#[tokio::test]
async fn show_has_the_facts_and_ls_marks_a_session_that_warns() {
    let daemon = Daemon::start().await;
    configure(&daemon, StaleKind::Branch, StalePolicy::Warn, "").await;
    let directory = repository(&daemon, "shown");
    git(&directory, &["remote", "add", "origin", "https://kim:planted-pass@host.invalid/r"]);
    fs::write(directory.join("file"), "2\n").unwrap();
    let session = worked(&daemon, &spec(&daemon, &directory)).await;
    let (_, shown, _) = ctl(&daemon, &["ls", "--all"]).await.parts();
    assert!(!shown.contains("STALE"), "{shown}");
    git(&directory, &["switch", "-qc", "other"]);
    session.resume().await;
    let (status, shown, _) = ctl(&daemon, &["ls"]).await.parts();
    assert!(status == Some(0) && shown.contains("STALE") && shown.trim_end().ends_with("branch"), "{shown}");
    let (status, shown, _) = ctl(&daemon, &["show", session.id.as_str()]).await.parts();
    assert_eq!(status, Some(0), "{shown}");
    for line in ["remote:        origin https://host.invalid/r", "(with changes)", "stale:         branch (warn): the"]
    {
        assert!(shown.contains(line), "{line:?} is not in:\n{shown}");
    }
    let conditions = session.view().await.status.conditions;
    assert!(conditions.iter().any(|condition| condition.kind == ConditionType::BranchUnchanged));
    let found = session.journal().iter().filter(|event| matches!(event.body, Body::StalenessFound(_))).count();
    assert_eq!(found, 1);
}
