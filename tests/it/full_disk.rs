//! A full disk, an exceeded quota and a read-only file system. Sessions are still shown, stopped and removed, and views
//! report which files cannot be written and why.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use agentd_api::session::{ConditionStatus, ConditionType, Phase, SessionView, WholeList};
use agentd_api::{Body, Code, Event};

use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, journal, process, require, until, within};
use crate::worlds::place::Place;

/// A daemon whose state is on a small file system of its own.
struct Small {
    daemon: Daemon,
    place: Place,
}

impl Small {
    /// Returns `None` and prints the reason if no file system can be mounted.
    async fn new(config: &str) -> Option<Self> {
        require::namespaces()?;
        let (place, mut daemon) = (Place::machine().unwrap(), Daemon::prepare());
        daemon.configure(|own| format!("{own}\n{config}"));
        let state = daemon.state();
        place.run(&format!("mount -t tmpfs -o size=16m,mode=700 none {}", quoted(&state)));
        daemon.enter(place.entrance());
        daemon.run().await;
        Some(Self { daemon, place })
    }

    fn filler(&self) -> PathBuf {
        self.daemon.state().join("filler")
    }

    /// Fills the file system to the last block.
    fn fill(&self) {
        let path = self.filler();
        self.place.within(move || {
            let mut file = fs::File::options().append(true).create(true).open(path).unwrap();
            let block = [0; 4096];
            while file.write_all(&block).is_ok() {}
        });
    }

    fn free(&self) {
        let path = self.filler();
        self.place.within(move || fs::remove_file(path).unwrap());
    }

    fn journal(&self, session: &Session) -> Vec<Event> {
        let (state, id) = (self.daemon.state(), session.id.clone());
        self.place.within(move || journal::checked(&state, &id))
    }

    async fn listed(&self, session: &Session) -> SessionView {
        let list: WholeList = self.daemon.client.get("/v1/sessions?fields=*").await.expect(200);
        list.sessions.into_iter().find(|view| view.id == session.id).expect("it is listed")
    }
}

/// Returns a prompt that is too long for the remaining room of a journal.
fn long_prompt() -> serde_json::Value {
    serde_json::json!({ "prompt": "x".repeat(400_000) })
}

/// Returns the condition that reports whether the journal can be written.
fn writable(view: &SessionView) -> Option<(ConditionStatus, &str, &str)> {
    let condition = view.status.conditions.iter().find(|condition| condition.kind == ConditionType::JournalWritable)?;
    Some((condition.status, &condition.reason, &condition.message))
}

fn is_refused(view: &SessionView) -> bool {
    writable(view).is_some_and(|(status, ..)| status == ConditionStatus::False)
}

fn is_accepted(view: &SessionView) -> bool {
    writable(view).is_some_and(|(status, ..)| status == ConditionStatus::True)
}

