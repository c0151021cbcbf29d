//! Ends of turns when agent, keeper or daemon die, and the view of a session that waits for its agent's restart.

use agentd_api::event::Body;
use agentd_api::session::{PermissionPolicy, Phase, SessionSpec, SessionView};
use agentd_api::{Code, Event};

use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session, journal, process, until, within};

/// Returns a daemon that restarts crashed agents after this time.
async fn restarting(first: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    let restart = format!("restart = \"on-failure\"\nrestart_first = \"{first}\"\nrestart_longest = \"{first}\"");
    daemon.configure(|config| config.replace("restart = \"never\"", &restart));
    daemon.run().await;
    daemon
}

/// Returns a session whose agent has crashed and restarts after an hour.
async fn backing_off(daemon: &Daemon) -> (Session, SessionView) {
    let session = daemon.session(&daemon.scripted(&[])).await;
    process::kill9(session.view().await.status.agent_pid.unwrap());
    let view = session.wait_for_phase(Phase::BackingOff).await;
    (session, view)
}

fn exits(events: &[Event]) -> Vec<u64> {
    let exit = |event: &Event| match &event.body {
        Body::AgentExited(exited) => Some(exited.launch),
        _ => None,
    };
    events.iter().filter_map(exit).collect()
}

#[tokio::test]
async fn an_answer_that_came_while_no_daemon_ran_is_the_turns_end_though_agent_or_keeper_died_then() {
    for victim in ["agent", "keeper"] {
        let mut daemon = Daemon::start().await;
        let spec = SessionSpec { permissions: PermissionPolicy::Allow, ..daemon.scripted(&[]) };
        let session = daemon.session(&spec).await;
        let view = session.view().await;
        let (status, gate) = (view.status, view.spec.directory.join("gate"));
        let accepted = session.prompt("tool until [ -e gate ]; do sleep 0.01; done").await;
        let file = journal::path(&daemon.state(), &session.id);
        let said = |what: &str| std::fs::read_to_string(&file).unwrap_or_default().contains(what);
        until("the agent's tool runs", || said("in_progress")).await;
        daemon.kill9();
        assert!(!said("end_turn"), "{victim}: no daemon has seen the answer");
        std::fs::write(gate, "").unwrap();
        until("the agent has answered", || said("end_turn")).await;
        let pid = if victim == "agent" { status.agent_pid } else { status.keeper_pid };
        process::kill9(pid.unwrap());
        process::gone(&[pid.unwrap()]).await;
        daemon.run().await;
        let turn = session.end_of(&accepted).await;
        assert_eq!((turn.ended.stop_reason.as_deref(), &turn.ended.synthetic), (Some("end_turn"), &None), "{victim}");
        session.wait_for_phase(Phase::Failed).await;
        assert_eq!(exits(&session.journal()), [1], "{victim}");
    }
}

#[tokio::test]
async fn a_session_that_waits_for_its_restart_says_when_it_comes_and_a_stop_cancels_it() {
    let mut daemon = restarting("1h").await;
    let (session, view) = backing_off(&daemon).await;
    let at = view.status.next_restart_at.expect("it says when");
    let ahead = at.duration_since(view.status.updated).as_secs();
    assert!((3000..=3700).contains(&ahead), "{ahead} s");
    assert!(view.status.message.is_some_and(|message| message.contains("signal 9")));
    let id = session.id.as_str();
    assert!(ctl(&daemon, &["ls"]).await.out.contains("backing-off"));
    let text = ctl(&daemon, &["show", id]).await.out;
    assert!(text.contains("backing-off") && text.contains("next restart:"), "{text}");
    // A session that waits for its restart cannot be removed without force.
    let refused = daemon.client.call("DELETE", &session.path(""), "").await.problem();
    assert_eq!(refused.code, Code::WrongPhase);

    daemon.kill9();
    daemon.run().await;
    let view = session.wait_for_phase(Phase::BackingOff).await;
    assert!(view.status.next_restart_at.is_some());
    // A prompt waits for the restart. The stop cancels both.
    let accepted = session.prompt("say later").await;
    let output = ctl(&daemon, &["stop", id]).await;
    assert!(output.status == Some(0), "{output:?}");
    let view = session.view().await;
    assert_eq!((view.status.phase, view.status.next_restart_at), (Phase::Stopped, None));
    assert!(session.end_of(&accepted).await.ended.synthetic.is_some());
    session.resume().await;
    assert_eq!(session.view().await.status.launches, 2);
}

#[tokio::test]
async fn a_session_that_waits_for_its_restart_is_started_at_once_by_a_resume_and_removed_by_force() {
    let daemon = restarting("1h").await;
    let (session, _) = backing_off(&daemon).await;
    let accepted = session.prompt("say later").await;
    session.resume().await;
    assert_eq!(session.end_of(&accepted).await.text, "later");
    let (session, _) = backing_off(&daemon).await;
    assert_eq!(daemon.client.call("DELETE", &session.path("?force"), "").await.status, 204);
}

