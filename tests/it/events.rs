//! The stream of events: history, then live, from any cursor, without gap or double, in both forms.

use agentd_api::event::Body;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, SessionView};
use agentd_api::{Code, Event};

use crate::harness::{Daemon, Session, journal};

/// Returns the lines of the journal on the disk.
fn lines(daemon: &Daemon, session: &Session) -> Vec<String> {
    let journal = std::fs::read_to_string(journal::path(&daemon.state(), &session.id)).expect("the journal is there");
    journal.lines().map(str::to_owned).collect()
}

/// Returns a stopped session whose journal no longer grows. Its last record states that no conversation is open.
async fn quiet(daemon: &Daemon) -> Session {
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("count 20 0").await;
    session.stop().await;
    let is_last = |c: &Condition| c.kind == ConditionType::ConversationReady && c.status == ConditionStatus::False;
    session.wait_for("the journal's last record", |view| view.status.conditions.iter().any(is_last)).await;
    session
}

#[tokio::test]
async fn ndjson_is_the_journal_to_the_byte() {
    let daemon = Daemon::start().await;
    let session = quiet(&daemon).await;
    let response = daemon.client.get(&session.path("/events?follow=false")).await;
    assert_eq!(response.content_type, "application/x-ndjson");
    assert_eq!(response.body, std::fs::read(journal::path(&daemon.state(), &session.id)).unwrap());
}

#[tokio::test]
async fn a_cursor_begins_after_its_record_and_last_counts_from_the_end() {
    let daemon = Daemon::start().await;
    let session = quiet(&daemon).await;
    let lines = lines(&daemon, &session);
    let total = lines.len();
    let get = async |query: String| {
        let response = daemon.client.get(&session.path(&format!("/events?follow=false&{query}"))).await;
        String::from_utf8(response.body.to_vec()).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for after in [0, 1, 7, total - 1, total] {
        assert_eq!(get(format!("after={after}")).await, lines[after..], "after={after}");
    }
    for last in [0, 1, 5, total, total + 100] {
        assert_eq!(get(format!("last={last}")).await, lines[total.saturating_sub(last)..], "last={last}");
    }
}

#[tokio::test]
async fn server_sent_events_carry_seq_kind_and_line_and_continue_after_the_last_event_id() {
    let daemon = Daemon::start().await;
    let session = quiet(&daemon).await;
    let lines = lines(&daemon, &session);
    for from in [0, 1, lines.len() - 3] {
        let id = from.to_string();
        let mut sse = daemon.client.sse(session.id.as_str(), "follow=false", Some(&id)).await;
        for (n, line) in lines.iter().enumerate().skip(from) {
            let sent = sse.next().await.expect("the stream goes on");
            assert_eq!((&sent.data, sent.id), (line, (n + 1).to_string()));
            assert_eq!(sent.event, Event::parse(line.as_bytes()).unwrap().body.kind());
        }
        assert!(sse.next().await.is_none(), "more than the journal has");
    }
}

#[tokio::test]
async fn a_client_that_comes_and_goes_sees_each_record_once_while_the_daemon_is_killed() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("count 300 4").await;
    let mut seen: Vec<Event> = Vec::new();
    let mut connections = 0;
    while !seen.last().is_some_and(|event| crate::harness::session::ends(event, &accepted.turn)) {
        let after = seen.last().map_or(0, |event| event.seq);
        let mut events = session.events(&format!("after={after}")).await;
        connections += 1;
        // In most rounds the client disconnects. In the other rounds the daemon restarts.
        for _ in 0..20 {
            match events.next().await {
                Some(event) => seen.push(event),
                None => break,
            }
            if seen.last().is_some_and(|event| crate::harness::session::ends(event, &accepted.turn)) {
                break;
            }
        }
        if connections % 5 == 0 {
            daemon.kill9();
            daemon.run().await;
        }
    }
    let seqs: Vec<u64> = seen.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "a gap or a double after {connections} connections");
    assert!(connections >= 10, "only {connections} connections: the test tests nothing");
    let journal = session.journal();
    for (seen, kept) in seen.iter().zip(&journal) {
        assert_eq!((seen.time, seen.body.kind()), (kept.time, kept.body.kind()));
    }
}

#[tokio::test]
async fn any_number_of_clients_see_the_same_and_a_slow_one_holds_up_nobody() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let slow = session.events("after=0").await;
    let mut quick = Vec::new();
    for _ in 0..10 {
        quick.push(session.events("after=0").await);
    }
    let accepted = session.prompt("bigline 2000000\ncount 200 0").await;
    let mut lengths = Vec::new();
    for mut events in quick {
        let seen = events.until("the turn's end", |event| crate::harness::session::ends(event, &accepted.turn)).await;
        lengths.push(seen.len());
    }
    assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "{lengths:?}");
    let mut slow = slow;
    let seen = slow.until("the turn's end", |event| crate::harness::session::ends(event, &accepted.turn)).await;
    assert_eq!(seen.len(), lengths[0]);
}

#[tokio::test]
async fn hostile_cursors_are_refused_or_wait_and_never_show_what_is_not_there() {
    let daemon = Daemon::start().await;
    let session = quiet(&daemon).await;
    for cursor in ["-1", "18446744073709551616", "1e3", "x", "%00", "7 ", "0x7"] {
        let path = session.path(&format!("/events?follow=false&after={}", cursor.replace(' ', "%20")));
        let problem = daemon.client.get(&path).await.problem();
        assert_eq!(problem.code, Code::InvalidRequest, "{cursor}: {problem:?}");
    }
    let response = daemon.client.get(&session.path("/events?follow=false&after=18446744073709551615")).await;
    assert!(response.body.is_empty() || response.status == 400, "{response:?}");
}

#[tokio::test]
async fn the_stream_of_a_deleted_session_ends() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let mut events = session.events("after=0").await;
    assert_eq!(daemon.client.call("DELETE", &session.path("?force=true"), "").await.status, 204);
    let mut last = None;
    while let Some(event) = events.next().await {
        last = Some(event);
    }
    assert!(last.is_some(), "nothing was seen of the session");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_nothing() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let accepted = session.prompt("count 100 5").await;
    let mut events = session.events("after=0").await;
    events.until("the turn's start", |event| matches!(event.body, Body::TurnStarted(_))).await;
    drop(events);
    let turn = session.end_of(&accepted).await;
    assert_eq!(turn.ended.stop_reason.as_deref(), Some("end_turn"));

    // A client that disconnects while it waits for a stop has no effect either.
    let waiting = {
        let (client, path) = (daemon.client.clone(), session.path("/stop?wait=60"));
        tokio::spawn(async move { client.call("POST", &path, "").await })
    };
    session
        .wait_for("the stop was heard", |view: &SessionView| !matches!(view.status.phase.as_str(), "idle" | "busy"))
        .await;
    waiting.abort();
    session.wait_for_phase(agentd_api::session::Phase::Stopped).await;
}
