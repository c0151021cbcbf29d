//! Streams the events of all sessions and of the daemon (`GET /v1/events`), and continues after the last one.

use agentd_api::Call;
use agentd_api::event::InvalidEvent;
use agentd_api::label::Selector;
use serde::Deserialize;

use super::Body;
use crate::client::Client;
use crate::error::Error;

/// The events of a stream, and its start.
#[derive(Debug, Clone, Default)]
pub struct FeedQuery {
    /// Kinds with commas between; all kinds without it.
    pub kind: Option<String>,
    /// Labels of the sessions whose events are wanted.
    pub label: Option<Selector>,
    /// Cursor after which the stream begins.
    pub after: Option<u64>,
    /// Number of events before the end with which the stream begins, if there is no cursor.
    pub last: Option<u64>,
    /// Whether the stream continues after the present events.
    pub follow: bool,
}

/// An event, as the daemon sent it.
#[derive(Debug)]
pub struct FeedLine {
    /// Kind of the event.
    pub kind: String,
    /// The JSON of the event, without its newline.
    pub line: Vec<u8>,
}

/// The part of an event that the stream reads.
#[derive(Deserialize)]
struct Head {
    cursor: u64,
    kind: String,
}

/// A stream over any number of connections. Each continues after the last event of the connection before.
#[derive(Debug)]
pub struct FeedStream {
    client: Client,
    /// The events of the next connection. The stream moves `after`.
    pub query: FeedQuery,
    open: Option<Body>,
}

impl FeedStream {
    /// Makes a stream without a connection.
    pub fn new(client: Client, query: FeedQuery) -> Self {
        Self { client, query, open: None }
    }

    /// Connects, unless a connection is open.
    pub async fn open(&mut self) -> Result<(), Error> {
        if self.open.is_none() {
            let FeedQuery { kind, label, after, last, follow } = self.query.clone();
            let call = Call::Feed {
                after,
                last: last.filter(|_| after.is_none()),
                follow: Some(follow),
                before: None,
                limit: None,
                kind,
                session: None,
                label,
            };
            self.open = Some(self.client.stream(&call).await?);
        }
        Ok(())
    }

    /// Returns the next event of the open connection; `None` if the daemon ended the stream in order, and without a
    /// connection. After an error the connection is closed. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<FeedLine>, Error> {
        let read = self.read().await;
        if !matches!(read, Ok(Some(_))) {
            self.open = None;
        }
        read
    }

    async fn read(&mut self) -> Result<Option<FeedLine>, Error> {
        let Some(body) = &mut self.open else { return Ok(None) };
        let Some(line) = body.next().await? else { return Ok(None) };
        let head: Head = serde_json::from_slice(&line).map_err(InvalidEvent::Envelope)?;
        self.query.after = Some(head.cursor);
        Ok(Some(FeedLine { kind: head.kind, line }))
    }
}
