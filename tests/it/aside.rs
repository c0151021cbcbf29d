//! Sessions that the daemon sets aside: lists show their reason, and their agents can be ended, with and without
//! removal of the session.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;

use agentd_api::Code;
use agentd_api::event::Body;
use agentd_api::session::{Phase, WholeList};
use nix::sys::signal::{Signal, kill};

use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session, process};

async fn list(daemon: &Daemon) -> WholeList {
    daemon.client.get("/v1/sessions?fields=*").await.expect(200)
}

/// Returns a session with its processes, keeper first, whose daemon was killed. The time limit of a keeper's answer is
/// one second.
async fn left_behind() -> (Daemon, Session, Vec<u32>) {
    let mut daemon = Daemon::impatient().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let tree = daemon.tree_of(&session).await;
    daemon.kill9();
    (daemon, session, tree)
}

#[tokio::test]
async fn an_unreadable_session_is_listed_and_stopped_and_is_stopped_still_when_it_can_be_read_again() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config.replace("restart = \"never\"", "restart = \"on-failure\""));
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&["--launcher"])).await;
    let tree = daemon.tree_of(&session).await;
    daemon.kill9();
    let document = session.directory().join("session.json");
    let content = fs::read(&document).unwrap();
    fs::write(&document, "{").unwrap();
    daemon.run().await;
    let unreadable = list(&daemon).await.unreadable;
    assert_eq!(unreadable[0].id, session.id.as_str());
    assert!(unreadable[0].reason.contains("session.json"), "{unreadable:?}");
    let problem = daemon.client.get(&session.path("")).await.problem();
    assert_eq!(problem.code, Code::SessionUnreadable, "{problem:?}");
    assert!(problem.detail.contains("session.json") && problem.hint.is_some_and(|hint| hint.contains("rm --force")));
    assert!(process::is_alive(tree[0]), "nothing is ended for it");

    let stopped = ctl(&daemon, &["stop", session.id.as_str()]).await;
    assert!(stopped.status == Some(0), "{stopped:?}");
    process::gone(&tree).await;
    assert_eq!(list(&daemon).await.unreadable, unreadable, "it is kept");
    daemon.terminate().await;
    fs::write(&document, content).unwrap();
    daemon.run().await;
    session.wait_for_phase(Phase::Stopped).await;
    assert!(session.journal().iter().any(|event| matches!(event.body, Body::StopRequested(_))));
    session.resume().await;
}

#[tokio::test]
async fn a_session_that_is_set_aside_is_removed_by_force_with_its_keeper_and_agent_however_it_cannot_be_read() {
    let newer = r#"{"version":99,"id":"x"}"#;
    for (what, content) in [("corrupt", Some("{")), ("newer", Some(newer)), ("gone", None)] {
        for is_hung in [false, true] {
            let (mut daemon, session, tree) = left_behind().await;
            let document = session.directory().join("session.json");
            match content {
                Some(content) => fs::write(&document, content).unwrap(),
                None => fs::remove_file(&document).unwrap(),
            }
            if is_hung {
                kill(process::pid(tree[0]), Signal::SIGSTOP).unwrap();
            }
            daemon.run().await;
            assert_eq!(list(&daemon).await.unreadable.len(), 1, "{what}");
            let refused = daemon.client.call("DELETE", &session.path(""), "").await.problem();
            assert_eq!(refused.code, Code::SessionUnreadable, "{what}: {refused:?}");
            assert!(process::is_alive(tree[0]) && document.parent().unwrap().exists(), "{what}");
            let removed = ctl(&daemon, &["rm", "--force", session.id.as_str()]).await;
            assert!(removed.status == Some(0), "{what}: {removed:?}");
            process::gone(&tree).await;
            assert!(!session.directory().exists(), "{what}");
            let left = list(&daemon).await;
            assert!(left.unreadable.is_empty() && left.sessions.is_empty(), "{what}: {left:?}");
        }
    }
}

#[tokio::test]
async fn a_session_whose_journal_is_wrong_is_stopped_and_removed_with_its_agent() {
    let mut daemon = Daemon::start().await;
    for removed in [false, true] {
        let session = daemon.session(&daemon.scripted(&[])).await;
        let tree = daemon.tree_of(&session).await;
        daemon.kill9();
        let journal = session.directory().join("journal.jsonl");
        let content = fs::read_to_string(&journal).unwrap();
        fs::write(&journal, content.replace("\"kind\":\"condition\"", "\"kind\":condition")).unwrap();
        let document = session.directory().join("session.json");
        let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&document).unwrap()).unwrap();
        value.as_object_mut().unwrap().remove("fold");
        fs::write(document, value.to_string()).unwrap();
        daemon.run().await;
        let view = session.wait_for_phase(Phase::Failed).await;
        assert!(view.status.message.is_some_and(|message| message.contains("journal")));
        let refused = daemon.client.call("DELETE", &session.path(""), "").await.problem();
        assert_eq!(refused.code, Code::WrongPhase, "its agent runs: {refused:?}");
        assert!(process::is_alive(tree[0]));
        if !removed {
            assert_eq!(daemon.client.call("POST", &session.path("/stop?wait=60"), "").await.status, 202);
            process::gone(&tree).await;
        }
        let answer = daemon.client.call("DELETE", &session.path("?force=true"), "").await;
        assert_eq!(answer.status, 204, "{answer:?}");
        process::gone(&tree).await;
        assert!(!session.directory().exists());
    }
}

#[tokio::test]
async fn the_stop_of_a_session_that_is_set_aside_leaves_its_files_as_they_are() {
    let (mut daemon, session, tree) = left_behind().await;
    kill(process::pid(tree[0]), Signal::SIGSTOP).unwrap();
    let directory = session.directory();
    fs::write(directory.join("session.json"), "{").unwrap();
    // A writer that repairs the journal would cut these bytes off and move them to another file.
    let mut journal = fs::File::options().append(true).open(directory.join("journal.jsonl")).unwrap();
    journal.write_all(b"{\"seq\":").unwrap();
    let files = || {
        let entries = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (path.clone(), fs::read(path).unwrap())).collect::<BTreeMap<_, _>>()
    };
    let before = files();
    daemon.run().await;
    let stopped = ctl(&daemon, &["stop", session.id.as_str()]).await;
    assert!(stopped.status == Some(0), "{stopped:?}");
    process::gone(&tree).await;
    assert_eq!(files(), before);
}
