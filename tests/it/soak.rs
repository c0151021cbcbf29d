//! Many sessions that count, a daemon that is killed again and again, clients that come and go: nothing is lost, nothing doubled.
//!
//! The scripted agents say 1, 2, 3 ... until they are cancelled and then write down, in a file of their own, what they had said. That
//! is what the journal and each client's recollection are compared with.
//!
//! The seed is printed and can be given again (`AGENTD_SOAK_SEED`); it determines every delay and every client's patience, though
//! not how the kernel schedules them. `AGENTD_SOAK_SESSIONS` and `AGENTD_SOAK_KILLS` say how much: little by default, 50 and 200
//! in `.ci/run`.
//!
//! The pauses between the kills are random on purpose. Nothing is waited for with them: they place the kill somewhere in the daemon's
//! start, its taking over of sessions, or its serving of clients.

use std::fs;
use std::time::Duration;

use agentd_api::session::PromptAccepted;
use agentd_api::{Body, Event, SessionId};
use serde_json::Value;

use crate::harness::random::Random;
use crate::harness::session::{ends, said};
use crate::harness::{Client, Daemon, Session, process, within};

fn size(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |size| size.parse().expect("a size is a number"))
}

/// A client's recollection of one session.
struct Memory {
    cursor: u64,
    values: Vec<u64>,
    connections: u64,
}

/// What a session counted, in the order of the events.
fn value(event: &Event) -> Option<u64> {
    said(event)?.trim().parse().ok()
}

/// Reads a session's events until the end of its last turn: leaves when it has had enough for once, comes back with its cursor, as
/// often as it takes and whether or not there is a daemon.
async fn follow(client: Client, id: SessionId, last: PromptAccepted, mut random: Random) -> Memory {
    let mut memory = Memory { cursor: 0, values: Vec::new(), connections: 0 };
    loop {
        let Some(mut events) = client.try_events(id.as_str(), memory.cursor, random.below(2) == 0).await else {
            // Nobody to ask: a real client tries again after a while, too.
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        memory.connections += 1;
        for _ in 0..=random.below(400) {
            let Some(event) = events.next().await else { break };
            assert_eq!(
                event.seq,
                memory.cursor + 1,
                "{id}: a client that came back at {} got {event:?}",
                memory.cursor
            );
            memory.cursor = event.seq;
            memory.values.extend(value(&event));
            if ends(&event, &last.turn) {
                return memory;
            }
        }
    }
}

/// What the agent wrote down that it had said, turn by turn.
fn said_by_the_agent(daemon: &Daemon, conversation: &str) -> Vec<u64> {
    let file = daemon.root().join(format!("{conversation}.json"));
    let turns: Vec<Value> = serde_json::from_slice(&fs::read(file).expect("the agent keeps its conversation")).unwrap();
    let said = turns.iter().filter(|turn| turn["role"] == "agent").filter_map(|turn| turn["text"].as_str());
    said.flat_map(str::lines).map(|line| line.parse().expect("it only counts")).collect()
}

/// Fails with the place where two accounts differ, and what the journal has there.
fn same(what: &str, expected: &[u64], got: &[u64], journal: &[Event]) {
    let Some(place) = (0..expected.len().max(got.len())).find(|&place| expected.get(place) != got.get(place)) else {
        return;
    };
    let around =
        |values: &[u64]| values[place.saturating_sub(3).min(values.len())..(place + 4).min(values.len())].to_vec();
    let at = journal
        .iter()
        .filter(|event| value(event).is_some())
        .nth(place)
        .map_or(journal.len(), |event| usize::try_from(event.seq).expect("a journal fits in memory"));
    let excerpt: Vec<String> = journal[at.saturating_sub(8)..(at + 6).min(journal.len())]
        .iter()
        .map(|event| format!("{} {} {}", event.seq, event.body.kind(), event.body.to_data()))
        .collect();
    panic!(
        "{what} differs from what the agent said at value {place}: said {:?}, found {:?}; the journal there:\n{}",
        around(expected),
        around(got),
        excerpt.join("\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_agents_count_is_journalled_once_and_seen_once_while_the_daemon_is_killed_again_and_again() {
    let mut random = Random::from_environment("AGENTD_SOAK_SEED");
    let (sessions, kills) = (size("AGENTD_SOAK_SESSIONS", 10), size("AGENTD_SOAK_KILLS", 20));
    let mut daemon = Daemon::start().await;
    // The more sessions, the slower each: some hundred values a second together, so that the machine is busy and not drowned.
    let count = format!("count 1000000 {}", sessions * 2);
    let mut all: Vec<(Session, PromptAccepted, PromptAccepted)> = Vec::new();
    for _ in 0..sessions {
        let session = daemon.session(&daemon.scripted(&[])).await;
        let counting = session.prompt(&count).await;
        // Waits in the queue through every kill, and is to run once, afterwards.
        let waiting = session.prompt("count 20 0").await;
        all.push((session, counting, waiting));
    }
    let mut clients = Vec::new();
    for (session, _, waiting) in &all {
        let follower = follow(daemon.client.clone(), session.id.clone(), waiting.clone(), random.fork());
        clients.push(tokio::spawn(follower));
    }

    for _ in 0..kills {
        daemon.kill9();
        daemon.spawn();
        // Half of the kills hit a daemon that is starting and taking over, half one that serves.
        if random.below(2) == 0 {
            daemon.ready().await;
        }
        tokio::time::sleep(Duration::from_millis(random.below(250))).await;
        daemon.assert_running();
    }
    daemon.kill9();
    daemon.run().await;

    for (session, counting, waiting) in &all {
        daemon.client.call("POST", &session.path("/cancel"), "").await.expect::<Value>(202);
        assert_eq!(session.end_of(counting).await.ended.stop_reason.as_deref(), Some("cancelled"));
        assert_eq!(session.end_of(waiting).await.ended.stop_reason.as_deref(), Some("end_turn"));
    }
    let mut memories = Vec::new();
    for client in clients {
        memories.push(within("a client's end", client).await.expect("a client does not fail"));
    }
    for ((session, ..), memory) in all.iter().zip(&memories) {
        let journal = session.journal();
        let view = session.view().await;
        let said = said_by_the_agent(&daemon, view.status.conversation.as_deref().expect("it has a conversation"));
        let counted: Vec<u64> = journal.iter().filter_map(value).collect();
        same(&format!("the journal of {}", session.id), &said, &counted, &journal);
        same(&format!("what a client saw of {}", session.id), &said, &memory.values, &journal);
        let of = |kind: &str| journal.iter().filter(|event| event.body.kind() == kind).count();
        assert_eq!((of("keeper.started"), of("agent.started"), of("turn.started")), (1, 1, 2), "{}", session.id);
        assert!(said.len() > 20, "{} did not count", session.id);
    }
    let values: usize = memories.iter().map(|memory| memory.values.len()).sum();
    let connections: u64 = memories.iter().map(|memory| memory.connections).sum();
    let recoveries: usize = all
        .iter()
        .map(|(session, ..)| session.journal().iter().filter(|e| matches!(e.body, Body::DaemonRecovered(_))).count())
        .sum();
    eprintln!(
        "{sessions} sessions, {kills} kills: {values} values, {connections} connections, {recoveries} takings over"
    );

    for (session, ..) in &all {
        session.stop().await;
    }
    process::assert_only(&[daemon.pid()], daemon.root(), "something is left");
}
