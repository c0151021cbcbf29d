//! Agents that stay on their place while the workstation, the network or a process between them is gone.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agentd_api::Body;
use agentd_api::event::PlaceState;
use agentd_api::session::{ConditionStatus, ConditionType, Phase, SessionSpec, SessionView};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use serde_json::json;

use super::sessions::{condition, daemon, placed, slurm, spec, ssh};
use crate::harness::container::{IMAGE, Podman};
use crate::harness::ctl::ctl;
use crate::harness::quote::quoted;
use crate::harness::slurm::{Options, Slurm};
use crate::harness::sshd::{Far, Login};
use crate::harness::static_keeper::static_keeper;
use crate::harness::{Daemon, Session, paths, process, require, until};

/// Number to which an agent counts, and its prompt, with 1 ms between two numbers.
const NUMBERS: usize = 10_000;
const COUNT: &str = "count 10000 1";

/// Returns a process with all its descendants, without those of a container engine.
pub(super) fn tree(pid: u32) -> Vec<u32> {
    let own = |pid: &u32| process::name(*pid) != "conmon";
    let below = process::children(pid).into_iter().filter(own).flat_map(tree);
    std::iter::once(pid).chain(below).collect()
}

/// Kills all processes of the workstation: the daemon, the keepers, the near sides and their clients.
async fn workstation_dies(daemon: &mut Daemon, session: &Session) {
    let keeper = session.view().await.status.keeper_pid.expect("the session has a keeper");
    let all = tree(keeper);
    daemon.kill9();
    process::signal_each(&all, Signal::SIGKILL);
    process::gone(&all).await;
}

/// Waits until the journal has this number of messages of the agent.
async fn has_said(session: &Session, messages: usize) {
    let count = || session.journal().iter().filter(|event| matches!(event.body, Body::AgentOut(_))).count();
    until("the agent has counted for a while", || count() > messages).await;
}

/// Returns the size of the output that a place has stored.
fn stored(state: &Path) -> u64 {
    let places = fs::read_dir(state.join("agentd/places")).into_iter().flatten().flatten();
    let files = places.flat_map(|place| fs::read_dir(place.path()).into_iter().flatten().flatten());
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// Returns the text of an agent that counts to this number.
fn numbers(last: usize) -> String {
    (1..=last).flat_map(|number| [number.to_string(), "\n".to_owned()]).collect()
}

fn states(session: &Session) -> Vec<PlaceState> {
    let changed = session.journal().into_iter().filter_map(|event| match event.body {
        Body::PlaceChanged(changed) => Some(changed.state),
        _ => None,
    });
    changed.collect()
}

/// Returns the statuses of the first agent's end, each with the number of its killed processes.
fn exits(session: &Session) -> Vec<(Option<i32>, u32)> {
    let ends = session.journal().into_iter().filter_map(|event| match event.body {
        Body::AgentExited(exited) if exited.launch == 1 => Some((exited.status, exited.killed)),
        _ => None,
    });
    ends.collect()
}

/// Kills the workstation while an agent counts, lets the agent count on alone, and requires each number once.
pub(super) async fn counts_through_the_death_of_the_workstation(daemon: &mut Daemon, state: &Path) {
    let session = daemon.session(&spec(daemon)).await;
    let counted = session.prompt(COUNT).await;
    let after = session.prompt("say after").await;
    has_said(&session, 1000).await;
    workstation_dies(daemon, &session).await;
    let alone = stored(state);
    until("the agent counts on alone", || stored(state) > alone + 100_000).await;
    daemon.run().await;
    assert_eq!(session.end_of(&counted).await.text, numbers(NUMBERS));
    assert_eq!(session.end_of(&after).await.text, "after");
    assert_eq!(session.turn("say again").await.text, "again");
    let view = session.view().await;
    assert_eq!((view.status.launches, placed(&view).state), (1, PlaceState::Running));
    assert_eq!(condition(&view, ConditionType::Placed).status, ConditionStatus::True);
    let remembered = session.turn("remember").await.text;
    assert_eq!(remembered.matches("say after").count(), 1, "{remembered}");
    session.stop().await;
    let (status, _, error) = ctl(daemon, &["rm", session.id.as_str()]).await.parts();
    assert_eq!(status, Some(0), "{error}");
}

/// Returns the place of an agent that stays on another machine, and the state directory there.
fn resident(far: &Far) -> (String, PathBuf) {
    let place = format!("{}\nlevel = \"resident\"\nsilence = \"2s\"\npoll = \"300ms\"", ssh(far, paths::keeper()));
    (place, far.home().join(".local/state"))
}

/// Reports whether the machine has neither processes nor files of agents.
fn is_empty(far: &Far, state: &Path) -> bool {
    let places = fs::read_dir(state.join("agentd/places")).into_iter().flatten().count();
    far.left().is_empty() && places == 0
}

#[tokio::test]
async fn an_agent_on_another_machine_outlives_the_workstation_and_no_number_is_lost_or_repeated() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let (place, state) = resident(&far);
    let mut daemon = daemon(&place).await;
    counts_through_the_death_of_the_workstation(&mut daemon, &state).await;
    until("nothing is left on the machine", || is_empty(&far, &state)).await;
}

