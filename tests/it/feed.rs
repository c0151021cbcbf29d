//! `GET /v1/events`: one stream over all sessions and the daemon, with a cursor that survives restarts.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use agentd_api::SessionId;
use agentd_api::bulk::BulkView;
use agentd_api::feed::{FeedEvent, FeedGone, FeedState, SessionBrief};
use agentd_api::session::{Phase, SessionSpec};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use crate::boundary::children::ask;
use crate::harness::events::Lines;
use crate::harness::{Daemon, Session, ctl::ctl, journal, process, until, within};

/// A client of the feed.
struct Feed(Lines);

impl Feed {
    /// Opens the feed as NDJSON. Returns `None` if no daemon answers.
    async fn open(daemon: &Daemon, query: &str) -> Option<Self> {
        daemon.client.try_stream(&format!("/v1/events?{query}"), &[]).await.map(Self)
    }

    /// Opens the feed at a daemon that runs.
    async fn of(daemon: &Daemon, query: &str) -> Self {
        Self::open(daemon, query).await.unwrap_or_else(|| panic!("no answer to {query}"))
    }

    async fn next(&mut self) -> Option<FeedEvent> {
        let line = self.0.next().await?;
        Some(
            serde_json::from_slice(&line).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&line))),
        )
    }

    /// Returns all events up to and including the first that `last` selects.
    async fn until(&mut self, what: &str, last: impl Fn(&FeedEvent) -> bool) -> Vec<FeedEvent> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("{what}: the stream ended before it"));
            let is_last = last(&event);
            events.push(event);
            if is_last {
                return events;
            }
        }
    }
}

/// Returns the stored events that the query selects.
async fn stored(daemon: &Daemon, query: &str) -> Vec<FeedEvent> {
    let mut feed = Feed::of(daemon, &format!("follow=false&{query}")).await;
    let mut events = Vec::new();
    while let Some(event) = feed.next().await {
        events.push(event);
    }
    events
}

fn kinds(events: &[FeedEvent]) -> Vec<&str> {
    events.iter().map(|event| event.kind.as_str()).collect()
}

fn data<T: serde::de::DeserializeOwned>(event: &FeedEvent) -> T {
    serde_json::from_value(event.data.clone()).unwrap_or_else(|error| panic!("{error}: {event:?}"))
}

fn labelled(daemon: &Daemon, name: &str, team: &str) -> SessionSpec {
    let labels = [("team".to_owned(), team.to_owned())].into();
    SessionSpec { name: Some(name.parse().unwrap()), labels, ..daemon.scripted(&[]) }
}

/// Returns a daemon with these lines behind its configuration.
async fn with(lines: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n{lines}\n"));
    daemon.run().await;
    daemon
}

/// Checks that the events have every record of the sessions once, in the order of the journals and of the cursors.
fn assert_whole(events: &[FeedEvent], daemon: &Daemon, sessions: &[&Session]) {
    let cursors: Vec<u64> = events.iter().map(|event| event.cursor).collect();
    assert!(cursors.is_sorted_by(|a, b| a < b), "the cursors do not rise");
    let mut of: BTreeMap<&SessionId, Vec<(u64, &str)>> = BTreeMap::new();
    for event in events {
        if let (Some(session), Some(seq)) = (&event.session, event.seq) {
            of.entry(session).or_default().push((seq, &event.kind));
        }
    }
    for session in sessions {
        let fed = of.remove(&session.id).unwrap_or_default();
        let journal = journal::parsed(&daemon.state(), &session.id);
        let kept: Vec<(u64, &str)> = journal.iter().map(|event| (event.seq, event.body.kind())).collect();
        assert_eq!(fed, kept[..fed.len()], "a gap or a double in {}", session.id);
        assert!(fed.len() + 3 >= kept.len(), "the feed ends {} records before {}", kept.len() - fed.len(), session.id);
    }
}

