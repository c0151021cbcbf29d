//! A keeper that hangs: only a stop ends its processes, and other sessions are not affected. Requests during the hang
//! are neither lost nor doubled.

use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use agentd_api::event::Body;
use agentd_api::session::{ConditionType, Phase, SessionView, WholeList};
use agentd_api::{Code, Event};
use agentd_keeper::frame;
use agentd_keeper::protocol::{FromKeeper, Hello, PROTOCOL, Tail};
use nix::sys::signal::{Signal, kill};
use serde_json::json;

use crate::harness::session::said;
use crate::harness::{Daemon, process, until, within};

fn send(pid: u32, signal: Signal) {
    kill(process::pid(pid), signal).expect("the process is there");
}

fn is_silent(view: &SessionView) -> bool {
    view.status.conditions.iter().any(|condition| condition.kind == ConditionType::KeeperAnswers)
}

fn exits(journal: &[Event]) -> Vec<Option<String>> {
    let exit = |event: &Event| match &event.body {
        Body::AgentExited(exited) => Some(exited.reason.clone()),
        _ => None,
    };
    journal.iter().filter_map(exit).collect()
}

#[tokio::test]
async fn a_prompt_to_a_hung_keeper_is_refused_in_time_and_carried_out_once_when_it_is_asked_again() {
    let daemon = Daemon::impatient().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let other = daemon.session(&daemon.scripted(&[])).await;
    let before = session.view().await.status;
    let keeper = before.keeper_pid.unwrap();
    send(keeper, Signal::SIGSTOP);
    let body = json!({ "prompt": "say once" }).to_string();
    let path = session.path("/prompt");
    let ask = || daemon.client.attempt("POST", &path, body.clone(), Some("k"));
    for _ in 0..2 {
        let problem = within("the refusal", ask()).await.expect("an answer").problem();
        assert_eq!((problem.code, problem.status), (Code::KeeperSilent, 503), "{problem:?}");
    }
    let view = session.view().await;
    assert!(is_silent(&view) && view.status.phase == Phase::Idle, "{view:#?}");
    assert!(other.turn("say well").await.text.contains("well"), "another session is not affected");
    let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    assert_eq!(list.sessions.len(), 2);
    send(keeper, Signal::SIGCONT);
    session.see("the keeper answers again", |view| !is_silent(view)).await;
    assert_eq!(within("the prompt", ask()).await.expect("an answer").status, 202);
    let answered = || session.journal().iter().filter_map(said).filter(|text| text == "once").count();
    until("the prompt is carried out", || answered() > 0).await;
    assert!(session.turn("say on").await.text.contains("on"));
    let now = session.view().await.status;
    assert_eq!((now.agent_pid, now.keeper_pid), (before.agent_pid, before.keeper_pid), "nothing was ended");
    let queued = session.journal().iter().filter(|event| matches!(event.body, Body::TurnQueued(_))).count();
    assert_eq!((answered(), queued), (1, 2), "the prompt was carried out once");
}

#[tokio::test]
async fn a_stop_ends_a_hung_keeper_with_its_whole_tree_and_says_so() {
    let daemon = Daemon::impatient().await;
    let session = daemon.session(&daemon.scripted(&["--launcher"])).await;
    let tree = daemon.tree_of(&session).await;
    send(tree[0], Signal::SIGSTOP);
    session.stop().await;
    process::gone(&tree).await;
    let exits = exits(&session.journal());
    assert!(matches!(exits.as_slice(), [Some(reason)] if reason.contains("did not answer for 1 s")), "{exits:?}");
    session.resume().await;
    assert!(session.turn("say again").await.text.contains("again"));
}

#[tokio::test]
async fn a_session_with_a_hung_keeper_is_removed_by_force() {
    let daemon = Daemon::impatient().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let tree = daemon.tree_of(&session).await;
    send(tree[0], Signal::SIGSTOP);
    assert_eq!(daemon.client.call("DELETE", &session.path("?force=true"), "").await.status, 204);
    process::gone(&tree).await;
    assert!(!session.directory().exists());
}

