//! What a daemon finds at its start that does not fit together: keepers without a session, sessions without a keeper, agents without either.

use std::fs;
use std::os::unix::net::UnixListener;

use agentd_api::event::Body;
use agentd_api::session::Phase;

use crate::harness::{Daemon, process, until};

#[tokio::test]
async fn a_keeper_without_a_session_is_ended_with_its_agent() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let status = session.view().await.status;
    daemon.kill9();
    fs::rename(daemon.state().join("sessions").join(session.id.as_str()), daemon.root().join("gone")).unwrap();
    daemon.run().await;
    process::gone(&[status.keeper_pid.unwrap(), status.agent_pid.unwrap()]).await;
    let runtime = daemon.root().join("run").join(session.id.as_str());
    until("its runtime directory is removed", || !runtime.exists()).await;
    assert!(daemon.last_words().contains("a keeper without a session"), "{}", daemon.last_words());
}

#[tokio::test]
async fn a_session_whose_keeper_was_killed_is_failed_and_nothing_of_its_agent_is_left() {
    let mut daemon = Daemon::start().await;
    // The launcher's child has no parent-death signal: it is the agent that a lost keeper leaves behind.
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
async fn a_keeper_whose_socket_is_gone_is_ended_and_never_joined_by_a_second_one() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say something to come back to").await;
    let status = session.view().await.status;
    daemon.kill9();
    fs::remove_file(daemon.root().join("run").join(session.id.as_str()).join("keeper.sock")).unwrap();
    daemon.run().await;
    let view = session.wait_for("the session has ended", |view| !view.status.phase.is_active()).await;
    assert!(matches!(view.status.phase, Phase::Stopped | Phase::Failed), "{view:#?}");
    process::gone(&[status.keeper_pid.unwrap(), status.agent_pid.unwrap()]).await;
    session.resume().await;
    let keepers = session.journal().iter().filter(|event| matches!(event.body, Body::KeeperStarted(_))).count();
    assert_eq!(keepers, 2);
}

#[tokio::test]
async fn somebody_else_on_the_keepers_socket_is_not_taken_for_the_keeper() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let status = session.view().await.status;
    daemon.kill9();
    let socket = daemon.root().join("run").join(session.id.as_str()).join("keeper.sock");
    fs::remove_file(&socket).unwrap();
    // It accepts and says nothing: the daemon must neither wait for ever nor believe it.
    let _impostor = UnixListener::bind(&socket).unwrap();
    process::kill9(status.keeper_pid.unwrap());
    daemon.run().await;
    let view = session.wait_for_phase(Phase::Failed).await;
    assert_eq!(view.status.agent_pid, None);
}