#[tokio::test]
async fn every_event_of_every_session_comes_once_while_the_daemon_is_killed_and_replaced() {
    let mut daemon = Daemon::start().await;
    let (first, second) = (daemon.session(&daemon.scripted(&[])).await, daemon.session(&daemon.scripted(&[])).await);
    let turns = [(&first, first.prompt("count 300 4").await), (&second, second.prompt("count 300 4").await)];
    let is_end = |event: &FeedEvent| {
        let ended = |(session, turn): &(&Session, agentd_api::session::PromptAccepted)| {
            event.session.as_ref() == Some(&session.id) && event.data["turn"] == json!(turn.turn)
        };
        event.kind == "turn.ended" && turns.iter().any(ended)
    };
    let (mut seen, mut connections, mut ends) = (Vec::<FeedEvent>::new(), 0, 0);
    while ends < 2 {
        let after = seen.last().map_or(0, |event| event.cursor);
        // A new daemon may still be starting.
        let Some(mut feed) = Feed::open(&daemon, &format!("after={after}")).await else { continue };
        connections += 1;
        for _ in 0..60 {
            let Some(event) = feed.next().await else { break };
            ends += usize::from(is_end(&event));
            seen.push(event);
            if ends == 2 {
                break;
            }
        }
        match connections % 6 {
            3 => {
                daemon.kill9();
                daemon.run().await;
            }
            0 => {
                daemon.terminate().await;
                daemon.run().await;
            }
            _ => {}
        }
    }
    assert!(connections >= 6, "only {connections} connections: the test tests nothing");
    assert!(!kinds(&seen).contains(&"feed.gone"), "{:?}", kinds(&seen));
    assert_whole(&seen, &daemon, &[&first, &second]);
    let started = seen.iter().filter(|event| event.kind == "daemon.started").count();
    let stopped = seen.iter().filter(|event| event.kind == "daemon.stopping").count();
    assert!(started >= 2 && stopped >= 1 && started > stopped, "{started} starts and {stopped} ends in order");
    // The whole feed, read at once from the files, is equal.
    let again = stored(&daemon, "after=0").await;
    assert_eq!(again[..seen.len()], seen[..]);
}

#[tokio::test]
async fn a_stream_without_a_cursor_begins_with_the_state_and_each_change_of_state_follows_its_events() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&labelled(&daemon, "one", "a")).await;
    let mut feed = Feed::of(&daemon, "").await;
    let state = feed.next().await.unwrap();
    assert_eq!(state.kind, "feed.state");
    let sessions = data::<FeedState>(&state).sessions;
    assert_eq!((sessions.len(), &sessions[0].id, sessions[0].phase), (1, &session.id, Phase::Idle));
    assert_eq!((sessions[0].name.as_ref().unwrap().as_str(), sessions[0].labels["team"].as_str()), ("one", "a"));

    let accepted = session.prompt("say hello").await;
    let is_idle = |event: &FeedEvent| event.kind == "session.state" && event.data["phase"] == "idle";
    let events = feed.until("the state after the turn", is_idle).await;
    let at = |kind: &str| kinds(&events).iter().position(|found| *found == kind).unwrap_or_else(|| panic!("{kind}"));
    assert!(at("turn.queued") < at("session.state") && at("turn.ended") < events.len() - 1, "{:?}", kinds(&events));
    let busy = data::<SessionBrief>(&events[at("session.state")]);
    assert_eq!((busy.phase, busy.turn), (Phase::Busy, Some(accepted.turn)));
    assert!(events[0].cursor > state.cursor);

    session.stop().await;
    assert_eq!(daemon.client.call("DELETE", &session.path(""), "").await.status, 204);
    let events = feed.until("the removal", |event| event.kind == "session.removed").await;
    assert_eq!(data::<SessionBrief>(events.last().unwrap()).phase, Phase::Stopped);
    let state = stored(&daemon, "").await;
    assert_eq!(kinds(&state), ["feed.state"]);
    let FeedState { sessions, removed } = data(&state[0]);
    assert_eq!((sessions, removed), (Vec::new(), vec![session.id.clone()]));
    // The records went with the session. Once the last events have left the memory, a marker has their place.
    daemon.terminate().await;
    daemon.run().await;
    let events = stored(&daemon, "after=0").await;
    let gone: Vec<FeedGone> = events.iter().filter(|event| event.kind == "feed.gone").map(data).collect();
    assert!(!gone.is_empty() && gone[0].first_seq == Some(1), "{events:?}");
    assert!(events.iter().all(|event| event.seq.is_none()), "{events:?}");
}