#[tokio::test]
async fn sessions_are_shown_stopped_and_removed_on_a_full_disk_whoever_writes_their_journals() {
    let Some(small) = Small::new("").await else { return };
    let daemon = &small.daemon;
    let spec = daemon.scripted(&[]);
    let (busy, idle, ended) = (daemon.session(&spec).await, daemon.session(&spec).await, daemon.session(&spec).await);
    ended.stop().await;
    busy.prompt("count 1000000 1").await;
    let view = busy.wait_for("in its turn", |view| view.status.phase == Phase::Busy).await;
    let (keeper, agent) = (view.status.keeper_pid.unwrap(), view.status.agent_pid.unwrap());
    small.fill();

    let view = busy.see("what the agent says cannot be written", is_refused).await;
    let (_, reason, message) = writable(&view).unwrap();
    assert_eq!(reason, "DiskFull");
    assert!(
        message.contains("No space left on device (os error 28)") && message.contains("journal.jsonl"),
        "{message}"
    );
    assert!(is_refused(&small.listed(&busy).await));
    let refused = idle.post("/prompt", &long_prompt()).await;
    assert_eq!((refused.status.as_u16(), refused.problem().code), (503, Code::JournalNotWritable));
    assert!(refused.problem().detail.contains("No space left"), "{:?}", refused.problem());
    let refused = ended.post("/resume", &serde_json::Value::Null).await;
    assert_eq!((refused.status.as_u16(), refused.problem().code), (503, Code::JournalNotWritable));
    assert!(is_refused(&ended.view().await));

    let stays = idle.view().await.status;
    let view = busy.stop().await;
    assert_eq!(view.status.phase, Phase::Stopped);
    assert!(!process::is_alive(agent), "it was ended");
    let events = small.journal(&busy);
    assert!(events.iter().any(|event| matches!(&event.body, Body::AgentExited(exited) if exited.requested)));
    assert!(events.iter().any(|event| matches!(event.body, Body::TurnEnded(_))), "its turn is closed");
    until("its keeper ends, which has written all it had into the reserve", || !process::is_alive(keeper)).await;
    assert!(is_refused(&busy.view().await), "that is no room for others");
    let removed = daemon.client.call("DELETE", &idle.path("?force=true"), "").await;
    assert_eq!(removed.status.as_u16(), 204, "{removed:?}");
    process::gone(&[stays.agent_pid.unwrap(), stays.keeper_pid.unwrap()]).await;

    small.fill();
    assert!(is_refused(&ended.view().await));
    small.free();
    for session in [&busy, &ended] {
        session.see("it can be written again", |view| !is_refused(view)).await;
    }
    assert!(is_accepted(&ended.view().await));
    assert_eq!(ended.resume().await.status.phase, Phase::Idle);
    assert_eq!(ended.turn("say again").await.text, "again");
}

#[tokio::test]
async fn a_session_that_is_created_on_a_full_disk_is_refused_and_leaves_nothing() {
    let Some(small) = Small::new("").await else { return };
    let daemon = &small.daemon;
    small.fill();
    let refused = daemon.client.post("/v1/sessions", &daemon.scripted(&[])).await;
    assert_eq!((refused.status.as_u16(), refused.problem().code), (503, Code::JournalNotWritable));
    assert!(refused.problem().detail.contains("No space left"), "{:?}", refused.problem());
    let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    assert_eq!(list.sessions.len(), 0);
    let sessions = daemon.state().join("sessions");
    assert_eq!(small.place.within(move || fs::read_dir(sessions).unwrap().count()), 0);
    small.free();
    let session = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(session.turn("say again").await.text, "again");
}

#[tokio::test]
async fn a_launch_that_is_under_way_is_stopped_on_a_full_disk() {
    let Some(small) = Small::new("").await else { return };
    let daemon = &small.daemon;
    let script = daemon.root().join("config/env-setup.sh");
    fs::write(script, "sleep 1000\n").unwrap();
    let session = daemon.create(&daemon.scripted(&[])).await;
    session.wait_for_phase(Phase::Preparing).await;
    small.fill();
    session.stop().await;
    let stopped = small.journal(&session).into_iter().any(|event| matches!(event.body, Body::LaunchFailed(_)));
    assert!(stopped, "the journal says that it was stopped");
}

#[tokio::test]
async fn the_status_line_says_who_cannot_write() {
    let Some(small) = Small::new("").await else { return };
    let mut small = small;
    small.daemon.terminate().await;
    let socket = small.daemon.root().join("notify");
    let told = tokio::net::UnixDatagram::bind(&socket).unwrap();
    small
        .daemon
        .set_environment([("PATH", "/usr/bin:/bin".to_owned()), ("NOTIFY_SOCKET", socket.display().to_string())]);
    small.daemon.run().await;
    let session = small.daemon.session(&small.daemon.scripted(&[])).await;
    session.prompt("count 1000000 1").await;
    small.fill();
    let mut message = [0; 4096];
    within("the status line says it", async {
        loop {
            let length = told.recv(&mut message).await.unwrap();
            if String::from_utf8_lossy(&message[..length]).contains("1 cannot write (is the disk full?)") {
                return;
            }
        }
    })
    .await;
}

/// Sets the point, so that each write of a journal fails with this error of the system.
fn refuse(daemon: &Daemon, errno: nix::errno::Errno) -> PathBuf {
    let file = daemon.state().join("faults/journal.append.before");
    fs::write(&file, format!("refuse {}", errno as i32)).unwrap();
    file
}

