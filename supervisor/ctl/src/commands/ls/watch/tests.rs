//! The watch against a daemon of a few lines, which counts the looks at its list.

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;
use agentd_client::Client;
use agentd_client::{ListQuery, fields};

#[test]
fn the_feed_has_no_talk_of_agents_and_each_kind_that_changes_a_session() {
    let kinds = kinds();
    let has = |kind: &str| kinds.split(',').any(|one| one == kind);
    for wanted in ["session.state", "session.removed", "turn.started", "permission.requested", "title.changed"] {
        assert!(has(wanted), "{wanted} is not in {kinds}");
    }
    assert!(TALK.iter().all(|kind| !has(kind) && Body::KINDS.iter().any(|known| known.name == *kind)));
}

#[test]
fn each_change_of_a_session_is_one_item() {
    let time = "2026-01-01T00:00:00Z";
    let list = |sessions: &[(&str, &str)]| {
        let of = |(id, phase): &(&str, &str)| {
            let document = json!({
                "id": id, "generation": 1, "created": time, "spec": { "directory": "/d" },
                "status": {
                    "phase": phase, "observed_generation": 1, "conditions": [], "launches": 1, "last_seq": 1,
                    "updated": time,
                },
            });
            (serde_json::from_value(document.clone()).unwrap(), document)
        };
        Some(MachineList { sessions: sessions.iter().map(of).collect(), ..MachineList::default() })
    };
    let mut seen = Seen::new(None);
    let mut after = |sessions| {
        seen.list = list(sessions);
        let changes = seen.changes();
        changes.into_iter().map(|(change, one)| format!("{change} {}", one["id"].as_str().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(after(&[("a", "idle"), ("b", "idle")]), ["added a", "added b"]);
    assert_eq!(after(&[("a", "idle"), ("b", "idle")]), [""; 0]);
    assert_eq!(after(&[("b", "busy"), ("c", "idle")]), ["changed b", "added c", "removed a"]);
}

/// A daemon without sessions.
#[derive(Default)]
struct Fake {
    has_no_feed: bool,
    /// Number of answered looks at the list.
    looks: AtomicUsize,
    /// Paths of the requests for the feed.
    asked: Mutex<Vec<String>>,
    /// Open streams.
    feeds: Mutex<Vec<UnixStream>>,
}

impl Fake {
    fn serve(self, socket: &Path) -> Arc<Self> {
        let (fake, listener) = (Arc::new(self), UnixListener::bind(socket).unwrap());
        let served = Arc::clone(&fake);
        thread::spawn(move || listener.incoming().for_each(|stream| served.answer(stream.unwrap())));
        fake
    }

    fn answer(&self, mut stream: UnixStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let path = lines.next().unwrap_or_default().split(' ').nth(1).unwrap_or_default().to_owned();
        lines.take_while(|line| !line.is_empty()).for_each(drop);
        let whole = |status: &str, body: &str| {
            format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        if path.starts_with("/v1/sessions") {
            // Counted first: the watch may be ahead of this thread.
            let look = self.looks.fetch_add(1, Ordering::SeqCst);
            let list = json!({ "sessions": [], "unreadable": [{ "id": look.to_string(), "reason": "r" }] });
            let _ = stream.write_all(whole("200 OK", &list.to_string()).as_bytes());
        } else if self.has_no_feed {
            let body = r#"{"status":404,"code":"no-such-path","detail":"there is no such path"}"#;
            let _ = stream.write_all(whole("404 Not Found", body).as_bytes());
        } else {
            self.asked.lock().unwrap().push(path);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            self.feeds.lock().unwrap().push(stream);
        }
    }

    /// Sends an event over the last stream.
    fn event(&self, cursor: u64) {
        let event = format!("{{\"cursor\":{cursor},\"time\":\"2026-01-01T00:00:00Z\",\"kind\":\"x\",\"data\":{{}}}}\n");
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        self.feeds.lock().unwrap().last_mut().unwrap().write_all(chunk.as_bytes()).unwrap();
    }

    fn looks(&self) -> usize {
        self.looks.load(Ordering::SeqCst)
    }
}

/// Runs a test with a watcher of the daemon.
fn watching<F: Future<Output = ()>>(fake: Fake, test: impl FnOnce(Arc<Fake>, mpsc::Receiver<(usize, Update)>) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let fake = fake.serve(&socket);
    crate::runtime().unwrap().block_on(async {
        let (updates, receiver) = mpsc::channel(16);
        let place = Place::of_client(Client::new(socket));
        let query = FeedQuery { kind: Some(kinds()), follow: true, ..FeedQuery::default() };
        let watcher = Watcher {
            index: 0,
            pages: Pages::new(ListQuery::of(fields(&[]))),
            feed: FeedStream::new(place.client.clone(), query),
            place,
            polls: false,
            turn: Arc::new(Semaphore::new(1)),
            updates,
        };
        let task = tokio::spawn(watcher.run());
        timeout(Duration::from_mins(1), test(fake, receiver)).await.expect("in time");
        task.abort();
    });
}

/// Waits for the next list, and returns the number of the look.
async fn list(updates: &mut mpsc::Receiver<(usize, Update)>) -> usize {
    loop {
        match updates.recv().await {
            Some((_, Update::List(list))) => return list.unreadable[0].id.parse().unwrap(),
            Some((_, Update::Over(error))) => panic!("{error:?}"),
            Some(_) => {}
            None => panic!("the watcher has ended"),
        }
    }
}

#[test]
fn many_events_are_few_looks_and_no_event_is_no_look() {
    watching(Fake::default(), async |fake, mut updates| {
        assert_eq!(list(&mut updates).await, 0);
        let begun = Instant::now();
        for cursor in 1..=2000 {
            fake.event(cursor);
            tokio::task::yield_now().await;
        }
        // The last event is followed by a look.
        let mut seen = list(&mut updates).await;
        while let Ok(next) = timeout(3 * PACE, list(&mut updates)).await {
            seen = next;
        }
        let most = begun.elapsed().as_millis() / PACE.as_millis() + 2;
        assert!(seen >= 1 && seen as u128 <= most, "{seen} looks, not at most {most}");
        assert_eq!(fake.looks(), seen + 1, "without an event nobody looks");
        assert_eq!(fake.asked.lock().unwrap().len(), 1);
    });
}

#[test]
fn a_stream_that_ends_continues_after_its_last_event() {
    watching(Fake::default(), async |fake, mut updates| {
        list(&mut updates).await;
        fake.event(7);
        list(&mut updates).await;
        fake.feeds.lock().unwrap().clear();
        list(&mut updates).await;
        let asked = fake.asked.lock().unwrap().clone();
        assert!(!asked[0].contains("after=") && asked[1].contains("after=7"), "{asked:?}");
        assert!(asked[0].contains("session.state") && !asked[0].contains("agent.out"), "{asked:?}");
    });
}

#[test]
fn a_daemon_without_the_feed_is_asked_again_and_again() {
    watching(Fake { has_no_feed: true, ..Fake::default() }, async |fake, mut updates| {
        assert!(matches!(updates.recv().await, Some((_, Update::Remark(text))) if text.contains("older")));
        list(&mut updates).await;
        list(&mut updates).await;
        assert_eq!(fake.looks(), 2);
    });
}
