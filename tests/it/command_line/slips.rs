//! Mistyped commands, and commands in unusual directories.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;

use agentd_api::session::Phase;

use crate::harness::ctl::{agentctl, ctl};
use crate::harness::{Daemon, paths, scripted_agent};

#[tokio::test]
async fn a_new_session_is_named_before_it_is_waited_for_however_long() {
    let daemon = Daemon::start().await;
    let program = scripted_agent().display().to_string();
    // This time is longer than the daemon's limit for one request.
    let arguments = ["new", "--ready", "700", "--", &program, "--slow-init", "600000"];
    let mut child = agentctl(&daemon, &arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let id = tokio::task::spawn_blocking(move || lines.next()).await.unwrap().expect("the id").unwrap();
    let view: agentd_api::session::SessionView = daemon.client.get(&format!("/v1/sessions/{id}")).await.expect(200);
    assert!(!view.status.phase.is_settled(), "{view:#?}");
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    child.kill().unwrap();
    child.wait().unwrap();

    let said = ctl(&daemon, &["new", "--ready", "700", "--", &program]).await;
    // On a busy machine the login shell takes long enough to be named.
    let others: Vec<&str> = said.err.lines().filter(|line| !line.starts_with("waiting: ")).collect();
    assert!(said.status == Some(0) && others.is_empty(), "{said:#?}");
    let view: agentd_api::session::SessionView =
        daemon.client.get(&format!("/v1/sessions/{}", said.out.trim())).await.expect(200);
    assert_eq!(view.status.phase, Phase::Idle);
}

#[tokio::test]
async fn a_directory_that_cannot_be_spoken_of_or_was_removed_is_refused_by_its_name() {
    let daemon = Daemon::start().await;
    let odd = daemon.root().join(OsStr::from_bytes(b"od\xffd"));
    std::fs::create_dir(&odd).unwrap();
    for arguments in [&["run", "hello"][..], &["new"], &["env", "scripts"], &["env", "allow", "."]] {
        let output = agentctl(&daemon, arguments).current_dir(&odd).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(r"od\xffd") && said.contains("not UTF-8"), "{arguments:?}: {said}");
    }
    let gone = daemon.root().join("gone");
    std::fs::create_dir(&gone).unwrap();
    let shell = |line: &str| {
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", line, "sh", paths::agentctl()]);
        command.env_clear().env("AGENTD_SOCKET", daemon.client.socket());
        command.current_dir(daemon.root()).output().unwrap()
    };
    let output = shell("cd gone && rmdir ../gone && exec \"$1\" run hello");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("the current directory was removed") && said.contains("--dir"), "{said}");
}

#[tokio::test]
async fn a_session_by_an_impossible_name_is_none_and_a_forgotten_flag_is_named_as_a_shell_takes_it() {
    let daemon = Daemon::start().await;
    for name in ["a b", "", "..", "a/b", "\u{e9}\u{1f600}"] {
        let said = ctl(&daemon, &["show", name]).await;
        assert_eq!((said.status, said.out.as_str()), (Some(1), ""), "{name:?}: {said:#?}");
        assert!(said.err.contains(&format!("{name:?}")) && said.err.contains("hint: "), "{name:?}: {said:#?}");
    }
    std::fs::create_dir(daemon.work().join("a b")).unwrap();
    let said = ctl(&daemon, &["run", "./a b"]).await;
    assert_eq!(said.status, Some(2), "{said:#?}");
    assert!(said.err.contains("give --dir './a b', or --prompt './a b' to send it"), "{said:#?}");
}