#[tokio::test]
async fn the_filters_choose_kinds_sessions_and_labels_and_a_wrong_filter_is_refused() {
    let daemon = Daemon::start().await;
    let one = daemon.session(&labelled(&daemon, "one", "a")).await;
    let two = daemon.session(&labelled(&daemon, "two", "b")).await;
    one.turn("say x").await;
    two.turn("say y").await;
    let turns = stored(&daemon, "after=0&kind=turn.*").await;
    assert!(turns.iter().all(|event| event.kind.starts_with("turn.")), "{:?}", kinds(&turns));
    assert!([&one, &two].iter().all(|session| turns.iter().any(|event| event.session.as_ref() == Some(&session.id))));
    let several = stored(&daemon, "after=0&kind=turn.ended,session.created").await;
    assert_eq!(several.iter().filter(|event| event.kind == "session.created").count(), 2);
    for query in ["session=two", "label=team=b", &format!("session={}", two.id), "label=team=b,!missing"] {
        let events = stored(&daemon, &format!("after=0&{query}")).await;
        assert!(events.len() > 5, "{query}: {events:?}");
        assert!(events.iter().all(|event| event.session.as_ref() == Some(&two.id)), "{query}: {events:?}");
    }
    let daemons = stored(&daemon, "after=0&kind=daemon.*,configuration.*,audit.*").await;
    assert_eq!(daemons[0].kind, "daemon.started");
    assert!(daemons.iter().any(|event| event.kind == "audit.recorded" && event.data["path"] == "/v1/sessions"));
    let get = async |query: &str| daemon.client.get(&format!("/v1/events?{query}")).await.problem();
    for (query, code) in [
        ("kind=turns.*", "invalid-request"),
        ("session=nobody-here", "no-such-session"),
        ("session=two&label=team=a", "no-such-session"),
        ("last=10001", "invalid-request"),
        ("limit=5", "invalid-request"),
        ("before=9&after=3", "invalid-request"),
        ("follow=perhaps", "invalid-request"),
        ("colour=red", "invalid-request"),
    ] {
        let problem = get(query).await;
        assert_eq!(problem.code.as_str(), code, "{query}");
        assert!(problem.hint.is_some(), "{query}");
    }
}

#[tokio::test]
async fn pages_go_backwards_from_the_last_and_meet_without_a_gap() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("count 40 0").await;
    session.stop().await;
    let all = stored(&daemon, "after=0&kind=agent.out").await;
    assert!(all.len() > 40);
    let mut pages = stored(&daemon, "last=7&kind=agent.out").await;
    assert_eq!(pages, all[all.len() - 7..]);
    while pages.len() < all.len() {
        let query = format!("before={}&limit=16&kind=agent.out", pages[0].cursor);
        let mut page = stored(&daemon, &query).await;
        assert!(page.len() == 16 || page.len() + pages.len() == all.len(), "{}", page.len());
        page.append(&mut pages);
        pages = page;
    }
    assert_eq!(pages, all);
    assert!(stored(&daemon, &format!("before={}&kind=agent.out", all[0].cursor)).await.is_empty());

    // One session's own stream has pages too.
    let journal = session.journal();
    let seqs = async |query: &str| {
        let response = daemon.client.get(&session.path(&format!("/events?{query}"))).await;
        let lines = String::from_utf8(response.body.to_vec()).unwrap();
        let seq = |line: &str| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap();
        lines.lines().map(seq).collect::<Vec<_>>()
    };
    let last = journal.len() as u64;
    assert_eq!(seqs(&format!("before={}&limit=3", last + 1)).await, [last - 2, last - 1, last]);
    assert_eq!(seqs("before=4").await, [1, 2, 3]);
    assert_eq!(seqs("before=1").await, [0_u64; 0]);
    assert_eq!(seqs("before=10&limit=2").await, [8, 9]);
}

