//! Inconsistent state at the start of a daemon: keepers without a session, sessions without a keeper, and agents
//! without either.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Command;

use agentd_api::Code;
use agentd_api::event::Body;
use agentd_api::session::{Phase, SessionView, WholeList};

use crate::harness::{Daemon, process, require, until, within};

#[tokio::test]
async fn a_keeper_without_a_session_is_ended_with_its_agent() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let status = session.view().await.status;
    daemon.kill9();
    fs::rename(session.directory(), daemon.root().join("gone")).unwrap();
    daemon.run().await;
    process::gone(&[status.keeper_pid.unwrap(), status.agent_pid.unwrap()]).await;
    let runtime = daemon.root().join("run").join(session.id.as_str());
    until("its runtime directory is removed", || !runtime.exists()).await;
    assert!(daemon.last_words().contains("a keeper that has no session"), "{}", daemon.last_words());
}

#[tokio::test]
async fn a_session_whose_keeper_was_killed_is_failed_and_nothing_of_its_agent_is_left() {
    let mut daemon = Daemon::start().await;
    // The launcher's child has no parent-death signal, so it stays alive if its keeper is lost.
    let session = daemon.session(&daemon.scripted(&["--launcher"])).await;
    session.turn("setsid-child").await;
    let pids: Vec<u32> = process::pid_file(&daemon.pid_file()).iter().map(|(_, pid)| *pid).collect();
    let keeper = session.view().await.status.keeper_pid.unwrap();
    daemon.kill9();
    process::kill9(keeper);
    daemon.run().await;
    let view = session.wait_for_phase(Phase::Failed).await;
    assert!(view.status.message.is_some_and(|message| message.contains("keeper")));
    process::gone(&pids).await;
    session.journal();
    session.resume().await;
    assert!(session.turn("say again").await.text.contains("again"));
}

#[tokio::test]
async fn a_keeper_that_is_killed_while_the_daemon_watches_leaves_nothing_either() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&["--launcher"])).await;
    session.turn("setsid-child").await;
    let pids: Vec<u32> = process::pid_file(&daemon.pid_file()).iter().map(|(_, pid)| *pid).collect();
    let accepted = session.prompt("hang").await;
    session.wait_for_phase(Phase::Busy).await;
    process::kill9(session.view().await.status.keeper_pid.unwrap());
    assert!(session.end_of(&accepted).await.ended.synthetic.is_some());
    session.wait_for_phase(Phase::Failed).await;
    process::gone(&pids).await;
}

#[tokio::test]
async fn a_keeper_whose_socket_is_gone_makes_it_anew_and_is_taken_over_and_never_joined_by_a_second_one() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say something to come back to").await;
    let status = session.view().await.status;
    daemon.kill9();
    fs::remove_dir_all(daemon.root().join("run").join(session.id.as_str())).unwrap();
    daemon.run().await;
    assert!(session.turn("say still here").await.text.contains("still here"));
    let now = session.view().await.status;
    assert_eq!((now.agent_pid, now.keeper_pid), (status.agent_pid, status.keeper_pid));
    let keepers = session.journal().iter().filter(|event| matches!(event.body, Body::KeeperStarted(_))).count();
    assert_eq!(keepers, 1);
}

#[tokio::test]
async fn a_journal_that_cannot_be_read_sets_its_session_aside_and_holds_up_nothing() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let other = daemon.session(&daemon.scripted(&[])).await;
    session.stop().await;
    daemon.terminate().await;
    let sessions = session.directory();
    let journal = fs::read_to_string(sessions.join("journal.jsonl")).unwrap();
    // The daemon repairs a torn end of a journal. This journal is damaged in the middle, which the daemon cannot
    // repair.
    fs::write(sessions.join("journal.jsonl"), journal.replace("\"kind\":\"condition\"", "\"kind\":condition")).unwrap();
    let document = fs::read_to_string(sessions.join("session.json")).unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&document).unwrap();
    document.as_object_mut().unwrap().remove("fold");
    fs::write(sessions.join("session.json"), document.to_string()).unwrap();
    daemon.run().await;
    let view = session.wait_for_phase(Phase::Failed).await;
    assert!(view.status.message.is_some_and(|message| message.contains("journal")));
    let problem = session.post("/resume", &serde_json::json!({})).await.problem();
    assert_eq!(problem.code, agentd_api::Code::SessionUnreadable, "{problem:?}");
    assert!(other.turn("say well").await.text.contains("well"));
    daemon.terminate().await;
}

