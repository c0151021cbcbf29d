//! Each process between agentd and an agent on a place is killed while a turn runs, at both levels. The tests read the
//! victims and their consequences from the two tables of `docs/internals/places.md`.
//!
//! For each victim, the journal keeps its records and has no gap. The session comes to the state of the table within
//! [`BOUND`], and its conversation continues. No process and no job of the session is left.

use std::fs;
use std::time::{Duration, Instant};

use agentd_api::Body;
use agentd_api::event::PlaceState;
use agentd_api::session::{Phase, PromptAccepted, RestartPolicy, SessionSpec};
use nix::sys::signal::Signal;
use serde_json::json;

use super::life::Engine;
use super::sessions::placed;
use crate::harness::process::Identity;
use crate::harness::session::{ends, said};
use crate::harness::slurm::{Options, Slurm};
use crate::harness::sshd::{Far, Login};
use crate::harness::{Daemon, Session, paths, process, until};

const PAGE: &str = include_str!("../../../docs/internals/places.md");
/// Words of the head of each table.
const HEAD: &str = "| killed in a turn | ssh | slurm | container |";
/// Time from the kill to the state of the table.
const BOUND: Duration = Duration::from_mins(1);

/// Level of a place, in the order of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Connected,
    Resident,
}

impl Level {
    /// Returns the further keys of a place. Slurm starts a session again after a lost node.
    fn keys(self, kind: &str) -> String {
        let of_kind = match (self, kind) {
            (_, "slurm") => "requeue = true",
            (Self::Resident, "ssh") => "poll = \"300ms\"",
            _ => "",
        };
        let level = if self == Self::Resident { "level = \"resident\"" } else { "" };
        format!("silence = \"4s\"\n{level}\n{of_kind}")
    }
}