async fn armed() -> Daemon {
    let mut daemon = Daemon::prepare();
    fs::create_dir_all(daemon.state().join("faults")).unwrap();
    daemon.run().await;
    daemon
}

#[tokio::test]
async fn an_agent_is_ended_although_nothing_at_all_can_be_written_and_the_journal_says_so_later() {
    let daemon = armed().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let agent = session.view().await.status.agent_pid.unwrap();
    let fault = refuse(&daemon, nix::errno::Errno::EROFS);
    session.stop().await;
    until("the agent is gone", || !process::is_alive(agent)).await;
    let view = session.see("why that is not recorded", is_refused).await;
    let (_, reason, message) = writable(&view).unwrap();
    assert_eq!(reason, "ReadOnly");
    assert!(message.contains("Read-only file system"), "{message}");
    assert!(view.status.message.unwrap().contains("its end cannot be recorded"));

    fs::remove_file(fault).unwrap();
    session.see("it can be written again", |view| !is_refused(view)).await;
    session.see("it is stopped", |view| view.status.phase == Phase::Stopped && view.status.message.is_none()).await;
    let ends = session.journal().into_iter().filter_map(|event| match event.body {
        Body::AgentExited(exited) => Some(exited.requested),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), [true]);
}

#[tokio::test]
async fn a_session_is_removed_although_nothing_can_be_written_and_leaves_nobody_behind() {
    let daemon = armed().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let status = session.view().await.status;
    refuse(&daemon, nix::errno::Errno::EDQUOT);
    let removed = daemon.client.call("DELETE", &session.path("?force=true"), "").await;
    assert_eq!(removed.status.as_u16(), 204, "{removed:?}");
    assert_eq!(daemon.client.get(&session.path("")).await.status.as_u16(), 404);
    // The keeper also ends, although it could not record the end.
    process::gone(&[status.agent_pid.unwrap(), status.keeper_pid.unwrap()]).await;
}

#[tokio::test]
async fn a_daemon_that_finds_an_agent_whose_end_is_not_recorded_shows_it_and_removes_the_session() {
    let mut daemon = armed().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let keeper = session.view().await.status.keeper_pid.unwrap();
    let fault = refuse(&daemon, nix::errno::Errno::EROFS);
    session.stop().await;
    let is_shown = |view: &SessionView| {
        let said = view.status.message.as_ref().is_some_and(|message| message.contains("its end cannot be recorded"));
        said && is_refused(view) && view.status.phase == Phase::Stopped
    };
    session.see("its end is shown", is_shown).await;
    daemon.kill9();
    daemon.run().await;
    session.see("its end is shown by the next daemon too", is_shown).await;
    assert!(process::is_alive(keeper), "it waits for room");
    let removed = daemon.client.call("DELETE", &session.path(""), "").await;
    assert_eq!(removed.status.as_u16(), 204, "{removed:?}");
    until("the keeper ends", || !process::is_alive(keeper)).await;
    fs::remove_file(fault).unwrap();
}

#[tokio::test]
async fn a_stop_that_could_not_be_recorded_is_no_crash_though_the_keeper_dies_before_there_is_room() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config.replace("restart = \"never\"", "restart = \"on-failure\""));
    fs::create_dir_all(daemon.state().join("faults")).unwrap();
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let keeper = session.view().await.status.keeper_pid.unwrap();
    let fault = refuse(&daemon, nix::errno::Errno::EROFS);
    session.stop().await;
    nix::sys::signal::kill(process::pid(keeper), nix::sys::signal::Signal::SIGKILL).unwrap();
    until("the keeper is gone", || !process::is_alive(keeper)).await;
    fs::remove_file(fault).unwrap();
    session.see("it can be written again", |view| !is_refused(view)).await;
    session.wait_for_phase(Phase::Stopped).await;
    let events = session.journal();
    let told = events.iter().filter(|event| match &event.body {
        Body::StopRequested(_) | Body::AgentExited(_) => true,
        Body::LaunchStarted(started) => started.launch > 1,
        _ => false,
    });
    let told: Vec<&str> = told.map(|event| event.body.kind()).collect();
    assert_eq!(told, ["stop.requested", "agent.exited"]);
}
