//! Repositories that are not to be trusted: they run no program, block no launch and reveal no credential.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use agentd_api::facts::Repository;
use agentd_api::session::SessionView;
use agentd_api::staleness::{StaleKind, StalePolicy};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::{configure, git, repository, spec};
use crate::harness::{Daemon, process, until};

fn message(view: &SessionView) -> &str {
    match view.status.facts.as_ref().map(|facts| &facts.repository) {
        Some(Repository::Unread(unread)) => &unread.message,
        other => panic!("it was read: {other:?}"),
    }
}

/// Adds programs to every place of the repository's configuration that git executes for a look at the tree. Each
/// program creates the file.
fn plant(directory: &Path, ran: &Path) {
    let run = |name: &str| format!("touch \"{}-{name}\"; cat", ran.display());
    for (key, value) in [
        ("core.fsmonitor", run("fsmonitor")),
        ("core.pager", run("pager")),
        ("core.sshCommand", run("ssh")),
        ("core.editor", run("editor")),
        ("core.askPass", run("askpass")),
        ("credential.helper", format!("!{}", run("credential"))),
        ("diff.external", run("diff")),
        ("filter.evil.clean", run("clean")),
        ("filter.evil.smudge", run("smudge")),
        ("filter.evil.process", run("process")),
        ("filter.evil.required", "true".to_owned()),
        ("alias.status", format!("!{}", run("alias"))),
        ("remote.origin.url", format!("ext::sh -c '{}'", run("remote"))),
        ("remote.origin.vcs", "ext".to_owned()),
        ("remote.origin.promisor", "true".to_owned()),
        ("remote.origin.partialclonefilter", "blob:none".to_owned()),
        ("extensions.partialClone", "origin".to_owned()),
        ("core.repositoryFormatVersion", "1".to_owned()),
    ] {
        git(directory, &["config", key, &value]);
    }
    fs::create_dir_all(directory.join(".git/hooks")).unwrap();
    for hook in ["post-index-change", "pre-auto-gc", "reference-transaction", "fsmonitor-watchman"] {
        let path = directory.join(".git/hooks").join(hook);
        fs::write(&path, format!("#!/bin/sh\ntouch \"{}-hook-{hook}\"\n", ran.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    // The filter applies to this file, whose content git has to compare.
    fs::write(directory.join(".git/info/attributes"), "* filter=evil diff=evil\n").unwrap();
    fs::write(directory.join("file"), "2\n").unwrap();
}

#[tokio::test]
async fn a_repository_that_names_programs_everywhere_runs_none() {
    let daemon = Daemon::start().await;
    configure(&daemon, StaleKind::Branch, StalePolicy::Note, "").await;
    for name in ["process", "clean"] {
        let directory = repository(&daemon, name);
        plant(&directory, &daemon.root().join("ran"));
        if name == "clean" {
            git(&directory, &["config", "--unset", "filter.evil.process"]);
        }
        let session = daemon.session(&spec(&daemon, &directory)).await;
        session.turn("say hello").await;
        session.stop().await;
        let view = session.resume().await;
        let facts = view.status.facts.expect("they are read");
        let found = facts.repository.found().unwrap_or_else(|| panic!("{facts:?}"));
        assert_eq!((found.branch.as_deref(), found.dirty), (Some("main"), Some(true)), "{name}");
        assert_eq!(found.remotes["origin"], ["ext::(hidden)"]);
        assert_eq!(programs(&daemon), Vec::<String>::new(), "{name}");
    }
}

/// Removes the object of the head's tree, which the repository could fetch from its remote over ssh.
fn lose_an_object(directory: &Path) {
    git(directory, &["config", "remote.origin.url", "ssh://host.invalid/r"]);
    git(directory, &["config", "--unset", "remote.origin.vcs"]);
    // A required filter that fails would end git before it needs the object.
    git(directory, &["config", "--remove-section", "filter.evil"]);
    let listed = Command::new("git").args(["rev-parse", "HEAD^{tree}"]).current_dir(directory).output().unwrap();
    let id = String::from_utf8(listed.stdout).unwrap().trim().to_owned();
    fs::remove_file(directory.join(".git/objects").join(&id[..2]).join(&id[2..])).unwrap();
}

fn programs(daemon: &Daemon) -> Vec<String> {
    let names = fs::read_dir(daemon.root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("ran-")).collect()
}

#[tokio::test]
async fn an_object_that_is_missing_is_not_fetched() {
    let daemon = Daemon::start().await;
    let directory = repository(&daemon, "partial");
    plant(&directory, &daemon.root().join("ran"));
    lose_an_object(&directory);
    let session = daemon.session(&spec(&daemon, &directory)).await;
    let facts = session.view().await.status.facts.expect("they are read");
    let found = facts.repository.found().unwrap_or_else(|| panic!("{facts:?}"));
    assert_eq!((found.branch.as_deref(), found.dirty), (Some("main"), None));
    assert_eq!(programs(&daemon), Vec::<String>::new());
}

#[tokio::test]
async fn the_planted_programs_run_without_the_protection() {
    let daemon = Daemon::prepare();
    for (name, expected) in [("process", "ran-process"), ("clean", "ran-clean"), ("partial", "ran-ssh")] {
        let directory = repository(&daemon, name);
        plant(&directory, &daemon.root().join("ran"));
        if name == "clean" {
            git(&directory, &["config", "--unset", "filter.evil.process"]);
        } else if name == "partial" {
            lose_an_object(&directory);
        }
        // Its errors are of no interest.
        let _ = Command::new("git").args(["-c", "core.fsmonitor=", "status"]).current_dir(&directory).output().unwrap();
        assert!(programs(&daemon).contains(&expected.to_owned()), "{name}: {:?}", programs(&daemon));
    }
}

#[tokio::test]
async fn a_repository_that_hangs_holds_no_launch_and_no_turn() {
    let daemon = Daemon::start().await;
    let directory = repository(&daemon, "hangs");
    fs::remove_file(directory.join(".git/config")).unwrap();
    // git waits for a writer forever.
    mkfifo(&directory.join(".git/config"), Mode::S_IRWXU).unwrap();
    let session = daemon.session(&spec(&daemon, &directory)).await;
    session.turn("say hello").await;
    session.turn("say again").await;
    session.stop().await;
    let view = session.resume().await;
    assert_eq!(message(&view), "git did not answer in time");
    session.stop().await;
    until("no reader is left", || process::readers(daemon.root()).is_empty()).await;
}

#[tokio::test]
async fn a_tree_that_takes_too_long_costs_only_the_fact_about_changes() {
    let daemon = Daemon::start().await;
    let directory = repository(&daemon, "slow");
    fs::write(directory.join("file"), "2\n").unwrap();
    fs::create_dir_all(directory.join(".git/info")).unwrap();
    // git waits for a writer forever before it compares the content of the file.
    mkfifo(&directory.join(".git/info/attributes"), Mode::S_IRWXU).unwrap();
    let session = daemon.session(&spec(&daemon, &directory)).await;
    let facts = session.view().await.status.facts.expect("they are read");
    let found = facts.repository.found().unwrap_or_else(|| panic!("{facts:?}"));
    assert_eq!((found.branch.as_deref(), found.dirty), (Some("main"), None));
}

#[tokio::test]
async fn a_broken_repository_and_a_file_that_points_elsewhere_are_facts_and_no_failure() {
    let daemon = Daemon::start().await;
    let directory = repository(&daemon, "broken");
    fs::write(directory.join(".git/config"), "[planted-text\n").unwrap();
    let session = daemon.session(&spec(&daemon, &directory)).await;
    let told = message(&session.view().await).to_owned();
    assert!(told.starts_with("git failed with status") && !told.contains("planted"), "{told}");

    let pointing = daemon.work().join("pointing");
    fs::create_dir(&pointing).unwrap();
    fs::write(pointing.join(".git"), "gitdir: /nowhere/at/all\n").unwrap();
    let session = daemon.session(&spec(&daemon, &pointing)).await;
    let repository = session.view().await.status.facts.expect("they are read").repository.clone();
    assert!(matches!(repository, Repository::None | Repository::Unread(_)), "{repository:?}");
}

#[tokio::test]
async fn a_repository_of_another_user_is_not_read() {
    if !nix::unistd::getuid().is_root() {
        return;
    }
    let daemon = Daemon::start().await;
    let directory = repository(&daemon, "foreign");
    let chown = |path: &Path| std::os::unix::fs::chown(path, Some(12345), Some(12345)).unwrap();
    chown(&directory.join(".git"));
    chown(&directory);
    let session = daemon.session(&spec(&daemon, &directory)).await;
    let view = session.view().await;
    assert!(message(&view).contains("safe.directory"), "{}", message(&view));
}
