//! `agentd run-spec` as process 1 of a container: in a PID namespace, as a user without an entry in the user database,
//! on a read-only file system.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use serde_json::json;

use super::{Run, only_child};
use crate::harness::ctl::end_of;
use crate::harness::quote::quoted;
use crate::harness::{process, require, until};

/// Words that make a PID namespace around the command.
const AS_PROCESS_1: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"];

fn as_process_1(mut run: Run) -> Run {
    run.entrance = AS_PROCESS_1.map(str::to_owned).to_vec();
    run
}

/// Returns the pid of process 1, seen from outside.
async fn process_1(child: &Child) -> u32 {
    until("the namespace has a process", || only_child(child.id()).is_some()).await;
    only_child(child.id()).unwrap()
}

#[tokio::test]
async fn process_1_completes_a_session_and_takes_the_signals_of_its_container() {
    let Some(()) = require::root("a PID namespace") else { return };
    let run = as_process_1(Run::of_prompt("do printf abc > artifacts/a\nsay done"));
    let said = run.end().await;
    assert_eq!((said.status, said.out.as_str()), (Some(0), "done\n"), "{said:?}");
    assert_eq!(fs::read_to_string(run.path("out/artifacts/a")).unwrap(), "abc");

    let run = as_process_1(Run::of_prompt("do printf abc > artifacts/a\nsay working\nhang"));
    let child = run.start();
    run.said("working").await;
    kill(process::pid(process_1(&child).await), Signal::SIGTERM).unwrap();
    let said = end_of(child).await;
    assert_eq!((said.status, &run.result()["outcome"]), (Some(143), &json!("stopped")), "{said:?}");
    assert_eq!(fs::read_to_string(run.path("out/artifacts/a")).unwrap(), "abc");
    run.nothing_is_left().await;
}

#[tokio::test]
async fn process_1_reaps_the_orphans_of_its_container() {
    let Some(()) = require::root("a PID namespace") else { return };
    let run = as_process_1(Run::of_prompt("say working\nhang"));
    let child = run.start();
    run.said("working").await;
    let init = process_1(&child).await;
    // A program that a container engine starts in the container has its parent outside. What it leaves is an orphan.
    let marks: Vec<_> = ["ended", "killed"].iter().map(|name| run.path(name)).collect();
    for mark in &marks {
        let script = format!("sh -c 'echo $$ > {}; exec sleep 1000' & ", quoted(mark));
        let target = format!("--target={init}");
        let status =
            Command::new("nsenter").args([&target, "--pid", "sh", "-c", &script]).stdin(Stdio::null()).status();
        assert!(status.unwrap().success());
    }
    let sleeping = || -> Vec<u32> {
        let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        children.filter(|pid| name(pid) == "sleep\n").collect()
    };
    until("process 1 has the orphans", || sleeping().len() == 2).await;
    let orphans = sleeping();
    kill(process::pid(orphans[0]), Signal::SIGTERM).unwrap();
    kill(process::pid(orphans[1]), Signal::SIGKILL).unwrap();
    // A zombie would still have its directory.
    until("they are reaped", || !orphans.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists())).await;
    assert!(Path::new(&format!("/proc/{init}")).exists(), "the session continues");
    kill(process::pid(init), Signal::SIGTERM).unwrap();
    assert_eq!(end_of(child).await.status, Some(143));
}

#[tokio::test]
async fn a_keeper_that_is_killed_ends_the_run_and_leaves_no_process() {
    let Some(()) = require::root("a PID namespace") else { return };
    let run = as_process_1(Run::of_prompt("do printf abc > artifacts/a\nsay working\nhang"));
    let child = run.start();
    run.said("working").await;
    let keepers = process::running(&run.path("state"), "agentd-keeper", Some("hold"));
    process::kill9(keepers[0]);
    let said = end_of(child).await;
    assert_eq!((said.status, &run.result()["outcome"]), (Some(1), &json!("failed")), "{said:?}");
    assert_eq!(fs::read_to_string(run.path("out/artifacts/a")).unwrap(), "abc");
    run.nothing_is_left().await;
}

/// A script that makes the whole file system read-only for the words after it, except for one directory.
const READ_ONLY: &str = "mount --make-rprivate / && mount --bind \"$0\" \"$0\" && \
    for place in $(cut -d ' ' -f 5 /proc/self/mountinfo); do \
      case $place in \"$0\"*|/proc*|/dev*|/sys*) ;; *) mount -o remount,bind,ro \"$place\" 2> /dev/null ;; esac; \
    done; exec \"$@\"";

