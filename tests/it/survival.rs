//! Survival: a session outlives the daemon, a conversation outlives the agent, and nothing outlives a stop.

use agentd_api::event::{Body, OpenedBy, SyntheticCause};
use agentd_api::session::{PermissionPolicy, Phase, SessionView};
use agentd_api::{Event, SessionId};

use crate::harness::session::{said, turn_of};
use crate::harness::{Daemon, journal, process, until};

/// Returns the numbers that the agent's command `count` wrote to the journal.
fn counted(events: &[Event]) -> Vec<u32> {
    events.iter().filter_map(said).filter_map(|text| text.trim().parse().ok()).collect()
}

fn numbers_on_disk(daemon: &Daemon, id: &SessionId) -> usize {
    let journal = std::fs::read_to_string(journal::path(&daemon.state(), id)).unwrap_or_default();
    journal.matches("agent_message_chunk").count()
}

#[tokio::test]
async fn a_session_survives_kill_nine_of_the_daemon_in_mid_turn_and_nothing_is_lost_or_doubled() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let before = session.view().await.status;
    let accepted = session.prompt("count 400 5").await;
    for at_least in [20, 80, 160] {
        until("the agent counts on", || numbers_on_disk(&daemon, &session.id) >= at_least).await;
        daemon.kill9();
        daemon.run().await;
    }
    let turn = session.end_of(&accepted).await;
    assert_eq!(turn.ended.stop_reason.as_deref(), Some("end_turn"));
    assert_eq!(counted(&turn.events), (1..=400).collect::<Vec<u32>>());

    let events = session.journal();
    assert_eq!(counted(&events), (1..=400).collect::<Vec<u32>>());
    let recovered =
        events.iter().filter(|event| matches!(&event.body, Body::DaemonRecovered(r) if r.agent_alive)).count();
    assert_eq!(recovered, 3, "each daemon says that it took over");
    let after = session.wait_for_phase(Phase::Idle).await.status;
    assert_eq!((after.agent_pid, after.keeper_pid, after.launches), (before.agent_pid, before.keeper_pid, 1));
    assert_eq!(session.turn("say and on").await.text, "and on");
}

#[tokio::test]
async fn a_turn_that_ends_while_no_daemon_runs_is_found_ended() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("count 100 2").await;
    until("the agent counts", || numbers_on_disk(&daemon, &session.id) >= 5).await;
    daemon.kill9();
    until("the agent has counted to the end", || numbers_on_disk(&daemon, &session.id) == 100).await;
    daemon.run().await;
    let turn = session.end_of(&accepted).await;
    assert_eq!(turn.ended.stop_reason.as_deref(), Some("end_turn"));
    assert_eq!(counted(&session.journal()), (1..=100).collect::<Vec<u32>>());
}

#[tokio::test]
async fn an_agent_that_ends_while_no_daemon_runs_is_found_ended() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("count 3 0\nhang").await;
    until("the agent counts", || numbers_on_disk(&daemon, &session.id) >= 3).await;
    let agent = session.view().await.status.agent_pid.unwrap();
    daemon.kill9();
    process::kill9(agent);
    process::gone(&[agent]).await;
    daemon.run().await;
    let turn = session.end_of(&accepted).await;
    assert_eq!(turn.ended.synthetic.map(|synthetic| synthetic.cause), Some(SyntheticCause::AgentExited));
    session.wait_for_phase(Phase::Failed).await;
    session.resume().await;
    assert_eq!(session.turn("say back").await.text, "back");
    session.journal();
}

#[tokio::test]
async fn a_prompt_that_waits_survives_the_daemon() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let first = session.prompt("count 150 4").await;
    let second = session.prompt("say second").await;
    daemon.kill9();
    daemon.run().await;
    session.end_of(&first).await;
    assert_eq!(session.end_of(&second).await.text, "second");
    let mut events = session.journal();
    let begun = events.iter().filter(|e| matches!(&e.body, Body::TurnStarted(s) if s.turn == second.turn)).count();
    assert_eq!(begun, 1);
    let end = events.iter().position(|event| crate::harness::session::ends(event, &second.turn)).unwrap();
    events.truncate(end + 1);
    assert_eq!(turn_of(events, &second.turn).text, "second");
}

