//! Follows the compact states of all sessions, in a task.
//!
//! The task reconnects by the cursor of the last event, so no change is lost. Heartbeats of the daemon show that a
//! silent stream is alive. Without an event and without a heartbeat the task gives the connection up.

use std::time::Duration;

use agentd_api::SessionId;
use agentd_api::event::InvalidEvent;
use agentd_api::feed::{FEED_STATE, FeedState, Heartbeat, SessionBrief};
use agentd_client::{Absence as _, Client, FeedLine, FeedQuery, FeedStream, Patience};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::one_line;
use crate::error::Error;

/// The kinds of events that change the list. Markers, as `feed.state`, pass every filter.
const KINDS: &str = "session.state,session.removed";
/// Time without any sign of the daemon after which the connection is given up: more than two heartbeats.
const SILENCE: Duration = Duration::from_secs(40);
/// Longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Pause after a stream that the daemon ended in order, and after a refusal.
const PAUSE: Duration = Duration::from_millis(200);
const REFUSED: Duration = Duration::from_secs(5);
/// Number of updates that may wait.
const AHEAD: usize = 256;

/// News of the feed.
#[derive(Debug)]
pub(super) enum Update {
    /// The stream is open. `again` states that it was open before.
    Connected {
        again: bool,
    },
    /// All sessions.
    All(Vec<SessionBrief>),
    Changed(Box<SessionBrief>),
    Removed(SessionId),
    /// The daemon is alive. Its trouble, if any, delays events.
    Alive {
        trouble: Option<String>,
    },
    /// The connection ended or was refused, and the task tries again.
    Away {
        reason: String,
    },
}

/// Follows the feed until the receiver is dropped.
pub(super) fn follow(client: Client) -> mpsc::Receiver<Update> {
    follow_within(client, SILENCE)
}

/// Follows the feed, and connects again after this time without any sign of the daemon.
fn follow_within(client: Client, silence: Duration) -> mpsc::Receiver<Update> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    let query = FeedQuery { kind: Some(KINDS.to_owned()), follow: true, ..FeedQuery::default() };
    let feed = FeedStream::new(client.clone(), query);
    tokio::spawn(Follower { client, feed, sender, silence, was_open: false }.run());
    receiver
}

struct Follower {
    client: Client,
    feed: FeedStream,
    sender: mpsc::Sender<Update>,
    silence: Duration,
    was_open: bool,
}

/// The receiver was dropped.
struct Unread;

/// Reason for the end of a connection.
enum Cut {
    /// The daemon ended the stream in order.
    Ended,
    /// The daemon gave no sign of life.
    Silent,
    Failed(Error),
}

impl Follower {
    async fn run(mut self) {
        let mut patience = Patience::endless(LONGEST_PAUSE);
        loop {
            let Ok(cut) = self.round(&mut patience).await else { return };
            let (reason, pause) = match cut {
                Cut::Ended => ("agentd ended the stream".to_owned(), Some(PAUSE)),
                Cut::Silent => (format!("no sign of agentd for {} s", self.silence.as_secs()), Some(PAUSE)),
                Cut::Failed(error) if error.is_absence() => (agentd_api::chain(&error), None),
                Cut::Failed(error) => (one_line(&error), Some(REFUSED)),
            };
            if self.send(Update::Away { reason }).await.is_err() {
                return;
            }
            match pause {
                Some(pause) => sleep(pause).await,
                None => patience.pause().await,
            }
        }
    }

    async fn send(&self, update: Update) -> Result<(), Unread> {
        self.sender.send(update).await.map_err(|_| Unread)
    }