/// Enters a container as Kubernetes and `OpenShift` make it. Its process 1 has a random user without an entry in the
/// user database, no capabilities and a read-only file system.
fn restricted(mut run: Run) -> Run {
    let volume = run.path("volume");
    let words = [
        &["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", "/bin/sh", "-c", READ_ONLY][..],
        &[volume.to_str().unwrap()],
        &["setpriv", "--reuid", "1000660000", "--regid", "0", "--clear-groups", "--no-new-privs"],
        &["--inh-caps=-all", "--bounding-set=-all"],
    ];
    run.entrance = words.concat().into_iter().map(str::to_owned).collect();
    fs::create_dir(run.path("volume")).unwrap();
    fs::set_permissions(run.path("volume"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(run.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    run.environment.retain(|(name, _)| name != "HOME");
    for option in ["--state", "--artifacts"] {
        run.leave_out(option);
        run.add(option, run.path("volume").join(&option[2..]));
    }
    run
}

#[tokio::test]
async fn a_user_without_a_name_a_home_and_a_writable_system_gets_both_from_the_state() {
    let Some(()) = require::root("a PID namespace") else { return };
    let prompt = "run echo $(id -u) $HOME > artifacts/a";
    let spec = json!({ "workspace": "new", "agent": "demo", "permissions": "allow", "initial_prompt": prompt });
    let run = restricted(Run::of(spec, &[]));
    let said = run.end().await;
    assert_eq!(said.status, Some(0), "{said:?}");
    let (home, artifact) = (run.path("volume/state/home"), run.path("volume/artifacts/artifacts/a"));
    assert_eq!(fs::read_to_string(artifact).unwrap(), format!("1000660000 {}\n", home.display()));

    // A home directory that the engine named and the user cannot write to is a warning.
    let mut run = restricted(Run::of(json!({ "workspace": "new", "agent": "demo", "initial_prompt": "hello" }), &[]));
    run.set("HOME", "/");
    let said = run.end().await;
    assert!(said.err.contains("HOME is /, which this user cannot write to"), "{said:?}");
}

#[tokio::test]
async fn a_secret_that_kubernetes_mounts_for_the_group_of_a_user_is_a_credential() {
    let Some(()) = require::root("a PID namespace") else { return };
    let spec = json!({ "workspace": "new", "agent": "demo", "initial_prompt": "show your environment" });
    let mut run = restricted(Run::of(spec, &[]));
    fs::create_dir(run.path("keys")).unwrap();
    fs::set_permissions(run.path("keys"), fs::Permissions::from_mode(0o755)).unwrap();
    // Kubernetes shows a file of the directory through two links.
    fs::create_dir(run.path("keys/..data")).unwrap();
    let file = run.path("keys/..data/anthropic");
    fs::write(&file, "sk-value-of-the-secret\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o440)).unwrap();
    std::os::unix::fs::symlink("..data/anthropic", run.path("keys/anthropic")).unwrap();
    let config = "[secrets.MODEL_KEY]\ncredential = \"anthropic\"\n";
    fs::write(run.path("agentd.toml"), config).unwrap();
    run.set("CREDENTIALS_DIRECTORY", run.path("keys").to_str().unwrap());
    let said = run.end().await;
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.out.contains("MODEL_KEY=‹secret›") && !said.out.contains("CREDENTIALS_DIRECTORY"), "{said:?}");

    // Read as a file, it is refused too, and the message names the remedy.
    let config = format!("[secrets.MODEL_KEY]\nfile = {:?}\n", run.path("keys/anthropic"));
    fs::write(run.path("agentd.toml"), config).unwrap();
    run.leave_out("--artifacts");
    let said = run.end().await;
    assert!(said.status == Some(7) && said.err.contains("chmod 600"), "{said:?}");
}

#[tokio::test]
async fn a_system_without_a_writable_directory_is_reported_with_the_remedy() {
    let Some(()) = require::root("a PID namespace") else { return };
    let mut run = restricted(Run::of_prompt("say x"));
    run.leave_out("--state");
    run.leave_out("--artifacts");
    let said = run.end().await;
    assert_eq!(said.status, Some(3), "{said:?}");
    assert!(
        said.err.contains("cannot create a temporary directory in /tmp") && said.err.contains("--state"),
        "{said:?}"
    );
}

#[tokio::test]
async fn a_login_shell_of_a_user_without_an_entry_is_reported_with_the_remedy() {
    let Some(()) = require::root("a PID namespace") else { return };
    let spec = json!({
        "workspace": "new", "agent": "demo", "initial_prompt": "hello", "environment": { "source": "login-shell" },
    });
    let run = restricted(Run::of(spec, &[]));
    let said = run.end().await;
    assert_eq!(said.status, Some(7), "{said:?}");
    assert!(said.err.contains("set environment.home and environment.shell"), "{said:?}");
}