#[tokio::test]
async fn a_daemon_that_finds_a_hung_keeper_ends_in_time_and_takes_the_session_over_when_it_answers() {
    let mut daemon = Daemon::impatient().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let other = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("count 50 20").await;
    session.wait_for_phase(Phase::Busy).await;
    let status = session.view().await.status;
    let keeper = status.keeper_pid.unwrap();
    send(keeper, Signal::SIGSTOP);
    // The hang is detected during the request, and a second time by the check that follows.
    let (path, client) = (session.path("/cancel"), daemon.client.clone());
    let asking = tokio::spawn(async move { client.attempt("POST", &path, "{}", None).await });
    for _ in 0..2 {
        let begun = Instant::now();
        daemon.terminate().await;
        assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
        daemon.run().await;
        assert!(other.turn("say well").await.text.contains("well"), "another session is not affected");
        let view = session.see("the keeper is found hung", is_silent).await;
        assert_eq!((view.status.phase, view.status.agent_pid), (Phase::Busy, status.agent_pid), "{view:#?}");
    }
    drop(asking.await);
    send(keeper, Signal::SIGCONT);
    let turn = session.end_of(&accepted).await;
    let counted: Vec<u32> = turn.events.iter().filter_map(said).filter_map(|text| text.trim().parse().ok()).collect();
    assert_eq!(counted, (1..=u32::try_from(counted.len()).unwrap()).collect::<Vec<_>>());
    let now = session.see("the session is at rest", |view| view.status.phase == Phase::Idle).await.status;
    assert_eq!((now.agent_pid, now.keeper_pid), (status.agent_pid, status.keeper_pid), "nothing was ended");
}

#[tokio::test]
async fn a_keeper_that_falls_silent_after_it_was_asked_to_stop_is_ended_too() {
    let mut daemon = Daemon::prepare();
    daemon.hurry_keepers();
    let faults = daemon.state().join("faults");
    std::fs::create_dir_all(&faults).unwrap();
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let tree = daemon.tree_of(&session).await;
    // The keeper has killed its agent's tree, and hangs before it records that. It no longer reacts to anything,
    // including SIGTERM.
    std::fs::write(faults.join("keeper.end.killed"), "pause").unwrap();
    session.stop().await;
    process::gone(&tree).await;
    assert_eq!(exits(&session.journal()).len(), 1);
    session.resume().await;
}

#[tokio::test]
async fn a_stop_while_a_hung_keeper_ends_an_agent_to_start_it_again_stops_the_session() {
    let mut daemon = Daemon::prepare();
    daemon.hurry_keepers();
    daemon.configure(|config| config.replace("restart = \"never\"", "restart = \"on-failure\""));
    let faults = daemon.state().join("faults");
    std::fs::create_dir_all(&faults).unwrap();
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let tree = daemon.tree_of(&session).await;
    session.turn("lose").await;
    std::fs::write(faults.join("keeper.end.killed"), "pause").unwrap();
    // The daemon ends an agent without a conversation and starts it again. The keeper hangs meanwhile.
    session.prompt("say lost").await;
    until("the keeper hangs", || faults.join("keeper.end.killed.hit").exists()).await;
    session.stop().await;
    process::gone(&tree).await;
    let journal = session.journal();
    let stops = journal.iter().filter(|event| matches!(event.body, Body::StopRequested(_))).count();
    assert_eq!((stops, exits(&journal).len(), session.view().await.status.launches), (1, 1, 1));
    session.resume().await;
}

#[tokio::test]
async fn a_keeper_of_another_session_that_answers_in_the_place_of_a_hung_one_is_left_alone() {
    let daemon = Daemon::impatient().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    send(session.view().await.status.keeper_pid.unwrap(), Signal::SIGSTOP);
    let socket = daemon.root().join("run").join(session.id.as_str()).join("keeper.sock");
    std::fs::remove_file(&socket).unwrap();
    let stranger = UnixListener::bind(&socket).unwrap();
    let hello = FromKeeper::Hello(Hello {
        protocol: PROTOCOL,
        version: String::new(),
        session: "abcdefghjkmn".to_owned(),
        launch: 1,
        pid: std::process::id(),
        start_time: 0,
        agent_pid: Some(1),
        tail: Tail { seq: 1, blocked: false, errno: None, ended: false, output: None },
    });
    let hello = frame::encode(&hello).unwrap();
    // The thread ends with the test's process, because it waits for connections that no longer arrive.
    std::thread::spawn(move || {
        let mut let_in = Vec::new();
        while let Ok((mut stream, _)) = stranger.accept() {
            drop(stream.write_all(&hello));
            let_in.push(stream);
        }
    });
    let refused = session.post("/prompt", &json!({ "prompt": "say lost" })).await.problem();
    assert_eq!(refused.code, Code::KeeperSilent, "{refused:?}");
    until("the daemon says so", || daemon.last_words().contains("does not belong to this session")).await;
}