    /// Follows over one connection, until it ends.
    async fn round(&mut self, patience: &mut Patience) -> Result<Cut, Unread> {
        if let Err(error) = self.feed.open().await {
            return Ok(Cut::Failed(error.into()));
        }
        patience.reset();
        let again = std::mem::replace(&mut self.was_open, true);
        self.send(Update::Connected { again }).await?;
        loop {
            let Ok(next) = timeout(self.silence, self.feed.next()).await else {
                // A stream has its connection, so another stream takes its place.
                self.feed = FeedStream::new(self.client.clone(), self.feed.query.clone());
                return Ok(Cut::Silent);
            };
            match next {
                Ok(Some(line)) => match read(&line) {
                    Ok(update) => self.send(update).await?,
                    Err(error) => return Ok(Cut::Failed(InvalidEvent::Envelope(error).into())),
                },
                Ok(None) => return Ok(Cut::Ended),
                Err(error) => return Ok(Cut::Failed(error.into())),
            }
        }
    }
}

/// An event without its envelope.
#[derive(Deserialize)]
struct Data<T> {
    data: T,
}

fn data<T: DeserializeOwned>(line: &FeedLine) -> Result<T, serde_json::Error> {
    serde_json::from_slice::<Data<T>>(&line.line).map(|event| event.data)
}

/// Reads an event. Every event is a sign of life.
fn read(line: &FeedLine) -> Result<Update, serde_json::Error> {
    Ok(match line.kind.as_str() {
        FEED_STATE => Update::All(data::<FeedState>(line)?.sessions),
        "session.state" => Update::Changed(data(line)?),
        "session.removed" => Update::Removed(data::<SessionBrief>(line)?.id),
        // A later release may write another heartbeat.
        _ => Update::Alive { trouble: data::<Heartbeat>(line).unwrap_or_default().trouble },
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;

    /// Serves the feed. Each connection gets its events and stays open. Returns the first lines of the requests.
    fn serve(socket: &Path, connections: Vec<Vec<&'static str>>) -> Arc<Mutex<Vec<String>>> {
        let (listener, requests) = (UnixListener::bind(socket).unwrap(), Arc::new(Mutex::new(Vec::new())));
        let asked = Arc::clone(&requests);
        thread::spawn(move || {
            let mut open = Vec::new();
            for events in connections {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                asked.lock().unwrap().push(head.next().unwrap_or_default());
                head.take_while(|line| !line.is_empty()).for_each(drop);
                let head =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
                stream.write_all(head.as_bytes()).unwrap();
                for event in events {
                    let event = format!("{{\"time\":\"2026-01-01T00:00:00Z\",{event}}}\n");
                    write!(stream, "{:x}\r\n{event}\r\n", event.len()).unwrap();
                }
                open.push(stream);
            }
            thread::park(); // the last connection stays open
        });
        requests
    }

    #[tokio::test]
    async fn a_silent_connection_is_given_up_and_continued_after_its_last_cursor() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let first = vec![
            r#""cursor":7,"kind":"feed.state","data":{"sessions":[],"removed":[]}"#,
            r#""cursor":8,"kind":"session.state","data":{"id":"k","directory":"/","phase":"busy"}"#,
            r#""cursor":9,"kind":"heartbeat","data":{"trouble":"the disk is full"}"#,
        ];
        let second = vec![r#""cursor":12,"kind":"session.removed","data":{"id":"k","directory":"/","phase":"idle"}"#];
        let requests = serve(&socket, vec![first, second]);
        let mut updates = follow_within(Client::new(&socket), Duration::from_millis(200));
        let mut seen = Vec::new();
        while seen.len() < 7 {
            seen.push(format!("{:?}", updates.recv().await.unwrap()));
        }
        let beginnings =
            ["Connected { again: false", "All(", "Changed(", "Alive { trouble: Some", "Away { reason: \"no sign"];
        let expected = beginnings.into_iter().chain(["Connected { again: true", "Removed("]);
        for (update, expected) in seen.iter().zip(expected) {
            assert!(update.starts_with(expected), "{expected}: {seen:#?}");
        }
        let requests = requests.lock().unwrap();
        assert!(!requests[0].contains("after=") && requests[1].contains("after=9"), "{requests:?}");
    }
}
