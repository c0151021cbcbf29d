//! Captures that have less than the capture before: the daemon keeps the good capture, reports the missing variables,
//! and recovers without a user's help.

use std::fs;
use std::path::Path;

use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase};
use agentd_api::snapshot::{LoginSnapshotView, SnapshotList, SnapshotQuality, SnapshotState};
use serde_json::json;

use crate::harness::dead::Dead;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, require};

/// Launches a session once. Returns a variable of its agent, and the session's condition about its snapshot.
async fn launch(daemon: &Daemon, name: &str) -> (Option<String>, Condition) {
    let session = daemon.session(&daemon.scripted(&[])).await;
    let text = session.turn("env").await.text;
    let mut variables: serde_json::Value = serde_json::from_str(&text).unwrap();
    let view = session.view().await;
    session.stop().await;
    let mut conditions = view.status.conditions.into_iter();
    let condition = conditions.find(|condition| condition.kind == ConditionType::SnapshotFresh).expect("it has one");
    (variables[name].take().as_str().map(str::to_owned), condition)
}

async fn status(daemon: &Daemon) -> LoginSnapshotView {
    let mut list: SnapshotList = daemon.client.get("/v1/snapshots").await.expect(200);
    list.login_shells.remove(0)
}

fn profile(daemon: &Daemon, text: &str) {
    fs::write(daemon.home().join(".profile"), format!("{text}\n")).unwrap();
}

const FAILS: &str = "export EDITOR=less\ncase $- in *i*) echo 'the last words' >&2; exit 1;; esac";

#[tokio::test]
async fn a_start_up_file_that_fails_degrades_no_later_session_and_recovery_is_automatic() {
    let mut daemon = Daemon::prepare();
    profile(&daemon, "export EDITOR=good");
    daemon.run().await;
    assert_eq!(launch(&daemon, "EDITOR").await.0.as_deref(), Some("good"));
    profile(&daemon, FAILS);
    for restarted in [false, true] {
        if restarted {
            daemon.terminate().await;
            daemon.run().await;
        }
        let (editor, condition) = launch(&daemon, "EDITOR").await;
        assert_eq!(editor.as_deref(), Some("good"), "{condition:?}");
        assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "Degraded"));
        assert!(condition.message.contains("using the last good snapshot, of"), "{condition:?}");
        let view = status(&daemon).await;
        assert_eq!((view.state, view.quality), (SnapshotState::Degraded, Some(SnapshotQuality::Good)), "{view:#?}");
    }
    profile(&daemon, "export EDITOR=mended");
    let (editor, condition) = launch(&daemon, "EDITOR").await;
    assert_eq!((editor.as_deref(), condition.reason.as_str()), (Some("mended"), "LoginShell"));
}

#[tokio::test]
async fn without_a_good_one_what_there_is_is_given_with_what_is_wrong_with_it() {
    let mut daemon = Daemon::prepare();
    profile(&daemon, FAILS);
    daemon.run().await;
    let (editor, condition) = launch(&daemon, "EDITOR").await;
    assert_eq!((editor.as_deref(), condition.reason.as_str()), (Some("less"), "Degraded"), "{condition:?}");
    assert!(condition.message.contains("without a terminal"), "{condition:?}");
    profile(&daemon, "export EDITOR=mended");
    assert_eq!(launch(&daemon, "EDITOR").await.0.as_deref(), Some("mended"));
}

#[tokio::test]
async fn a_path_that_lost_entries_is_said_until_a_refresh_accepts_it() {
    let mut daemon = Daemon::prepare();
    profile(&daemon, "export PATH=/my/tools:$PATH");
    daemon.run().await;
    launch(&daemon, "PATH").await;
    profile(&daemon, "true");
    let (path, condition) = launch(&daemon, "PATH").await;
    assert!(!path.unwrap().contains("/my/tools"));
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::True, "PathLost"), "{condition:?}");
    assert!(condition.message.contains("/my/tools"), "{condition:?}");
    assert_eq!(status(&daemon).await.path_lost, ["/my/tools"]);
    let _: SnapshotList = daemon.client.post("/v1/snapshots/refresh", &json!({})).await.expect(200);
    assert_eq!(launch(&daemon, "PATH").await.1.reason, "LoginShell");
}

