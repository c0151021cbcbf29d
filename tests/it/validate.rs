//! Problems of an environment are reported before a launch and to the client, and do not prevent a start by themselves.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use agentd_api::Body;
use agentd_api::scripts::ScriptList;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionView};
use agentd_api::validation::ValidationView;
use serde_json::json;

use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, paths, process};

async fn asked(daemon: &Daemon, session: &Session) -> ValidationView {
    daemon.client.get(&session.path("/validation")).await.expect(200)
}

fn reasons(view: &ValidationView) -> Vec<&str> {
    view.warnings.iter().map(|one| one.reason.as_str()).collect()
}

fn condition(view: &SessionView) -> Condition {
    let mut conditions = view.status.conditions.iter();
    conditions.find(|one| one.kind == ConditionType::EnvironmentValid).expect("each launch says it").clone()
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
}

/// Runs `agentctl validate`, and returns its status and output.
fn agentctl(daemon: &Daemon, args: &[&str]) -> (i32, String) {
    let program = paths::agentctl();
    let output = Command::new(program)
        .arg("--socket")
        .arg(daemon.client.socket())
        .arg("validate")
        .args(args)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .expect("agentctl can be executed");
    (output.status.code().expect("it ended by itself"), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test]
async fn a_session_whose_directory_was_deleted_is_warned_of() {
    let daemon = Daemon::start().await;
    let directory = daemon.root().join("project");
    fs::create_dir(&directory).unwrap();
    let spec = agentd_api::session::SessionSpec { directory: directory.clone(), ..daemon.scripted(&[]) };
    let session = daemon.session(&spec).await;
    session.stop().await;
    fs::remove_dir(&directory).unwrap();
    let view = asked(&daemon, &session).await;
    assert_eq!((reasons(&view), &view.warnings[0].path), (vec!["DirectoryGone"], &directory));
    let (status, said) = agentctl(&daemon, &[session.id.as_str()]);
    assert!(status == 1 && said.contains("does not exist"), "{status}: {said}");
    fs::write(&directory, "a file").unwrap();
    assert_eq!(reasons(&asked(&daemon, &session).await), ["NotADirectory"]);
}

#[tokio::test]
async fn an_environment_with_nothing_wrong_is_valid() {
    let daemon = Daemon::start().await;
    write(&daemon.home().join(".profile"), "export PATH=/usr/bin:/bin\n");
    let session = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(condition(&session.view().await).status, ConditionStatus::True);
    let view = asked(&daemon, &session).await;
    assert_eq!((view.warnings, view.launch, view.scripts), (vec![], Some(1), vec![]));
    assert_eq!(agentctl(&daemon, &[session.id.as_str()]), (0, "no mistakes found\n".to_owned()));
}

#[tokio::test]
async fn what_is_missing_is_a_condition_that_names_each_and_the_launch_goes_on() {
    let daemon = Daemon::start().await;
    let venv = daemon.root().join("venv");
    let profile = format!("export PATH=/usr/bin:/bin:/gone/one:/gone/two VIRTUAL_ENV={}\n", quoted(&venv));
    write(&daemon.home().join(".profile"), &profile);
    let session = daemon.session(&daemon.scripted(&[])).await;
    let said = condition(&session.view().await);
    assert_eq!((said.status, said.reason.as_str()), (ConditionStatus::False, "SeveralWarnings"));
    for named in ["/gone/one", "/gone/two", &venv.display().to_string()] {
        assert!(said.message.contains(named), "{}", said.message);
    }
    let recorded = session.journal().into_iter().any(|event| {
        matches!(&event.body, Body::Condition(one)
            if one.kind == ConditionType::EnvironmentValid && one.status == ConditionStatus::False)
    });
    assert!(recorded, "a warning is an event");

    // Validation uses the current state of the directory, also for a stopped session.
    session.stop().await;
    fs::create_dir_all(venv.join("bin")).unwrap();
    let view = asked(&daemon, &session).await;
    assert_eq!(reasons(&view), ["PathEntryMissing", "PathEntryMissing", "VirtualEnvGone"]);
    assert!(view.warnings[2].message.contains("bin/python"), "{view:?}");
    std::os::unix::fs::symlink("/bin/true", venv.join("bin/python")).unwrap();
    assert_eq!(reasons(&asked(&daemon, &session).await), ["PathEntryMissing"; 2]);
    let (status, text) = agentctl(&daemon, &[session.id.as_str()]);
    assert_eq!((status, text.lines().count()), (1, 2), "{text}");
    let (status, text) = agentctl(&daemon, &[session.id.as_str(), "--json"]);
    assert_eq!(status, 1);
    assert_eq!(serde_json::from_str::<ValidationView>(&text).unwrap(), asked(&daemon, &session).await);
}

#[tokio::test]
async fn a_script_that_has_changed_since_it_ran_is_named_once() {
    let daemon = Daemon::start().await;
    write(&daemon.home().join(".profile"), "export PATH=/usr/bin:/bin\n");
    let global = daemon.root().join("config/env-setup.sh");
    write(&global, "export A=1\n");
    let session = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(condition(&session.view().await).status, ConditionStatus::True, "it has never run before");
    session.stop().await;
    assert_eq!(reasons(&asked(&daemon, &session).await), [""; 0]);
    write(&global, "export A=2\n");
    let view = asked(&daemon, &session).await;
    assert_eq!((reasons(&view), view.scripts.len()), (vec!["ScriptChanged"], 1));
    assert_eq!(reasons(&asked(&daemon, &session).await), ["ScriptChanged"], "asking is no run");

    let said = condition(&session.resume().await);
    assert_eq!((said.status, said.reason.as_str()), (ConditionStatus::False, "ScriptChanged"));
    assert!(said.message.contains("env-setup.sh has changed since it ran last"), "{}", said.message);
    session.stop().await;
    assert_eq!(condition(&session.resume().await).status, ConditionStatus::True, "it has run by now");
    session.stop().await;
    fs::remove_file(&global).unwrap();
    assert!(asked(&daemon, &session).await.warnings[0].message.contains("no longer exists"));
}

#[tokio::test]
async fn scripts_are_looked_at_and_not_run_by_whoever_asks() {
    let daemon = Daemon::start().await;
    write(&daemon.home().join(".profile"), "export PATH=/usr/bin:/bin\n");
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.stop().await;
    let (canary, script) = (daemon.work().join("canary"), daemon.work().join(".agentd-env.sh"));
    write(&script, &format!("touch {}\nif true; then\n", quoted(&canary)));
    let view = asked(&daemon, &session).await;
    assert_eq!(reasons(&view), ["ScriptNotApproved"], "and no shell has looked at it");
    assert!(view.warnings[0].message.contains("agentctl env allow"), "{view:?}");

    let body = json!({ "directory": daemon.work() });
    daemon.client.post("/v1/scripts/allow", &body).await.expect::<ScriptList>(200);
    let view = asked(&daemon, &session).await;
    assert_eq!(reasons(&view), ["ScriptSyntax"]);
    assert!(view.warnings[0].message.contains("syntax error: unexpected end of file"), "{view:?}");

    fs::set_permissions(&script, Permissions::from_mode(0o666)).unwrap();
    assert_eq!(reasons(&asked(&daemon, &session).await), ["ScriptUnreadable"]);
    assert!(!canary.exists(), "it was run");
    process::assert_only(&[daemon.pid()], daemon.root(), "what was started has stayed");
}

#[tokio::test]
async fn a_launch_that_fails_for_a_script_has_said_before_what_is_wrong_with_it() {
    let daemon = Daemon::start().await;
    write(&daemon.root().join("config/env-setup.sh"), "export A=(\n");
    let session = daemon.create(&daemon.scripted(&[])).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let said = condition(&view);
    assert_eq!((said.status, said.reason.as_str()), (ConditionStatus::False, "ScriptSyntax"), "{view:#?}");
    assert_eq!(asked(&daemon, &session).await.launch, None, "there has been no environment");
    assert_eq!(agentctl(&daemon, &[session.id.as_str()]).0, 1);
}

#[tokio::test]
async fn a_script_is_read_by_the_shell_that_would_run_it() {
    if !Path::new("/bin/dash").exists() {
        return; // there is no second shell here whose grammar differs
    }
    let daemon = Daemon::start().await;
    write(&daemon.home().join(".profile"), "export PATH=/usr/bin:/bin\n");
    let session = daemon.session(&daemon.scripted(&[])).await;
    let global = daemon.root().join("config/env-setup.sh");
    for (first, expected) in [("", &[][..]), ("#!/bin/bash\n", &[]), ("#!/usr/bin/env dash\n", &["ScriptSyntax"])] {
        write(&global, &format!("{first}list=(one two)\n"));
        assert_eq!(reasons(&asked(&daemon, &session).await), expected, "{first}");
    }
}

#[tokio::test]
async fn a_projects_file_is_honoured_by_what_a_script_makes_of_it_and_by_no_other_environment() {
    let daemon = Daemon::start().await;
    write(&daemon.home().join(".profile"), "export PATH=/usr/bin:/bin CONDA_PREFIX=/opt/conda PROJECT=other\n");
    write(&daemon.work().join(".envrc"), "export PROJECT=this\n");
    write(&daemon.work().join("environment.yml"), "name: ml\n");
    write(&daemon.work().join(".tool-versions"), "nodejs 20\n");
    let session = daemon.session(&daemon.scripted(&[])).await;
    let files = |view: &ValidationView| -> Vec<String> {
        let ours = view.warnings.iter().filter(|one| one.reason == "ProjectFileNotHonoured");
        ours.map(|one| one.path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(files(&asked(&daemon, &session).await), [".tool-versions", ".envrc", "environment.yml"]);
    session.stop().await;
    let installs = daemon.home().join("mise/installs/node/20.11.0/bin");
    fs::create_dir_all(&installs).unwrap();
    let script = format!(". ./.envrc\nexport CONDA_PREFIX=/opt/conda/envs/ml PATH={}:$PATH\n", quoted(&installs));
    write(&daemon.root().join("config/env-setup.sh"), &script);
    session.resume().await;
    assert_eq!(files(&asked(&daemon, &session).await), [""; 0]);
}
