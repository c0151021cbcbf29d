//! Losses under a running daemon: its socket, its whole runtime directory, its free descriptors, and the room for its
//! log.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;

use agentd_api::Code;
use agentd_api::session::Phase;

use crate::harness::session::said;
use crate::harness::{Daemon, process, require, until, within};

/// Waits until the daemon answers requests at the path again.
async fn answers(daemon: &Daemon) {
    within("the daemon is reached again", async {
        while daemon.client.attempt("GET", "/healthz", "", None).await.is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_daemon_and_keepers_whose_runtime_directory_is_removed_make_it_anew_and_end_nothing() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let status = session.view().await.status;
    let accepted = session.prompt("count 100 10").await;
    let runtime = daemon.root().join("run");
    let keeper = runtime.join(session.id.as_str()).join("keeper.sock");
    fs::remove_dir_all(&runtime).unwrap();
    answers(&daemon).await;
    until("the keeper listens again", || keeper.exists()).await;
    let turn = session.end_of(&accepted).await;
    let counted: Vec<u32> = turn.events.iter().filter_map(said).filter_map(|text| text.trim().parse().ok()).collect();
    assert_eq!(counted, (1..=100).collect::<Vec<_>>());
    assert!(daemon.last_words().contains("created it again"), "{}", daemon.last_words());

    // The next daemon ends nothing either, no matter whether it or the keeper creates the directory first.
    daemon.kill9();
    fs::remove_dir_all(&runtime).unwrap();
    daemon.run().await;
    assert!(session.turn("say still here").await.text.contains("still here"));
    let now = session.wait_for_phase(Phase::Idle).await.status;
    assert_eq!((now.agent_pid, now.keeper_pid, now.launches), (status.agent_pid, status.keeper_pid, 1));
    daemon.terminate().await;
    assert!(!daemon.client.socket().exists(), "the socket that was made anew is taken away at the end");
}

#[tokio::test]
async fn a_socket_that_another_daemon_that_lives_has_bound_is_left_to_it() {
    let mut daemon = Daemon::start().await;
    let socket = daemon.client.socket().to_owned();
    fs::remove_file(&socket).unwrap();
    let other = within("the path is taken first", async {
        loop {
            if let Ok(other) = UnixListener::bind(&socket) {
                return other;
            }
            fs::remove_file(&socket).ok();
            tokio::task::yield_now().await; // so that the limit of time counts
        }
    })
    .await;
    until("the daemon says so", || daemon.last_words().contains("another agentd answers")).await;
    let (client, _) = other.accept().unwrap();
    drop(client);
    let _reached = UnixStream::connect(&socket).expect("the other is reached");
    nix::sys::signal::kill(process::pid(daemon.pid()), nix::sys::signal::Signal::SIGTERM).unwrap();
    process::gone(&[daemon.pid()]).await;
    assert!(socket.exists(), "the daemon that ends takes only its own socket away");
    let _reached = UnixStream::connect(&socket).expect("the other is reached");
    daemon.kill9();
}

#[tokio::test]
async fn a_daemon_without_descriptors_says_so_and_is_alive_and_goes_on_when_there_are_some_again() {
    const LIMIT: usize = 400;
    if require::root("looking at the daemon's descriptors").is_none() {
        return;
    }
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[limits]\nconnections_per_caller = 512\n"));
    let limit = format!("ulimit -n {LIMIT}; exec \"$@\"");
    daemon.enter(["/bin/sh", "-c", &limit, "sh"].map(str::to_owned).to_vec());
    daemon.run().await;
    // The answer comes only after all plugins are loaded.
    daemon.client.get("/v1/plugins").await;
    let spec = serde_json::to_vec(&daemon.scripted(&[])).unwrap();
    let open = || fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    let refused = within("the refusal", async {
        loop {
            // The daemon closes silent connections after a while, and its other work opens and closes descriptors.
            let mut held = Vec::new();
            while open() < LIMIT {
                held.push(UnixStream::connect(daemon.client.socket()).unwrap());
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            let health = daemon.client.attempt("GET", "/healthz", "", None).await;
            assert!(health.is_none_or(|health| health.status == 200));
            let answer = daemon.client.attempt("POST", "/v1/sessions", spec.clone(), None).await;
            drop(held);
            if let Some(answer) = answer.filter(|answer| answer.status != 202) {
                return answer.problem();
            }
        }
    })
    .await;
    assert_eq!((refused.code, refused.status), (Code::OutOfResources, 503), "{refused:?}");
    assert!(refused.detail.contains("no descriptor left") && refused.hint.is_some(), "{refused:?}");
    until("the daemon has closed the connections", || open() < LIMIT / 2).await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    assert!(session.turn("say well").await.text.contains("well"));
}

#[tokio::test]
async fn the_log_of_a_daemon_in_the_background_is_put_aside_when_it_is_full() {
    let daemon = Daemon::prepare();
    let (log, before) = (daemon.state().join("agentd.log"), daemon.state().join("agentd.log.1"));
    fs::write(&log, vec![b'x'; 9 << 20]).unwrap();
    let mut child = daemon.command().arg("--background").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    answers(&daemon).await;
    until("the daemon says in its log that it is ready", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("agentd is ready"))
    })
    .await;
    assert!(fs::metadata(&log).unwrap().len() < 8 << 20);
    assert_eq!(fs::metadata(&before).unwrap().len(), 9 << 20);
    child.kill().unwrap();
    child.wait().unwrap();
}