#[tokio::test]
async fn an_agent_in_a_job_outlives_the_workstation_and_no_number_is_lost_or_repeated() {
    let Some(slurm_) = Slurm::boot(Options::default()).await else { return };
    let place = format!("{}\nlevel = \"resident\"\noptions = [\"--nodelist=b\"]", slurm(&slurm_));
    let mut daemon = daemon(&place).await;
    let state = slurm_.home(0).join(".local/state");
    counts_through_the_death_of_the_workstation(&mut daemon, &state).await;
    slurm_.empty().await;
    let own = |one: &String| one.contains("agentd-keeper") || one.contains("scripted-agent");
    assert!(!slurm_.left().iter().any(own), "{:?}", slurm_.left());
}

#[tokio::test]
async fn an_agent_in_a_container_outlives_the_workstation_and_no_number_is_lost_or_repeated() {
    let Some(()) = require::podman() else { return };
    let Some(podman) = Podman::boot(&[]) else { return };
    let mut daemon = Daemon::prepare();
    // The scripted agent needs the C library of this machine.
    let shared = ["/usr", "/lib", "/lib64"].map(|path| format!("\"{path}:{path}:ro\""));
    let root = daemon.root().display().to_string();
    let programs = paths::programs().display().to_string();
    let home = daemon.root().join("box");
    fs::create_dir(&home).unwrap();
    let place = format!(
        "kind = \"container\"\nengine = {:?}\nimage = {IMAGE:?}\nkeeper_file = {:?}\npoll = \"300ms\"\n\
         level = \"resident\"\noptions = [\"--hostname=box\", \"--env=XDG_STATE_HOME=/state\"]\n\
         mounts = [{}, \"{root}:{root}\", \"{programs}:{programs}:ro\", \"{}:/state\"]",
        podman.engine(),
        static_keeper(),
        shared.join(", "),
        home.display(),
    );
    daemon.configure(|config| format!("{config}\n[places.farm]\n{place}\n"));
    daemon.run().await;
    counts_through_the_death_of_the_workstation(&mut daemon, &home).await;
    until("no container is left", || podman.containers().is_empty()).await;
}

#[tokio::test]
async fn a_cut_network_is_a_condition_and_what_was_sent_meanwhile_is_done_once() {
    let Some(far) = Far::on_a_cable(Login::Root, "").await else { return };
    let (place, state) = resident(&far);
    let daemon = daemon(&place).await;
    let session = daemon.session(&spec(&daemon)).await;
    session.turn("say first").await;
    far.machine().pull_cable();
    let away = |view: &SessionView| {
        let cut = condition(view, ConditionType::Placed);
        (cut.status, cut.reason.as_str()) == (ConditionStatus::Unknown, "PlaceAway")
    };
    let view = session.wait_for("the cut is noticed", away).await;
    assert_eq!((view.status.phase, placed(&view).state), (Phase::Idle, PlaceState::Away));
    let sent = session.prompt("say meanwhile").await;
    session.wait_for_phase(Phase::Busy).await;
    far.machine().plug_cable();
    assert_eq!(session.end_of(&sent).await.text, "meanwhile");
    let view = session.view().await;
    assert_eq!((view.status.launches, placed(&view).state), (1, PlaceState::Running));
    let remembered = session.turn("remember").await.text;
    assert_eq!(remembered.matches("meanwhile").count(), 1, "{remembered}");
    session.stop().await;
    until("nothing is left on the machine", || is_empty(&far, &state)).await;
}

