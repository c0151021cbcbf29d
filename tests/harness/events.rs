//! Reads the stream of a session's events like a client.

use std::collections::VecDeque;

use agentd_api::Event;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::within;

/// Body of a response, line by line.
pub(crate) struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
    whole: VecDeque<Vec<u8>>,
}

impl Lines {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, buffer: Vec::new(), whole: VecDeque::new() }
    }

    /// Returns the next line without its newline, or `None` after the end of the stream, whether regular or broken.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(line) = self.whole.pop_front() {
                return Some(line);
            }
            let frame = within("the next line of the stream", self.body.frame()).await?.ok()?;
            let Ok(data) = frame.into_data() else { continue };
            for byte in data {
                if byte == b'\n' {
                    self.whole.push_back(std::mem::take(&mut self.buffer));
                } else {
                    self.buffer.push(byte);
                }
            }
        }
    }
}

/// Events as NDJSON.
pub(crate) struct Events(pub(crate) Lines);

impl Events {
    pub(crate) async fn next(&mut self) -> Option<Event> {
        let line = self.0.next().await?;
        Some(Event::parse(&line).unwrap_or_else(|error| panic!("{error:?}: {}", String::from_utf8_lossy(&line))))
    }

    /// Returns all events up to and including the first that `last` selects.
    pub(crate) async fn until(&mut self, what: &str, last: impl Fn(&Event) -> bool) -> Vec<Event> {
        within(what, async {
            let mut events = Vec::new();
            loop {
                let event = self.next().await.unwrap_or_else(|| panic!("{what}: the stream ended before it"));
                let done = last(&event);
                events.push(event);
                if done {
                    return events;
                }
            }
        })
        .await
    }
}

/// One event of a server-sent stream (WHATWG HTML, section 9.2).
#[derive(Debug, Default)]
pub(crate) struct ServerSent {
    pub(crate) id: String,
    pub(crate) event: String,
    pub(crate) data: String,
}

/// Events as server-sent events.
pub(crate) struct Sse(pub(crate) Lines);

impl Sse {
    pub(crate) async fn next(&mut self) -> Option<ServerSent> {
        let mut sent = ServerSent::default();
        loop {
            let line = String::from_utf8(self.0.next().await?).expect("an event stream is UTF-8");
            if line.is_empty() {
                if !sent.data.is_empty() {
                    return Some(sent);
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => value.clone_into(&mut sent.id),
                "event" => value.clone_into(&mut sent.event),
                "data" => sent.data.push_str(value),
                "" => {} // a comment: the heartbeat
                other => panic!("a field that the contract does not name: {other:?}"),
            }
        }
    }
}

/// Events in either form.
pub(crate) enum Stream {
    Ndjson(Events),
    Sse(Sse),
}

impl Stream {
    /// Returns the next event, or `None` after the end of the stream, whether regular or broken.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        match self {
            Self::Ndjson(events) => events.next().await,
            Self::Sse(sse) => {
                let sent = sse.next().await?;
                let event = Event::parse(sent.data.as_bytes()).unwrap_or_else(|error| panic!("{error:?}: {sent:?}"));
                assert_eq!(sent.id, event.seq.to_string(), "the id is not the cursor: {sent:?}");
                Some(event)
            }
        }
    }
}
