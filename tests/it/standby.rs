//! Keepers in standby: processes that wait for the next launch.

use std::fs;

use agentd_api::session::Phase;
use nix::sys::signal::{Signal, kill};

use crate::harness::process;
use crate::harness::{Daemon, until};

/// Returns the processes in standby that this daemon has started.
fn standbys(daemon: &Daemon) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_standby = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(b"standby") && process::parent(*pid) == Some(daemon.pid())
    };
    pids.filter(is_standby).collect()
}

async fn spare(daemon: &Daemon) -> u32 {
    until("a keeper is in standby", || standbys(daemon).len() == 1).await;
    standbys(daemon)[0]
}

#[tokio::test]
async fn a_session_gets_the_keeper_in_standby_which_is_replaced_and_ends_with_the_daemon() {
    let mut daemon = Daemon::start().await;
    let first = spare(&daemon).await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let view = session.view().await;
    assert_eq!(view.status.keeper_pid, Some(first));
    let line = fs::read(format!("/proc/{first}/cmdline")).unwrap();
    let arguments: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
    assert_eq!(arguments[1], b"hold", "{}", String::from_utf8_lossy(&line));
    assert!(arguments.contains(&session.directory().as_os_str().as_encoded_bytes()));
    let second = spare(&daemon).await;
    assert_ne!(first, second);
    assert_eq!(session.turn("say hello").await.text, "hello");
    // The keeper of the session lives on, and the keeper in standby ends.
    daemon.kill9();
    process::gone(&[second]).await;
    assert!(process::is_alive(first));
    daemon.run().await;
    assert_eq!(session.turn("say again").await.text, "again");
    assert_eq!(session.view().await.status.keeper_pid, Some(first));
}

#[tokio::test]
async fn a_keeper_in_standby_that_was_killed_or_stopped_delays_a_launch_and_does_not_prevent_it() {
    let daemon = Daemon::impatient().await;
    let first = spare(&daemon).await;
    process::kill9(first);
    process::gone(&[first]).await;
    daemon.session(&daemon.scripted(&[])).await;
    let second = spare(&daemon).await;
    kill(process::pid(second), Signal::SIGSTOP).unwrap();
    let session = daemon.session(&daemon.scripted(&[])).await;
    assert_ne!(session.view().await.status.keeper_pid, Some(second));
    process::gone(&[second]).await;
    assert!(daemon.words().contains("a keeper in standby does not answer and is killed"));
}

#[tokio::test]
async fn a_launch_that_fails_leaves_no_keeper_and_no_spare_is_kept_if_it_is_not_wanted() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|text| text.replace("[launch]\n", "[launch]\nspare_keeper = false\n"));
    daemon.run().await;
    let mut spec = daemon.scripted(&[]);
    spec.env_setup = Some("exit 7\n".to_owned());
    let failed = daemon.create(&spec).await;
    failed.wait_for_phase(Phase::Failed).await;
    until("no keeper is left", || standbys(&daemon).is_empty()).await;
    daemon.session(&daemon.scripted(&[])).await;
    assert!(standbys(&daemon).is_empty());
    // A reload applies the setting at once.
    daemon.configure(|text| text.replace("spare_keeper = false", "spare_keeper = true"));
    let _: serde_json::Value = daemon.client.call("POST", "/v1/reload", "").await.expect(200);
    spare(&daemon).await;
}