#[tokio::test]
async fn a_cursor_that_is_no_longer_kept_gets_a_marker_and_the_state() {
    let daemon = with("[journal]\nkeep_feed = \"64K\"").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let first = stored(&daemon, "after=0").await[0].cursor;
    session.turn("count 3000 0").await;
    let oldest = async || stored(&daemon, "after=0").await[0].cursor;
    // The thread of the feed shortens the files a moment later.
    let mut is_shorter = oldest().await > first;
    for _ in 0..50 {
        if is_shorter {
            break;
        }
        session.turn("count 200 0").await;
        is_shorter = oldest().await > first;
    }
    assert!(is_shorter, "the feed was not shortened");
    for cursor in [1, first, u64::MAX / 2] {
        let events = stored(&daemon, &format!("after={cursor}")).await;
        assert_eq!(kinds(&events)[..2], ["feed.gone", "feed.state"], "after {cursor}");
        let gone: FeedGone = data(&events[0]);
        assert!(gone.after == Some(cursor) && gone.first_cursor > Some(first), "{gone:?}");
        assert_eq!(data::<FeedState>(&events[1]).sessions[0].id, session.id);
    }
    // The last page back ends with the marker too.
    let mut before = oldest().await + 3;
    let page = stored(&daemon, &format!("before={before}&limit=1000")).await;
    assert_eq!(page[0].kind, "feed.gone", "{:?}", kinds(&page));
    before = page.last().unwrap().cursor;
    assert!(before > first);
    let directory = daemon.state().join("feed");
    let size = |directory: &std::path::Path| -> u64 {
        let entries = fs::read_dir(directory).unwrap().flatten();
        entries.map(|entry| entry.metadata().unwrap().len()).sum()
    };
    let era = fs::read_dir(&directory).unwrap().flatten().next().unwrap().path();
    assert!(size(&era) < 512 << 10, "{}", size(&era));
}

#[tokio::test]
async fn a_silent_stream_sends_heartbeats_that_clients_see_in_both_forms() {
    let daemon = with("[control]\nheartbeat = \"200ms\"").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say x").await;
    let mut feed = Feed::of(&daemon, "kind=turn.started").await;
    let state = feed.next().await.unwrap();
    let beat = feed.next().await.unwrap();
    assert_eq!((state.kind.as_str(), beat.kind.as_str()), ("feed.state", "heartbeat"));
    // Events that the filter leaves out move the cursor of the heartbeats on.
    session.turn("say y").await;
    let events = feed.until("the turn", |event| event.kind == "turn.started").await;
    let moved = feed.until("a later cursor", |event| event.cursor > events.last().unwrap().cursor).await;
    assert_eq!(moved.last().unwrap().kind, "heartbeat");

    let mut lines = daemon.client.try_stream("/v1/events", &[("accept", "text/event-stream")]).await.unwrap();
    let mut text = String::new();
    while !text.contains("event: heartbeat\ndata: {") {
        text.push_str(&String::from_utf8(lines.next().await.expect("the stream goes on")).unwrap());
        text.push('\n');
    }
    let before = text.split("event: heartbeat").next().unwrap();
    assert!(before.trim_end().rsplit('\n').next().unwrap().starts_with("id: "), "{text}");
}

