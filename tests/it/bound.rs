//! The size limit of a journal: an agent cannot exceed it, with or without a daemon, and the journal reports omissions.

use std::fs;
use std::time::Instant;

use agentd_api::event::Body;
use agentd_api::session::Phase;
use agentd_api::{Code, Event};

use crate::harness::session::said;
use crate::harness::{Daemon, Session, until, within};

const KEEP: u64 = 500_000;
/// Limit that the keeper enforces: the configured size and two segments, each of which counts as at least 1 MiB.
const BOUND: u64 = KEEP + (2 << 20);
/// Allowance for one read from the agent, `session.json`, and the records of the daemon and the keeper.
const BESIDE: u64 = 300_000;
const LINES: u64 = 12_000;

async fn bounded() -> Daemon {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[journal]\nrotate = 200_000\nkeep_session = {KEEP}\n"));
    daemon.run().await;
    daemon
}

/// Returns the size of the files in the session's directory.
fn length(session: &Session) -> u64 {
    let directory = session.directory();
    let entries = fs::read_dir(directory).expect("the session has a directory").flatten();
    // A file that was removed after it was listed has no length.
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn chunks(events: &[Event]) -> u64 {
    events.iter().filter(|event| said(event).is_some()).count() as u64
}

fn dropped(events: &[Event]) -> u64 {
    let lines = events.iter().filter_map(|event| match &event.body {
        Body::AgentDropped(dropped) => Some(dropped.lines),
        _ => None,
    });
    lines.sum()
}

/// Kills the daemon during the agent's turn, before the flood of output begins.
async fn flooded_without_a_daemon(daemon: &mut Daemon, session: &Session, flood: &str) {
    session.prompt(&format!("count 10 100\n{flood}")).await;
    session.wait_for_phase(Phase::Busy).await;
    daemon.kill9();
}

async fn ends_well(session: &Session) {
    session.wait_for_phase(Phase::Idle).await;
    let mut events = session.events("last=20").await;
    let events = events.until("the turn's end", |event| matches!(event.body, Body::TurnEnded(_))).await;
    let Some(Event { body: Body::TurnEnded(ended), .. }) = events.last() else { panic!("{events:?}") };
    assert_eq!((ended.stop_reason.as_deref(), &ended.synthetic), (Some("end_turn"), &None));
    assert_eq!(session.turn("say goes on").await.text, "goes on");
}

#[tokio::test]
async fn a_flood_is_shortened_while_it_comes_and_the_turn_ends_with_its_answer() {
    let daemon = bounded().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt(&format!("flood {LINES} 1000")).await;
    within("the end of the flood", async {
        loop {
            let length = length(&session);
            assert!(length <= BOUND + BESIDE, "{length} bytes");
            let status = session.view().await.status;
            if status.phase == Phase::Idle && status.last_seq > accepted.after_seq + 100 {
                return;
            }
        }
    })
    .await;
    ends_well(&session).await;
    let gone = daemon.client.get(&session.path("/events?after=1&follow=false")).await;
    assert_eq!((gone.status.as_u16(), gone.problem().code), (410, Code::CursorGone));
}

#[tokio::test]
async fn a_flood_without_a_daemon_stays_within_the_bound_and_every_line_is_kept_or_counted() {
    let mut daemon = bounded().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    flooded_without_a_daemon(&mut daemon, &session, &format!("flood {LINES} 1000")).await;
    until("the agent answers", || {
        let last = session.journal().pop();
        matches!(last.map(|event| event.body), Some(Body::AgentOut(message)) if message.get().contains("end_turn"))
    })
    .await;
    let (length, events) = (length(&session), session.journal());
    assert!(length > KEEP && length <= BOUND + BESIDE, "{length} bytes");
    assert_eq!(chunks(&events) + dropped(&events), LINES + 10);
    assert!(dropped(&events) > LINES / 2, "{} lines were left out", dropped(&events));
    let said = events.iter().filter(|event| matches!(event.body, Body::AgentDropped(_))).count();
    assert_eq!(said, 1, "a run of lines is one record");
    daemon.run().await;
    ends_well(&session).await;
}

#[tokio::test]
async fn an_agent_whose_requests_alone_pass_the_bound_is_not_read_until_a_daemon_is_there() {
    let mut daemon = bounded().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let begun = Instant::now();
    flooded_without_a_daemon(&mut daemon, &session, "flood-requests 6000 1000").await;
    let most = BOUND + (1 << 20);
    until("the journal has all that it takes", || length(&session) >= most).await;
    // The keeper has stopped reading if the journal does not grow for as long as it needed to reach its size.
    let (took, mut held, mut since) = (begun.elapsed(), 0, Instant::now());
    until("the journal grows no more", || {
        let now = length(&session);
        if now != held {
            (held, since) = (now, Instant::now());
        }
        since.elapsed() >= took || held > most + BESIDE
    })
    .await;
    assert!(held <= most + BESIDE, "{held} bytes");
    daemon.run().await;
    ends_well(&session).await;
}

#[tokio::test]
async fn a_journal_that_is_kept_whole_is_kept_whole() {
    let mut daemon = Daemon::prepare();
    let whole = "[journal]\nrotate = 200_000\nkeep_session = \"unlimited\"\n";
    daemon.configure(|config| format!("{config}\n{whole}"));
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("flood 4000 1000").await;
    session.stop().await;
    let events = session.journal();
    assert_eq!((chunks(&events), dropped(&events)), (4000, 0));
}