#[tokio::test]
async fn killed_clients_and_keepers_lose_nothing() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let (place, state) = resident(&far);
    let daemon = daemon(&place).await;
    let session = daemon.session(&spec(&daemon)).await;
    let counted = session.prompt(COUNT).await;
    for round in 1..=4 {
        has_said(&session, round * 1500).await;
        let keeper = session.view().await.status.keeper_pid.expect("the session has a keeper");
        // First the keeper alone, then the client, then the near side and the client, then all.
        let all = tree(keeper);
        let victims: Vec<u32> = match round {
            1 => vec![keeper],
            2 => all[2..].to_vec(),
            3 => all[1..].to_vec(),
            _ => all,
        };
        process::signal_each(&victims, Signal::SIGKILL);
    }
    assert_eq!(session.end_of(&counted).await.text, numbers(NUMBERS));
    session.stop().await;
    until("nothing is left on the machine", || is_empty(&far, &state)).await;
}

#[tokio::test]
async fn the_end_of_an_agent_without_a_workstation_is_read_afterwards() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let (place, state) = resident(&far);
    let mut daemon = daemon(&place).await;
    let session = daemon.session(&spec(&daemon)).await;
    let counted = session.prompt("count 3000 1\nexit 7").await;
    has_said(&session, 500).await;
    workstation_dies(&mut daemon, &session).await;
    let has_agent = || far.left().iter().any(|one| one.contains("scripted-agent"));
    until("the agent has ended alone", || !has_agent()).await;
    daemon.run().await;
    let turn = session.end_of(&counted).await;
    assert_eq!(turn.text, numbers(3000));
    assert_eq!(exits(&session), [(Some(7), 0)]);
    session.wait_for("the session starts again", |view| view.status.launches == 2).await;
    session.wait_for_phase(Phase::Idle).await;
    session.stop().await;
    until("nothing is left on the machine", || is_empty(&far, &state)).await;
}

#[tokio::test]
async fn an_end_that_is_lost_with_its_connection_is_read_by_the_next_one() {
    let Some(far) = Far::on_a_cable(Login::Root, "").await else { return };
    let (place, state) = resident(&far);
    let daemon = daemon(&place).await;
    let session = daemon.session(&spec(&daemon)).await;
    let counted = session.prompt("count 300 5\nexit 7").await;
    has_said(&session, 50).await;
    // The agent ends before the silence shows either side that the network is cut.
    far.machine().pull_cable();
    session.wait_for("the cut is noticed", |view| placed(view).state == PlaceState::Away).await;
    far.machine().plug_cable();
    assert_eq!(session.end_of(&counted).await.text, numbers(300));
    assert_eq!(exits(&session), [(Some(7), 0)]);
    session.wait_for("the session starts again", |view| view.status.launches == 2).await;
    session.wait_for_phase(Phase::Idle).await;
    session.stop().await;
    until("nothing is left on the machine", || is_empty(&far, &state)).await;
}

#[test]
fn an_agent_of_another_machine_is_not_ended_by_its_process_id() {
    let state = tempfile::tempdir().unwrap();
    let room = state.path().join("agentd/places/agentd-x-1");
    fs::create_dir_all(&room).unwrap();
    let mut other = Command::new("sleep").arg("600").spawn().unwrap();
    fs::write(room.join("host"), "elsewhere.example").unwrap();
    fs::write(room.join("pid"), other.id().to_string()).unwrap();
    let lock = File::create(room.join("lock")).unwrap();
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno).unwrap();
    let mut end = Command::new(paths::keeper());
    end.args(["enter", "end", "agentd-x-1"]).env("XDG_STATE_HOME", state.path());
    let ended = end.output().unwrap();
    let message = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && message.contains("runs on host \"elsewhere.example\""), "{message}");
    assert_eq!(other.try_wait().unwrap(), None);
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn a_parent_that_cannot_start_says_why() {
    let attach = |state: &Path| {
        let mut attach = Command::new(paths::keeper());
        attach.args(["enter", "attach", "agentd-x-1", "start"]).env("XDG_STATE_HOME", state).stdin(Stdio::null());
        let output = attach.output().unwrap();
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    // The near side gets the first message on the line, and the second one as the words of its client.
    let [line, _] = attach(Path::new("/proc/none"));
    assert!(line.contains("not-executed") && line.contains("cannot create the directory of the agent"), "{line}");
    let [_, words] = attach(Path::new(&format!("/{}", "d".repeat(120))));
    assert!(words.contains("the path is too long for a socket"), "{words}");
}

#[tokio::test]
async fn a_place_that_lost_the_agent_ends_the_launch_with_a_reason() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let (place, state) = resident(&far);
    let daemon = daemon(&place).await;
    let session = daemon.session(&spec(&daemon)).await;
    session.turn("say first").await;
    let parents = far.machine().running("agentd-keeper");
    process::signal_each(&parents, Signal::SIGKILL);
    session.wait_for("the session starts again", |view| view.status.launches == 2).await;
    session.wait_for_phase(Phase::Idle).await;
    assert!(session.turn("remember").await.text.contains("say first"));
    assert!(states(&session).iter().any(|state| matches!(state, PlaceState::Lost | PlaceState::Ended)));
    session.stop().await;
    until("nothing is left on the machine", || is_empty(&far, &state)).await;
}