#[tokio::test]
async fn server_sent_events_continue_after_the_last_event_id() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say x").await;
    let all = stored(&daemon, "after=0&kind=turn.*").await;
    let headers = [("accept", "text/event-stream"), ("last-event-id", &all[1].cursor.to_string())];
    let path = "/v1/events?follow=false&after=0&kind=turn.*";
    let mut sse = crate::harness::events::Sse(daemon.client.try_stream(path, &headers).await.unwrap());
    for expected in &all[2..] {
        let sent = sse.next().await.expect("the stream goes on");
        assert_eq!((sent.id, &sent.event), (expected.cursor.to_string(), &expected.kind));
        assert_eq!(serde_json::from_str::<FeedEvent>(&sent.data).unwrap(), *expected);
    }
    assert!(sse.next().await.is_none());
}

#[tokio::test]
async fn a_guest_sees_its_own_sessions_and_no_event_of_others_or_of_the_daemon() {
    let daemon = with("[control]\nguests = \"children\"").await;
    let (session, other) = (daemon.session(&daemon.scripted(&[])).await, daemon.session(&daemon.scripted(&[])).await);
    other.turn("say secret-of-another").await;
    let child = json!({ "directory": daemon.work() });
    let (status, child) = ask(&daemon, &session, "POST", "/v1/sessions?wait=60", &child).await;
    assert_eq!(status, 202, "{child}");
    let words =
        ["ask", daemon.client.socket().to_str().unwrap(), "GET", "/v1/events?follow=false&last=100&kind=session.*"];
    let program = crate::harness::quote::quoted(crate::harness::scripted_agent());
    let words = words.map(crate::harness::quote::quoted).join(" ");
    let turn = session.turn(&format!("do {program} {words} null")).await;
    assert!(turn.text.contains(" 200 "), "{}", turn.text);
    assert!(
        turn.text.contains(session.id.as_str()) && turn.text.contains(child["id"].as_str().unwrap()),
        "{}",
        turn.text
    );
    assert!(!turn.text.contains(other.id.as_str()) && !turn.text.contains("daemon.started"), "{}", turn.text);
    let (status, problem) =
        ask(&daemon, &session, "POST", "/v1/bulk/stop", &json!({ "select": { "all": true } })).await;
    assert_eq!((status, &problem["code"]), (403, &json!("in-session")));
    assert_eq!(other.view().await.status.phase, Phase::Idle);
}

#[tokio::test]
async fn a_client_that_does_not_read_costs_little_and_delays_no_other() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let mut stalled = Vec::new();
    for _ in 0..10 {
        let mut stream = UnixStream::connect(daemon.client.socket()).await.unwrap();
        stream.write_all(b"GET /v1/events?after=0 HTTP/1.1\r\nhost: agentd\r\n\r\n").await.unwrap();
        stalled.push(stream);
    }
    let before = process::resident(daemon.pid());
    let mut quick = Feed::of(&daemon, "kind=turn.ended").await;
    for _ in 0..4 {
        session.prompt(&["bigline 200000"; 30].join("\n")).await;
    }
    for _ in 0..4 {
        quick.until("the end of a turn", |event| event.kind == "turn.ended").await;
    }
    let grown = process::resident(daemon.pid()).saturating_sub(before);
    // Ten copies of 24 MB would be 240 MB.
    assert!(grown < 100 << 20, "the daemon grew by {grown} bytes");
    // A stalled client continues where it was.
    let mut stream = stalled.pop().unwrap();
    let (mut total, mut buffer) = (0, vec![0; 1 << 20]);
    while total < 24_000_000 {
        total += within("more of the stream", stream.read(&mut buffer)).await.unwrap();
    }
}