#[tokio::test]
async fn a_stop_of_a_session_that_waits_for_its_restart_shows_it_stopped_and_its_prompts_dropped() {
    let daemon = restarting("1h").await;
    let (session, _) = backing_off(&daemon).await;
    session.prompt("say never").await;
    let view: SessionView = daemon.client.call("POST", &session.path("/stop"), "").await.expect(202);
    assert_eq!((view.status.phase, view.status.queue.len()), (Phase::Stopped, 0), "{view:#?}");
}

#[tokio::test]
async fn a_configuration_that_restarts_nothing_any_more_makes_a_session_that_waits_failed() {
    let daemon = restarting("1h").await;
    let (session, _) = backing_off(&daemon).await;
    daemon.configure(|config| config.replace("restart = \"on-failure\"", "restart = \"never\""));
    daemon.client.call("POST", "/v1/reload", "").await.expect::<serde_json::Value>(200);
    // The configuration changes the phase without a record, so there is no event to wait for.
    let failed = async {
        loop {
            let status = session.view().await.status;
            if status.phase == Phase::Failed {
                return status;
            }
            tokio::task::yield_now().await;
        }
    };
    let status = within("the session is failed", failed).await;
    assert_eq!(status.next_restart_at, None);
}

#[tokio::test]
async fn after_an_automatic_restart_the_agent_is_told_that_its_shell_state_is_lost() {
    let daemon = restarting("10ms").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say before").await;
    process::kill9(session.view().await.status.agent_pid.unwrap());
    session
        .wait_for("another agent is ready", |view| view.status.launches == 2 && view.status.phase == Phase::Idle)
        .await;
    let noted = |turn: crate::harness::session::Turn| {
        turn.events.into_iter().find_map(|event| match event.body {
            Body::TurnStarted(started) => started.note,
            _ => None,
        })
    };
    let note = noted(session.turn("say after").await).expect("it is told");
    assert!(note.contains("was started again") && note.contains("Shell state"), "{note}");
    assert_eq!(noted(session.turn("say again").await), None, "it is told once");
}

#[tokio::test]
async fn an_adapter_whose_inner_program_died_is_started_again_with_its_conversation_and_the_journal_says_why() {
    let daemon = restarting("10ms").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let before = session.view().await.status;
    session.turn("say before\nlose").await;
    // Every prompt fails from here on, and the adapter lives.
    let failed = session.turn("say lost").await;
    assert!(failed.ended.synthetic.is_some_and(|synthetic| synthetic.detail.contains("-32002")));
    let after = session
        .wait_for("another agent is ready", |view| view.status.launches == 2 && view.status.phase == Phase::Idle)
        .await
        .status;
    assert_ne!(after.agent_pid, before.agent_pid);
    assert_eq!(after.conversation, before.conversation);
    assert!(session.turn("remember").await.text.contains("say before"));
    let events = session.journal();
    let why = events.iter().find_map(|event| match &event.body {
        Body::AgentUnusable(unusable) => Some((unusable.launch, unusable.reason.as_str())),
        _ => None,
    });
    assert_eq!(why, Some((1, "ConversationGone")));
    assert_eq!(exits(&events), [1]);
}

#[tokio::test]
async fn a_stop_that_finds_the_agent_just_ended_is_answered_with_that_end() {
    let mut daemon = Daemon::prepare();
    daemon
        .configure(|config| config.replace("restart = \"never\"", "restart = \"on-failure\"\nrestart_first = \"1h\""));
    let faults = daemon.state().join("faults");
    std::fs::create_dir_all(&faults).unwrap();
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.prompt("count 10000 100").await;
    let view = session.wait_for_phase(Phase::Busy).await;
    // The fault pauses the keeper before it records the end. It reads the daemon's stop request only after that record.
    let (ending, asked) = (faults.join("keeper.end.killed.hit"), faults.join("daemon.append.before.hit"));
    std::fs::write(faults.join("keeper.end.killed"), "pause").unwrap();
    process::kill9(view.status.agent_pid.unwrap());
    until("the keeper has ended the tree", || ending.exists()).await;
    std::fs::write(faults.join("daemon.append.before"), "delay 0").unwrap();
    let (client, path) = (daemon.client.clone(), session.path("/stop"));
    let stop = tokio::spawn(async move { client.call("POST", &path, "").await });
    until("the daemon is about to ask for the stop", || asked.exists()).await;
    std::fs::remove_file(ending).unwrap();
    let view: SessionView = stop.await.unwrap().expect(202);
    assert_eq!(view.status.phase, Phase::Stopped);
    let is_closed = |event: &Event| matches!(&event.body, Body::TurnEnded(end) if end.synthetic.is_some());
    assert!(session.journal().iter().any(is_closed), "what is shown as stopped has no open turn");
}
