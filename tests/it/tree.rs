//! Complete cleanup: when an agent ends for any reason, its whole process tree ends.

use std::collections::BTreeSet;

use agentd_api::event::Body;
use agentd_api::session::{PermissionPolicy, Phase};

use crate::harness::{Daemon, Session, process, until};

/// Starts every kind of descendant, and returns the PIDs of all descendants, the agent and the keeper.
async fn grow(daemon: &Daemon, flags: &[&str]) -> (Session, Vec<u32>) {
    let mut spec = daemon.scripted(flags);
    spec.permissions = PermissionPolicy::Allow;
    let session = daemon.session(&spec).await;
    assert_eq!(session.turn("setsid-child\ndaemonize").await.text, "startedstarted");
    session.prompt("tool echo running; sleep 1000 & exec sleep 1000").await;
    let roles = || process::pid_file(&daemon.pid_file()).into_iter().map(|(role, _)| role).collect::<BTreeSet<_>>();
    until("the tool runs", || roles().contains("tool")).await;
    let mut pids: Vec<u32> = process::pid_file(&daemon.pid_file()).into_iter().map(|(_, pid)| pid).collect();
    assert_eq!(pids.len(), 4, "agent, two strays, tool: {pids:?}");
    pids.push(session.view().await.status.keeper_pid.expect("a keeper holds the agent"));
    for &pid in &pids {
        assert!(process::is_alive(pid), "{pid} does not run");
    }
    (session, pids)
}

#[tokio::test]
async fn a_stop_leaves_no_descendant_tools_in_their_own_process_sessions_included() {
    let daemon = Daemon::start().await;
    let (session, pids) = grow(&daemon, &[]).await;
    session.stop().await;
    process::gone(&pids).await;
    process::assert_only(&[daemon.pid()], daemon.root(), "something else is left");
    let exited = session.journal().into_iter().find_map(|event| match event.body {
        Body::AgentExited(exited) => Some((exited.requested, exited.killed)),
        _ => None,
    });
    let (requested, killed) = exited.expect("the agent's end is in the journal");
    assert!(requested && killed >= 3, "requested {requested}, killed {killed}");
}

#[tokio::test]
async fn an_agent_that_ignores_the_end_of_its_stdin_and_sigterm_is_stopped_all_the_same() {
    let daemon = Daemon::start().await;
    let (session, pids) = grow(&daemon, &["--ignore-eof", "--ignore-sigterm"]).await;
    session.stop().await;
    process::gone(&pids).await;
    process::assert_only(&[daemon.pid()], daemon.root(), "something else is left");
}

#[tokio::test]
async fn an_agent_that_dies_takes_its_tree_with_it() {
    let daemon = Daemon::start().await;
    let (session, pids) = grow(&daemon, &[]).await;
    process::kill9(session.view().await.status.agent_pid.unwrap());
    session.wait_for_phase(Phase::Failed).await;
    process::gone(&pids).await;
    process::assert_only(&[daemon.pid()], daemon.root(), "something else is left");
}

#[tokio::test]
async fn a_stop_after_kill_nine_of_the_daemon_leaves_no_descendant_either() {
    let mut daemon = Daemon::start().await;
    let (session, pids) = grow(&daemon, &[]).await;
    daemon.kill9();
    daemon.run().await;
    session.stop().await;
    process::gone(&pids).await;
    process::assert_only(&[daemon.pid()], daemon.root(), "something else is left");
}