#[tokio::test]
async fn a_feed_that_cannot_be_written_hurts_no_session_and_catches_up() {
    let mut daemon = Daemon::prepare();
    // A file with the name of the directory stops root too.
    fs::write(daemon.state().join("feed"), "in the way").unwrap();
    daemon.configure(|config| format!("{config}\n[control]\nheartbeat = \"200ms\"\n"));
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say x").await;
    let problem = daemon.client.get("/v1/events").await.problem();
    assert_eq!((problem.status, problem.code.as_str()), (503, "feed-unavailable".to_owned()));
    assert!(problem.detail.contains("feed"), "{problem:?}");
    fs::remove_file(daemon.state().join("feed")).unwrap();
    let mut feed = None;
    until("the feed is there", || daemon.state().join("feed").is_dir()).await;
    while feed.is_none() {
        // The thread tries again each second.
        let response = daemon.client.get("/v1/events?follow=false").await;
        if response.status == 200 {
            feed = Some(Feed::of(&daemon, "after=0").await);
        }
    }
    session.turn("say y").await;
    let events = feed.unwrap().until("the turn", |event| event.kind == "turn.ended").await;
    assert!(kinds(&events).contains(&"daemon.started"), "{:?}", kinds(&events));
    let mode = fs::metadata(daemon.state().join("feed")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, Permissions::from_mode(0o700).mode() & 0o777);
}

#[tokio::test]
async fn a_feed_that_was_removed_begins_again_with_the_present_state() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let cursor = stored(&daemon, "last=1").await[0].cursor;
    daemon.terminate().await;
    fs::remove_dir_all(daemon.state().join("feed")).unwrap();
    daemon.run().await;
    let events = stored(&daemon, &format!("after={cursor}")).await;
    assert_eq!(kinds(&events), ["feed.gone", "feed.state"]);
    assert_eq!(data::<FeedState>(&events[1]).sessions[0].id, session.id);
    assert!(events[1].cursor > cursor, "a cursor must never mean another event");
    session.turn("say x").await;
    let events = stored(&daemon, "after=0").await;
    assert!(kinds(&events).contains(&"turn.ended") && !kinds(&events).contains(&"session.created"));
}

#[tokio::test]
async fn the_daemons_own_events_name_configuration_drain_and_calls() {
    let daemon = Daemon::start().await;
    let mut feed = Feed::of(&daemon, "kind=configuration.*,drain.*,audit.*").await;
    daemon.configure(|config| format!("{config}\n[limits]\nqueued_turns = 7\n"));
    assert_eq!(daemon.client.call("POST", "/v1/reload", "").await.status, 200);
    let events = feed.until("the reload", |event| event.kind == "configuration.reloaded").await;
    assert_eq!(events.last().unwrap().data["changed"], json!(["limits.queued_turns"]));
    feed.until("its call", |event| event.data["path"] == "/v1/reload").await;
    daemon.client.call("POST", "/v1/drain", "").await;
    daemon.client.call("DELETE", "/v1/drain", "").await;
    let events = feed.until("the end of the drain", |event| event.kind == "drain.undone").await;
    let begun = events.iter().find(|event| event.kind == "drain.begun").expect("it began");
    assert!(begun.data["by"]["pid"].is_u64(), "{begun:?}");
}