#[tokio::test]
async fn sigterm_ends_the_daemon_and_leaves_the_sessions() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("count 100 5").await;
    until("the agent counts", || numbers_on_disk(&daemon, &session.id) >= 5).await;
    let agent = session.view().await.status.agent_pid.unwrap();
    daemon.terminate().await;
    assert!(process::is_alive(agent), "the agent ended with the daemon");
    daemon.run().await;
    let turn = session.end_of(&accepted).await;
    assert_eq!(turn.ended.stop_reason.as_deref(), Some("end_turn"));
    assert_eq!(counted(&session.journal()), (1..=100).collect::<Vec<u32>>());
}

#[tokio::test]
async fn kill_nine_of_the_agent_closes_its_turn_and_resume_continues_the_conversation() {
    let daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&[]);
    spec.permissions = PermissionPolicy::Allow;
    let session = daemon.session(&spec).await;
    session.turn("say the first thing").await;
    let accepted = session.prompt("tool echo in the middle; exec sleep 1000").await;
    until("the tool runs", || process::pid_file(&daemon.pid_file()).iter().any(|(role, _)| role == "tool")).await;
    process::kill9(session.view().await.status.agent_pid.unwrap());

    let turn = session.end_of(&accepted).await;
    let synthetic = turn.ended.synthetic.as_ref().expect("the agent could not end it");
    assert_eq!(synthetic.cause, SyntheticCause::AgentExited);
    assert_eq!(turn.ended.interrupted_tool_calls.len(), 1, "{:?}", turn.ended);
    let view = session.wait_for_phase(Phase::Failed).await;
    assert!(view.status.message.is_some(), "{view:#?}");
    process::gone(&process::pid_file(&daemon.pid_file()).iter().map(|(_, pid)| *pid).collect::<Vec<_>>()).await;

    let conversation = view.status.conversation;
    let view = session.resume().await;
    assert_eq!(view.status.conversation, conversation);
    let heard = session.turn("remember").await.text;
    assert!(heard.contains("the first thing") && heard.contains("in the middle"), "{heard}");
    let opened: Vec<OpenedBy> = session
        .journal()
        .into_iter()
        .filter_map(|event| match event.body {
            Body::ConversationOpened(opened) => Some(opened.by),
            _ => None,
        })
        .collect();
    assert_eq!(opened, [OpenedBy::New, OpenedBy::Load]);
}

#[tokio::test]
async fn an_agent_that_exits_by_itself_leaves_its_status_in_the_journal() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("say last words\nexit 7").await;
    let turn = session.end_of(&accepted).await;
    assert_eq!(turn.text, "last words");
    session.wait_for_phase(Phase::Failed).await;
    let status = session.journal().into_iter().find_map(|event| match event.body {
        Body::AgentExited(exited) => Some((exited.status, exited.signal, exited.requested)),
        _ => None,
    });
    assert_eq!(status, Some((Some(7), None, false)));
}

#[tokio::test]
async fn a_second_daemon_on_the_same_directories_is_refused_and_harms_nothing() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let output = tokio::task::spawn_blocking({
        let mut command = daemon.command();
        move || command.output().expect("agentd can be executed")
    });
    let output = crate::harness::within("the second daemon's end", output).await.unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert!(!output.stderr.is_empty(), "it does not say why");
    assert_eq!(session.turn("say undisturbed").await.text, "undisturbed");
}

#[tokio::test]
async fn a_session_whose_file_is_corrupt_is_set_aside_and_the_others_live_on() {
    let mut daemon = Daemon::start().await;
    let good = daemon.session(&daemon.scripted(&[])).await;
    let bad = daemon.session(&daemon.scripted(&[])).await;
    bad.stop().await;
    daemon.kill9();
    let file = bad.directory().join("session.json");
    std::fs::write(&file, b"{ \"cut off").unwrap();
    daemon.run().await;
    assert_eq!(good.turn("say fine").await.text, "fine");
    let list: agentd_api::session::WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    assert_eq!(list.sessions.iter().map(|view: &SessionView| &view.id).collect::<Vec<_>>(), [&good.id]);
    assert_eq!(list.unreadable.iter().map(|session| session.id.as_str()).collect::<Vec<_>>(), [bad.id.as_str()]);
    assert_eq!(std::fs::read(&file).unwrap(), b"{ \"cut off", "what could not be read was rewritten");
}