#[tokio::test]
async fn a_reload_keeps_what_is_known_of_the_login_shell() {
    let daemon = Daemon::start().await;
    launch(&daemon, "EDITOR").await;
    let before = status(&daemon).await;
    daemon.configure(|config| {
        config.replace("[environment]\n", "[environment]\nsnapshot_ttl = \"1h\"\nsnapshot_ttl_incomplete = \"5m\"\n")
    });
    let _: serde_json::Value = daemon.client.post("/v1/reload", &json!({})).await.expect(200);
    launch(&daemon, "EDITOR").await;
    let after = status(&daemon).await;
    assert_eq!((after.captures, after.hits), (before.captures, before.hits + 1));
    let life = after.expires.unwrap().duration_since(after.captured.unwrap()).as_secs();
    assert_eq!(life, 3600, "the new time holds for it");
}

/// Returns the number of the daemon's threads that look at watched files.
fn looking(daemon: &Daemon) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "watched-files").count()
}

#[tokio::test]
async fn watched_files_on_a_file_server_that_is_silent_hold_no_launch_and_one_thread_at_most() {
    if require::fuse().is_none() {
        return;
    }
    let mut daemon = Daemon::prepare();
    let net = daemon.root().join("net");
    let file = quoted(net.join("env.sh"));
    profile(&daemon, &format!("export EDITOR=good\n[ -f {file} ] && . {file}\ntrue"));
    daemon.run().await;
    launch(&daemon, "EDITOR").await;
    let before = status(&daemon).await;
    assert!(before.files.contains(&net.join("env.sh")), "{before:#?}");
    let mut dead = Dead::mount(net.clone(), "fuse", "dead", &[]);
    for _ in 0..4 {
        let (editor, condition) = launch(&daemon, "EDITOR").await;
        assert_eq!((editor.as_deref(), condition.reason.as_str()), (Some("good"), "LoginShell"), "{condition:?}");
    }
    let view = status(&daemon).await;
    assert_eq!(view.unanswered, [net.join("env.sh")], "{view:#?}");
    assert_eq!(view.captures, before.captures);
    assert_eq!(looking(&daemon), 1, "it waits for the server, and no other does");
    dead.release();
    fs::remove_dir(&net).unwrap();
    crate::harness::until("the look has ended", || looking(&daemon) == 0).await;
    assert!(!Path::new(&net).exists());
    launch(&daemon, "EDITOR").await;
    assert_eq!(status(&daemon).await.unanswered, [""; 0].map(std::path::PathBuf::from));
}

#[tokio::test]
async fn a_first_capture_that_fails_tells_no_value_that_its_files_printed() {
    // The name does not look like a secret's name, and no file contains the value.
    let prints = "export FOO_PW=\"pw-$((6 * 1013))\nof-$((7 * 1013))\"\nset -x\n: \"$FOO_PW\"\nset +x\n\
                  echo \"FOO_PW=${FOO_PW%%?of*}\" >&2\necho 'no luck' >&2\n";
    for (ends, phase) in [("exit 1", Phase::Failed), ("case $- in *i*) exit 1;; esac", Phase::Idle)] {
        let mut daemon = Daemon::prepare();
        profile(&daemon, &format!("{prints}{ends}"));
        daemon.run().await;
        let session = daemon.create(&daemon.scripted(&[])).await;
        let view = session.wait_for_phase(phase).await;
        let told = serde_json::to_string(&(view, status(&daemon).await)).unwrap();
        assert!(told.contains("no luck"), "{told}");
        let log = fs::read_to_string(daemon.root().join("agentd.log")).unwrap();
        for text in [&told, &log] {
            assert!(!text.contains("pw-6078") && !text.contains("of-7091"), "{text}");
        }
    }
}