#[tokio::test]
async fn bulk_calls_choose_sessions_by_labels_and_have_one_result_for_each() {
    let daemon = Daemon::start().await;
    let one = daemon.session(&labelled(&daemon, "one", "a")).await;
    let two = daemon.session(&labelled(&daemon, "two", "a")).await;
    let other = daemon.session(&labelled(&daemon, "other", "b")).await;
    let bulk = async |verb: &str, body: Value| daemon.client.post(&format!("/v1/bulk/{verb}"), &body).await;
    let label = json!({ "label": "team=a" });
    for wrong in
        [json!({}), json!({ "label": "a", "all": true }), json!({ "label": "=" }), json!({ "sessions": ["no-such"] })]
    {
        let problem = bulk("stop", json!({ "select": wrong, "wait": true })).await.problem();
        assert!(problem.status < 500 && problem.hint.is_some(), "{wrong}: {problem:?}");
    }
    for session in [&one, &two] {
        session.prompt("ask").await;
        session.wait_for("a question", |view| !view.status.permissions.is_empty()).await;
    }
    let view: BulkView = bulk("answer", json!({ "select": { "all": true }, "answer": "allow" })).await.expect(200);
    assert_eq!((view.results.len(), view.failed), (2, 0), "{view:?}");
    for session in [&one, &two] {
        session.wait_for("no question", |view| view.status.permissions.is_empty()).await;
    }
    let view: BulkView = bulk("remove", json!({ "select": label })).await.expect(200);
    assert_eq!((view.results.len(), view.failed), (2, 2), "active sessions are not removed: {view:?}");
    assert!(view.results.iter().all(|result| result.problem.as_ref().unwrap().code.as_str() == "wrong-phase"));
    let view: BulkView = bulk("stop", json!({ "select": label, "wait": true })).await.expect(200);
    assert_eq!((view.results.len(), view.failed), (2, 0), "{view:?}");
    assert!(view.results.iter().all(|result| result.phase == Some(Phase::Stopped)), "{view:?}");
    assert_eq!(other.view().await.status.phase, Phase::Idle);
    // One of two succeeds, and the other is still there.
    one.resume().await;
    let body = json!({ "select": { "sessions": ["one", "two"] } });
    let view: BulkView = bulk("remove", body).await.expect(200);
    let failed: Vec<bool> = view.results.iter().map(|result| result.problem.is_some()).collect();
    assert_eq!(view.failed, 1, "{view:?}");
    assert_eq!(failed.iter().filter(|failed| **failed).count(), 1);
    assert_eq!(one.view().await.status.phase, Phase::Idle);
    assert_eq!(daemon.client.get(&two.path("")).await.status, 404);
    // Each session has a record in the audit log.
    let audit: Value = daemon.client.get("/v1/audit?session=one").await.json();
    let records = audit["records"].as_array().unwrap();
    assert!(records.iter().any(|record| record["path"] == "/v1/bulk/stop"), "{records:?}");
    let view: BulkView = bulk("stop", json!({ "select": { "all": true }, "wait": true })).await.expect(200);
    assert_eq!((view.results.len(), view.failed), (2, 0), "{view:?}");
    let view: BulkView = bulk("resume", json!({ "select": label })).await.expect(200);
    assert_eq!((view.results.len(), view.failed), (1, 0), "{view:?}");
    one.wait_for_phase(Phase::Idle).await;
}

#[tokio::test]
async fn agentctl_stops_resumes_and_removes_by_labels_and_prints_all_events() {
    let daemon = Daemon::start().await;
    let one = daemon.session(&labelled(&daemon, "one", "a")).await;
    let other = daemon.session(&labelled(&daemon, "other", "b")).await;
    let (status, out, _) = ctl(&daemon, &["stop", "-l", "team=a"]).await.parts();
    assert_eq!((status, out.as_str()), (Some(0), "one stopped\n"));
    assert_eq!(other.view().await.status.phase, Phase::Idle);
    assert_eq!(ctl(&daemon, &["resume", "-l", "team=a"]).await.parts().0, Some(0));
    one.wait_for_phase(Phase::Idle).await;
    let (status, out, _) =
        ctl(&daemon, &["events", "--no-follow", "--last", "500", "--kind", "session.state", "-l", "team=a"])
            .await
            .parts();
    assert_eq!(status, Some(0));
    let events: Vec<FeedEvent> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.len() > 3 && events.iter().all(|event| event.session.as_ref() == Some(&one.id)), "{out}");
    let (status, out, _) = ctl(&daemon, &["events", "--no-follow"]).await.parts();
    assert_eq!((status, out.contains("feed.state")), (Some(0), true), "{out}");
    assert_eq!(ctl(&daemon, &["rm", "-f", "-l", "team=a"]).await.parts().0, Some(0));
    assert_eq!(daemon.client.get(&one.path("")).await.status, 404);
    let (status, _, error) = ctl(&daemon, &["stop", "-l", "team=a"]).await.parts();
    assert_eq!((status, error.contains("no session matches")), (Some(0), true), "{error}");
    for wrong in
        [&["stop"][..], &["stop", "one", "-l", "team=a"], &["events", "one", "--kind", "turn.*"], &["rm", "-l", "=a"]]
    {
        assert_eq!(ctl(&daemon, wrong).await.parts().0, Some(2), "{wrong:?}");
    }
}