/// Process that a test kills, or packets that a test drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Agentd,
    Keeper,
    Near,
    Client,
    StoppedClient,
    /// The daemon, the keeper and all processes below it.
    Workstation,
    /// The process that connects the client with the parent of an agent that stays.
    Attach,
    /// The engine's process that started `Attach`.
    AttachHost(&'static str),
    Outer,
    Inner,
    Agent,
    /// The engine's process that started the far side.
    Host(&'static str),
    Slurmd,
    Slurmctld,
    Node,
    ShortCut,
    LongCut,
}

/// The victims, as the rows of the two tables name them.
const CONNECTED: [(&str, Victim); 16] = [
    ("agentd", Victim::Agentd),
    ("keeper", Victim::Keeper),
    ("near side", Victim::Near),
    ("client", Victim::Client),
    ("client, by SIGSTOP", Victim::StoppedClient),
    ("far side, outer process", Victim::Outer),
    ("far side, inner process", Victim::Inner),
    ("agent", Victim::Agent),
    ("sshd of the connection", Victim::Host("sshd")),
    ("packets for less than `silence`", Victim::ShortCut),
    ("packets for longer", Victim::LongCut),
    ("slurmstepd", Victim::Host("slurmstepd")),
    ("slurmd", Victim::Slurmd),
    ("slurmctld", Victim::Slurmctld),
    ("node, set down afterwards", Victim::Node),
    ("conmon", Victim::Host("conmon")),
];
const RESIDENT: [(&str, Victim); 19] = [
    ("agentd", Victim::Agentd),
    ("keeper", Victim::Keeper),
    ("near side", Victim::Near),
    ("client", Victim::Client),
    ("client, by SIGSTOP", Victim::StoppedClient),
    ("workstation: agentd, keeper, near side, client", Victim::Workstation),
    ("`enter attach`", Victim::Attach),
    ("sshd of the connection", Victim::AttachHost("sshd")),
    ("slurmstepd of the connection", Victim::AttachHost("slurmstepd")),
    ("packets for less than `silence`", Victim::ShortCut),
    ("packets for longer", Victim::LongCut),
    ("slurmd", Victim::Slurmd),
    ("slurmctld", Victim::Slurmctld),
    ("`enter stay`, outer process", Victim::Outer),
    ("`enter stay`, inner process", Victim::Inner),
    ("agent", Victim::Agent),
    ("slurmstepd of the job", Victim::Host("slurmstepd")),
    ("node, set down afterwards", Victim::Node),
    ("conmon", Victim::Host("conmon")),
];

/// Consequence of a kill for the session.
#[derive(Debug, PartialEq, Eq)]
enum Consequence {
    Continues,
    /// The session is started again with its conversation. The end of the turn has these words.
    Again(&'static str),
    /// The session fails. Its message has these words.
    Fails(&'static str),
}

impl Consequence {
    /// Parses a cell of the table. A dash is a victim that the kind of place does not have.
    fn parse(cell: &'static str) -> Option<Self> {
        let words = |kind: &str| cell.strip_prefix(kind)?.strip_prefix(": `")?.strip_suffix('`');
        match cell {
            "-" => None,
            "continues" => Some(Self::Continues),
            _ => {
                let parsed = words("again").map(Self::Again).or_else(|| words("fails").map(Self::Fails));
                Some(parsed.unwrap_or_else(|| panic!("{cell:?} is no consequence")))
            }
        }
    }
}

/// Returns the victims of a kind of place with their consequences, in the order of the page.
fn rows(level: Level, kind: &str) -> Vec<(Victim, Consequence)> {
    let victims = if level == Level::Connected { &CONNECTED[..] } else { &RESIDENT[..] };
    let table = PAGE.split(HEAD).nth(1 + level as usize).expect("the page has the table");
    let cells = |line: &'static str| line.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>();
    let rows: Vec<Vec<&str>> = table.lines().skip(2).take_while(|line| line.starts_with('|')).map(cells).collect();
    let named: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(named, victims.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "the rows of the page");
    let column = cells(HEAD).iter().position(|head| *head == kind).expect("the table has the column");
    let of_kind =
        |(row, (_, victim)): (&Vec<&'static str>, &(&str, Victim))| Some((*victim, Consequence::parse(row[column])?));
    let found: Vec<_> = rows.iter().zip(victims).filter_map(of_kind).collect();
    assert!(found.len() >= 9, "{kind}: {found:?}");
    found
}

/// The processes of a launch, from the keeper to the agent, in the pids of this machine.
#[derive(Debug)]
struct Processes {
    keeper: u32,
    near: u32,
    client: u32,
    outer: u32,
    inner: u32,
    agent: u32,
    /// The processes above, and the other processes of the agent.
    all: Vec<Identity>,
}

impl Processes {
    async fn of(daemon: &Daemon, session: &Session) -> Self {
        let keeper = session.view().await.status.keeper_pid.expect("it has a keeper");
        let only = |what: &str, found: Vec<u32>| {
            assert_eq!(found.len(), 1, "{what}: {:?}", found.iter().copied().map(process::described));
            found[0]
        };
        // One of both adopts conmon.
        let below = |pid| process::children(pid).into_iter().filter(|&pid| process::name(pid) != "conmon").collect();
        let near = only("the near side", below(keeper));
        let client = only("the client", below(near));
        let agent = only("the agent", process::running(daemon.root(), "scripted-agent", Some("--pidfile")));
        let inner = process::parent(agent).expect("it has a parent");
        let outer = process::parent(inner).expect("it has a parent");
        assert!([inner, outer].iter().all(|&pid| process::described(pid).contains("enter")), "{inner} {outer}");
        let mut all = process::of(daemon.root());
        all.retain(|&pid| pid != daemon.pid());
        all.extend([keeper, near, client, outer, inner, agent]);
        all.extend(process::children(client));
        let all = all.into_iter().filter_map(Identity::of).collect();
        Self { keeper, near, client, outer, inner, agent, all }
    }

    /// Returns the process on the place that connects the client with the parent of the agent.
    fn attach(session: &Session) -> u32 {
        let words = format!("enter attach agentd-{}-", session.id);
        let is_it = |&pid: &u32| process::name(pid) == "agentd-keeper" && process::described(pid).contains(&words);
        process::all().find(is_it).expect("the client is connected")
    }

    /// Returns the nearest process of the engine above a process on the place.
    fn host(mut pid: u32, name: &str) -> u32 {
        while process::name(pid) != name {
            pid = process::parent(pid).filter(|&parent| parent > 1).unwrap_or_else(|| panic!("no {name} is above"));
        }
        pid
    }

    /// Describes the processes that are alive.
    fn left(&self) -> Vec<String> {
        let is_left = |one: &&Identity| Identity::of(one.pid) == Some(**one) && process::is_alive(one.pid);
        self.all.iter().filter(is_left).map(|one| process::described(one.pid)).collect()
    }
}

/// Returns the whole numbers that the agent printed in a turn. Fails unless they are 1, 2, 3 ...
fn counted(session: &Session, accepted: &PromptAccepted) -> usize {
    let events = session.journal();
    let begun = events.into_iter().filter(|event| event.seq > accepted.after_seq);
    let mut of_turn = Vec::new();
    for event in begun {
        let is_end = ends(&event, &accepted.turn);
        if is_end {
            break;
        }
        of_turn.push(event);
    }
    let text: String = of_turn.iter().filter_map(said).collect();
    let numbers: Vec<usize> = text.lines().map(|line| line.parse().expect("a number")).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len()), "{numbers:?}");
    numbers.len()
}

/// Waits until the agent has printed this many more numbers.
async fn prints_more(session: &Session, accepted: &PromptAccepted, more: usize) {
    let before = counted(session, accepted);
    until("the agent prints more", || counted(session, accepted) >= before + more).await;
}

/// Returns the words that explain the end of the turn: those of the turn, of its launch and of its place.
fn words(session: &Session, accepted: &PromptAccepted) -> String {
    let events = session.journal();
    let end = events.iter().find_map(|event| match &event.body {
        Body::TurnEnded(ended) if ended.turn == accepted.turn => {
            let told = ended.synthetic.as_ref().map(|synthetic| synthetic.detail.clone());
            Some(told.unwrap_or_else(|| format!("{ended:?}")))
        }
        _ => None,
    });
    let lost = events.iter().filter_map(|event| match &event.body {
        Body::PlaceChanged(changed) if matches!(changed.state, PlaceState::Lost | PlaceState::Ended) => {
            Some(format!("{} {:?} {:?}", changed.state.as_str(), changed.reason, changed.message))
        }
        _ => None,
    });
    format!("{} ({})", end.expect("the turn has an end"), lost.collect::<Vec<_>>().join("; "))
}

/// Kills or cuts the victim, and repairs what no session can repair.
async fn kill(
    victim: Victim,
    level: Level,
    engine: &mut Engine,
    daemon: &mut Daemon,
    session: &Session,
    found: &Processes,
) {
    let at = match victim {
        Victim::Agentd => {
            daemon.kill9();
            return daemon.run().await;
        }
        Victim::Keeper => found.keeper,
        Victim::Near => found.near,
        Victim::Client => found.client,
        Victim::StoppedClient => return process::signal_each(&[found.client], Signal::SIGSTOP),
        Victim::Outer => found.outer,
        Victim::Inner => found.inner,
        Victim::Agent => found.agent,
        Victim::Host(name) => Processes::host(found.outer, name),
        Victim::Attach => Processes::attach(session),
        Victim::AttachHost(name) => Processes::host(Processes::attach(session), name),
        Victim::Workstation => {
            let all = [found.keeper, found.near, found.client];
            daemon.kill9();
            process::signal_each(&all, Signal::SIGKILL);
            process::gone(&all).await;
            return daemon.run().await;
        }
        Victim::ShortCut | Victim::LongCut => {
            let Engine::Ssh(far) = engine else { panic!("only a cable can be pulled") };
            far.machine().pull_cable();
            if victim == Victim::ShortCut {
                until("packets are sent again", || far.machine().sends_again()).await;
            } else if level == Level::Connected {
                session.wait_for("the loss is noticed", |view| view.status.phase == Phase::BackingOff).await;
                until("the agent has ended there", || !process::is_alive(found.agent)).await;
            } else {
                session.wait_for("the loss is noticed", |view| placed(view).state == PlaceState::Away).await;
            }
            return far.machine().plug_cable();
        }
        Victim::Node => {
            let Engine::Slurm(slurm) = engine else { panic!("only Slurm has nodes") };
            slurm.kill_node("b");
            slurm.set_down("b").await;
            return slurm.start_node("b");
        }
        Victim::Slurmd | Victim::Slurmctld => {
            let Engine::Slurm(slurm) = engine else { panic!("only Slurm has servers") };
            // The controller forgets jobs that it has not saved.
            slurm.saved(session.id.as_str()).await;
            return kill_server(victim, slurm).await;
        }
    };
    process::kill9(at);
}

async fn kill_server(victim: Victim, slurm: &mut Slurm) {
    if victim == Victim::Slurmctld {
        assert!(slurm.has_controller());
        slurm.kill_controller().await;
        assert!(!slurm.has_controller());
        slurm.start_controller();
        until("the controller answers", || slurm.jobs().contains("RUNNING")).await;
    } else {
        slurm.kill_slurmd("b").await;
        slurm.start_slurmd("b");
    }
}

/// Kills one victim in a turn of a new session, and compares the consequence with that of the page.
async fn comes_true(victim: Victim, level: Level, consequence: &Consequence, engine: &mut Engine, daemon: &mut Daemon) {
    let restart = Some(RestartPolicy::OnFailure);
    let spec = SessionSpec { place: Some("farm".to_owned()), restart, ..daemon.scripted(&[]) };
    let session = daemon.session(&spec).await;
    session.turn("say first").await;
    // A daemon of the agent, which has left its session and its parent.
    session.turn("daemonize").await;
    let accepted = session.prompt("count 1000000 5").await;
    session.wait_for_phase(Phase::Busy).await;
    prints_more(&session, &accepted, 5).await;
    let found = Processes::of(daemon, &session).await;
    let before: Vec<String> = session.journal().iter().map(|event| format!("{event:?}")).collect();

    let begun = Instant::now();
    kill(victim, level, engine, daemon, &session, &found).await;
    match consequence {
        Consequence::Continues => {
            prints_more(&session, &accepted, 5).await;
            session.post("/cancel", &json!({})).await;
            assert_eq!(session.end_of(&accepted).await.ended.stop_reason.as_deref(), Some("cancelled"));
        }
        Consequence::Again(_) => {
            let again = |view: &agentd_api::session::SessionView| {
                assert!(!view.status.phase.is_over(), "{victim:?}: {:?}", view.status);
                view.status.phase == Phase::Idle && view.status.launches > 1
            };
            session.wait_for(&format!("{victim:?}: the session runs again"), again).await;
            assert!(!process::is_alive(found.agent), "{victim:?}: two agents run");
        }
        Consequence::Fails(_) => drop(session.wait_for_phase(Phase::Failed).await),
    }
    let took = begun.elapsed();
    let told = if *consequence == Consequence::Continues { String::new() } else { words(&session, &accepted) };
    eprintln!("{victim:?}: {consequence:?} after {took:?}: {told}");
    assert!(took < BOUND, "{victim:?}: {took:?}");
    if let Consequence::Again(expected) | Consequence::Fails(expected) = consequence {
        assert!(told.contains(expected), "{victim:?}: {told}");
    }

    counted(&session, &accepted);
    let after: Vec<String> = session.journal().iter().map(|event| format!("{event:?}")).collect();
    assert!(after.starts_with(&before), "{victim:?}: the journal has lost records");
    if !matches!(consequence, Consequence::Fails(_)) {
        let remembered = session.turn("remember").await.text;
        assert!(remembered.contains("say first"), "{victim:?}: {remembered}");
        let launches = if *consequence == Consequence::Continues { 1 } else { 2 };
        assert_eq!(session.view().await.status.launches, launches, "{victim:?}");
        session.stop().await;
    }
    engine.empty().await;
    until(&format!("{victim:?}: no process is left: {:?}", found.left()), || found.left().is_empty()).await;
    until("only the daemon is left", || process::of(daemon.root()) == [daemon.pid()]).await;
    fs::remove_file(daemon.pid_file()).unwrap();
}

/// Kills each victim of a kind of place. Each has a session of its own.
async fn all_come_true(level: Level, kind: &str, mut engine: Engine) {
    let mut daemon = engine.daemon(&[paths::programs()], |_| level.keys(kind)).await;
    for (victim, consequence) in rows(level, kind) {
        comes_true(victim, level, &consequence, &mut engine, &mut daemon).await;
    }
}

async fn slurm() -> Option<Engine> {
    let (node_timeout, kill_wait) = (Duration::from_secs(8), Duration::from_secs(2));
    Slurm::boot(Options { node_timeout, kill_wait, ..Options::default() }).await.map(Engine::Slurm)
}

#[tokio::test]
async fn each_process_of_a_session_on_another_machine_can_be_killed_in_a_turn() {
    let Some(far) = Far::on_a_cable(Login::Root, "").await else { return };
    all_come_true(Level::Connected, "ssh", Engine::Ssh(far)).await;
}

#[tokio::test]
async fn each_process_of_a_session_in_a_job_of_slurm_can_be_killed_in_a_turn() {
    let Some(engine) = slurm().await else { return };
    all_come_true(Level::Connected, "slurm", engine).await;
}

#[tokio::test]
async fn each_process_of_a_session_in_a_container_can_be_killed_in_a_turn() {
    let Some(engine) = Engine::container() else { return };
    all_come_true(Level::Connected, "container", engine).await;
}

#[tokio::test]
async fn each_process_of_a_session_that_stays_on_another_machine_can_be_killed_in_a_turn() {
    let Some(far) = Far::on_a_cable(Login::Root, "").await else { return };
    all_come_true(Level::Resident, "ssh", Engine::Ssh(far)).await;
}

#[tokio::test]
async fn each_process_of_a_session_that_stays_in_a_job_of_slurm_can_be_killed_in_a_turn() {
    let Some(engine) = slurm().await else { return };
    all_come_true(Level::Resident, "slurm", engine).await;
}

#[tokio::test]
async fn each_process_of_a_session_that_stays_in_a_container_can_be_killed_in_a_turn() {
    let Some(engine) = Engine::container() else { return };
    all_come_true(Level::Resident, "container", engine).await;
}