#[tokio::test]
async fn a_session_whose_document_cannot_be_read_keeps_its_agent_until_it_can() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let status = session.view().await.status;
    daemon.kill9();
    let document = session.directory().join("session.json");
    let content = fs::read(&document).unwrap();
    fs::write(&document, "{").unwrap();
    daemon.run().await;
    // The answer to a list waits until the daemon has read all sessions and knows all strays.
    let list: serde_json::Value = daemon.client.get("/v1/sessions?fields=*").await.json();
    assert_eq!(list["unreadable"][0]["id"], session.id.as_str(), "{list}");
    daemon.kill9();
    fs::write(&document, content).unwrap();
    daemon.run().await;
    let now = session.wait_for_phase(Phase::Idle).await.status;
    assert_eq!((now.agent_pid, now.keeper_pid), (status.agent_pid, status.keeper_pid));
    assert!(session.turn("say still here").await.text.contains("still here"));
}

#[tokio::test]
async fn sessions_at_rest_hold_no_descriptors() {
    if require::root("looking at the daemon's descriptors").is_none() {
        return;
    }
    let mut daemon = Daemon::start().await;
    let open = |daemon: &Daemon| fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    daemon.client.get("/v1/plugins").await; // answered when they are loaded: each holds the file of its code
    let without = open(&daemon);
    for _ in 0..6 {
        daemon.session(&daemon.scripted(&[])).await.stop().await;
    }
    daemon.terminate().await;
    daemon.run().await;
    daemon.client.get("/v1/sessions?fields=*").await;
    daemon.client.get("/v1/plugins").await;
    // A connection or a pipe may use a descriptor for a moment. A descriptor for each session would stay open.
    until("six sessions hold fewer than six descriptors", || open(&daemon) < without + 6).await;
}

#[tokio::test]
async fn somebody_else_on_the_keepers_socket_is_not_taken_for_the_keeper() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let status = session.view().await.status;
    daemon.kill9();
    let socket = daemon.root().join("run").join(session.id.as_str()).join("keeper.sock");
    fs::remove_file(&socket).unwrap();
    // The impostor accepts connections and never answers. The daemon must not wait for it without a limit or trust it.
    let _impostor = UnixListener::bind(&socket).unwrap();
    process::kill9(status.keeper_pid.unwrap());
    daemon.run().await;
    let view = session.wait_for_phase(Phase::Failed).await;
    assert_eq!(view.status.agent_pid, None);
}

#[tokio::test]
async fn what_needs_all_sessions_waits_until_they_are_read_and_one_that_is_active_does_not() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let mut named = daemon.scripted(&[]);
    named.name = Some("kept".parse().unwrap());
    daemon.session(&named).await.stop().await;
    daemon.kill9();
    // The daemon's read of a document that is a pipe blocks until a process writes to the pipe.
    let unread = daemon.state().join("sessions/unread");
    fs::create_dir(&unread).unwrap();
    let document = unread.join("session.json");
    assert!(Command::new("mkfifo").arg(&document).status().unwrap().success());
    daemon.run().await;
    assert!(session.turn("say here").await.text.contains("here"));
    let list = daemon.client.get("/v1/sessions?fields=*");
    let again = daemon.client.post("/v1/sessions", &named);
    let by_name = daemon.client.get("/v1/sessions/kept");
    let mut waiting = std::pin::pin!(async { tokio::join!(list, again, by_name) });
    tokio::select! {
        biased;
        _ = waiting.as_mut() => panic!("not every session was read, and still there were answers"),
        turn = session.turn("say still here") => assert!(turn.text.contains("still here")),
    }
    let write = tokio::task::spawn_blocking(move || fs::write(document, "{"));
    within("the document is read", write).await.unwrap().unwrap();
    let (list, again, by_name) = within("all is answered", waiting).await;
    let list: WholeList = list.expect(200);
    assert_eq!((list.sessions.len(), list.unreadable.len()), (2, 1), "{list:#?}");
    assert_eq!(list.unreadable[0].id, "unread");
    assert_eq!(again.problem().code, Code::NameTaken);
    assert_eq!(by_name.expect::<SessionView>(200).status.phase, Phase::Stopped);
}

#[tokio::test]
async fn a_session_at_rest_is_woken_by_whoever_asks_it_something() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say before").await;
    let stopped = session.stop().await;
    daemon.terminate().await;
    daemon.run().await;
    assert_eq!(session.view().await.status, stopped.status);
    let problem = session.post("/cancel", &serde_json::json!({})).await.problem();
    assert_eq!(problem.code, Code::WrongPhase, "{problem:?}");
    session.resume().await;
    assert!(session.turn("say after").await.text.contains("after"));
    session.stop().await;
    daemon.terminate().await;
    daemon.run().await;
    assert_eq!(daemon.client.call("DELETE", &session.path(""), "").await.status, 204);
    assert!(!session.directory().exists());
}