#[tokio::test]
async fn a_full_disk_of_the_place_is_named_and_loses_nothing() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let (place, state) = resident(&far);
    let there = |line: &str| assert!(far.command(line).status().unwrap().success(), "{line}");
    let quoted = quoted(&state);
    there(&format!(
        "mkdir -p {quoted} && mount -t tmpfs -o size=1m none {quoted} && head -c 800k /dev/zero > {quoted}/full"
    ));
    let daemon = daemon(&place).await;
    let session = daemon.session(&spec(&daemon)).await;
    let counted = session.prompt("count 3000 0").await;
    let full = session.wait_for("the disk is named", |view| {
        condition(view, ConditionType::Placed).message.contains("its disk does not take the agent's output: No space")
    });
    assert_eq!(full.await.status.phase, Phase::Busy);
    there(&format!("rm {quoted}/full"));
    assert_eq!(session.end_of(&counted).await.text, numbers(3000));
    let view = session.view().await;
    assert!(!condition(&view, ConditionType::Placed).message.contains("disk") && view.status.launches == 1);
    session.stop().await;
}

#[tokio::test]
async fn a_session_that_is_removed_while_its_place_is_away_leaves_no_agent_there() {
    let Some(far) = Far::on_a_cable(Login::Root, "").await else { return };
    let (place, _) = resident(&far);
    let mut daemon = daemon(&place).await;
    let session = daemon.session(&spec(&daemon)).await;
    session.turn("say first").await;
    far.machine().pull_cable();
    let is_cut = |view: &SessionView| condition(view, ConditionType::Placed).reason == "PlaceAway";
    session.wait_for("the cut is noticed", is_cut).await;
    let (status, _, error) = ctl(&daemon, &["rm", "--force", session.id.as_str()]).await.parts();
    assert_eq!(status, Some(0), "{error}");
    // Another daemon knows it too.
    daemon.kill9();
    daemon.run().await;
    assert!(!far.left().is_empty(), "the agent runs there alone");
    far.machine().plug_cable();
    until("nothing is left on the machine", || far.left().is_empty()).await;
}

#[tokio::test]
async fn a_history_that_an_agent_replays_while_its_keeper_dies_is_not_journalled_again() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let (place, state) = resident(&far);
    let mut daemon = daemon(&place).await;
    let slow = daemon.scripted(&["--slow-load", "3000"]);
    let session = daemon.session(&SessionSpec { command: slow.command, ..spec(&daemon) }).await;
    session.turn("say first").await;
    session.stop().await;
    let messages = || session.journal().iter().filter(|event| matches!(event.body, Body::AgentOut(_))).count();
    let before = messages();
    session.post("/resume", &json!({})).await;
    let output = state.join(format!("agentd/places/agentd-{}-2/out.0", session.id));
    until("the history has come", || fs::read_to_string(&output).is_ok_and(|out| out.contains("say first"))).await;
    workstation_dies(&mut daemon, &session).await;
    daemon.run().await;
    session.wait_for_phase(Phase::Idle).await;
    let replayed = session.journal().iter().filter(|event| matches!(event.body, Body::AgentReplayed(_))).count();
    // The answers to `initialize` and to `session/load` are the only new messages.
    assert_eq!((messages() - before, replayed), (2, 1));
    assert_eq!(session.view().await.status.launches, 2);
    assert_eq!(session.turn("say again").await.text, "again");
    session.stop().await;
}

#[tokio::test]
async fn lists_of_the_agents_cut_no_connection() {
    let Some(far) = Far::boot(Login::Root, "").await else { return };
    let (place, _) = resident(&far);
    let daemon = daemon(&place).await;
    let session = daemon.session(&spec(&daemon)).await;
    let counted = session.prompt("count 2000 1").await;
    // One connection of ssh, and as many lists as the agent leaves time for.
    let list = format!("for n in $(seq 200); do {} enter list; done", paths::keeper());
    let listed = far.command(&list).output().unwrap();
    let name = format!("agentd-{}-1 running\n", session.id);
    assert_eq!(String::from_utf8(listed.stdout).unwrap(), name.repeat(200));
    assert_eq!(session.end_of(&counted).await.text, numbers(2000));
    assert!(!states(&session).contains(&PlaceState::Away), "{:?}", states(&session));
    session.stop().await;
}
