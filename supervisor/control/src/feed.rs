//! Implements `GET /v1/events`: the events of all sessions and of the daemon in one stream.
//!
//! A stream is a cursor. While it keeps up, it sends events from memory, and reads the files otherwise. A client that
//! does not read costs one chunk and one buffer, and delays no other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::event::Body as Record;
use agentd_api::feed::{MARKERS, Notice};
use agentd_api::label::Selector;
use agentd_api::{Code, Problem};
use agentd_caller::CallerClass;
use agentd_feed::{Feed, FeedError, FeedReader, Filter, Item, Start};
use bytes::{Bytes, BytesMut};
use hyper::Request;
use hyper::body::Frame;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::handlers::Answer;
use super::router::Context;
use super::stream::{Format, Sender, Window, last_event};
use crate::request_body::RequestBody;

/// Length of a chunk in bytes, after which the next one begins.
const CHUNK: usize = 256 << 10;
/// Shortest time between two chunks of the only stream. Events of this time are sent together. tokio's timers have
/// whole milliseconds and are never early, so the stream waits for the next one.
const PACE: Duration = Duration::from_micros(500);
/// Addition to that time for each further stream, so that all streams together send at most 125,000 chunks per second.
/// Otherwise many streams occupy the processors, and each event is late.
const PACE_OF_OTHERS: Duration = Duration::from_micros(8);
/// Maximum number of last events with which a stream begins.
const LONGEST: u64 = 10_000;

/// Query keys of the route.
#[derive(Debug, Default)]
pub(super) struct Query {
    pub(super) window: Window,
    pub(super) kind: Option<String>,
    pub(super) session: Option<String>,
    pub(super) label: Option<Selector>,
}

/// Streams the feed.
pub(super) async fn events(context: &Context, query: Query, request: &Request<RequestBody>) -> Answer {
    let (format, (start, follow)) = (Format::of(request), place(query.window, request)?);
    let stream = if follow { context.stream()? } else { None };
    let feed = Arc::clone(&context.feed);
    // Without a reader the feed gathers events, and a state that lasts for a shorter time has no event.
    let position = feed.watch();
    feed.catch_up().await;
    let filter = filter(context, query)?;
    let opened = Arc::clone(&feed);
    let opened = agentd_host::work::blocking(move || opened.open((start, follow), &filter)).await;
    let (reader, begin) = opened
        .map_err(|error| Problem::new(Code::Internal, error.to_string()))?
        .map_err(|error| unavailable(&error))?;
    let (sender, receiver) = mpsc::channel(1);
    let closing = context.closing.clone();
    let heartbeat = context.generation.config.control.heartbeat.0;
    tokio::spawn(async move {
        let _stream = stream;
        let mut pump = Pump { reader, format, heartbeat, sender: &sender };
        let pumping = async {
            if pump.send(&begin).await.is_ok() {
                let _ = pump.run(&feed, position, follow).await;
            }
        };
        tokio::select! {
            () = closing.cancelled() => {}
            () = pumping => {}
        }
    });
    Ok(format.response(receiver))
}

/// Returns the position at which the stream begins, and whether the stream continues after the stored events.
fn place(window: Window, request: &Request<RequestBody>) -> Result<(Start, bool), Problem> {
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    if let Some((before, limit)) = window.page()? {
        return Ok((Start::Before(before, count(limit)), false));
    }
    let follow = window.follow.unwrap_or(true);
    let start = match (last_event(request, "cursor")?.or(window.after), window.last) {
        (Some(after), _) => Start::After(after),
        (None, Some(last)) if last > LONGEST => {
            return Err(Problem::new(Code::InvalidRequest, format!("the stream cannot begin with {last} last events"))
                .hint(format!(
                    "last is a whole number from 0 to {LONGEST}; read earlier events in pages with `before`"
                )));
        }
        (None, Some(last)) => Start::Last(count(last)),
        (None, None) => Start::Now,
    };
    Ok((start, follow))
}

/// Returns the filter of the query, and of what the caller may see.
fn filter(context: &Context, query: Query) -> Result<Filter, Problem> {
    let given = query.session;
    let unknown = || {
        let detail = format!("there is no session {:?}", given.as_deref().unwrap_or_default());
        Problem::new(Code::NoSuchSession, detail).hint(agentd_api::hint::LIST_SESSIONS)
    };
    // A removed session is known only by its id.
    let id = given.as_ref().map(|given| context.sessions.id_of(given).unwrap_or_else(|| given.clone()));
    let session = id.map(|id| id.parse().map_err(|_| unknown())).transpose()?;
    let kinds = query.kind.as_deref().map(kinds).transpose()?.unwrap_or_default();
    let guest = match &context.caller.who {
        CallerClass::Guest(session) => Some(session.clone()),
        // Strangers are refused before.
        CallerClass::Owner | CallerClass::Stranger(_) => None,
    };
    let filter = Filter { kinds, session, label: query.label, guest };
    // A stream of a session that is not there would stay silent. A guest learns nothing about a foreign session.
    if context.feed.has(&filter) { Ok(filter) } else { Err(unknown()) }
}

/// Parses the key `kind`. A text that fits no kind is refused, since such a stream would stay silent.
fn kinds(text: &str) -> Result<Vec<String>, Problem> {
    let known = || Record::KINDS.iter().chain(Notice::KINDS).chain(MARKERS);
    let mut kinds = Vec::new();
    for wanted in text.split(',').map(str::trim) {
        let is_known = match wanted.strip_suffix('*') {
            Some(beginning) => known().any(|kind| kind.name.starts_with(beginning)),
            None => known().any(|kind| kind.name == wanted),
        };
        if !is_known {
            return Err(Problem::new(Code::InvalidRequest, format!("there is no kind of event {wanted:?}"))
                .hint("kind is a kind, or its beginning and *, or several with commas between: turn.*,session.state"));
        }
        kinds.push(wanted.to_owned());
    }
    Ok(kinds)
}

fn unavailable(error: &FeedError) -> Problem {
    let error: &dyn std::error::Error = error;
    Problem::new(Code::FeedUnavailable, agentd_api::chain(error))
        .hint("check the directory `feed` in agentd's state directory; agentctl events SESSION works without it")
}

/// The client has disconnected, or the files cannot be read.
struct Ended;

/// A stream at work.
struct Pump<'a> {
    reader: FeedReader,
    format: Format,
    heartbeat: Duration,
    sender: &'a Sender,
}

impl Pump<'_> {
    /// Sends events until the client disconnects, or until the present end without `follow`.
    async fn run(&mut self, feed: &Feed, mut position: watch::Receiver<u64>, follow: bool) -> Result<(), Ended> {
        let mut sent = Instant::now();
        loop {
            position.borrow_and_update();
            loop {
                let before = self.reader.cursor();
                let items = match self.reader.next_in_memory() {
                    Some(items) => items,
                    None => self.read_files().await?,
                };
                if !items.is_empty() {
                    self.send(&items).await?;
                    sent = Instant::now();
                }
                if self.reader.cursor() == before {
                    break;
                }
            }
            if !follow {
                return Ok(());
            }
            tokio::time::sleep_until(sent + pace(feed.watchers())).await;
            loop {
                tokio::select! {
                    changed = position.changed() => {
                        changed.map_err(|_| Ended)?;
                        break;
                    }
                    () = self.sender.closed() => return Err(Ended),
                    () = tokio::time::sleep_until(sent + self.heartbeat) => {
                        let beat = Arc::new(self.reader.heartbeat());
                        self.send(&[beat]).await?;
                        sent = Instant::now();
                    }
                }
            }
        }
    }

    async fn read_files(&mut self) -> Result<Vec<Arc<Item>>, Ended> {
        let mut reader = self.reader.clone();
        let read = agentd_host::work::blocking(move || {
            let read = reader.next_in_files();
            (reader, read)
        });
        let Ok((reader, read)) = read.await else { return Err(Ended) };
        self.reader = reader;
        match read {
            Ok(items) => Ok(items),
            Err(error) => {
                // The client's stream breaks, and the client reconnects with its cursor.
                let _ = self.sender.send(Err(io::Error::other(error))).await;
                Err(Ended)
            }
        }
    }

    async fn send(&mut self, items: &[Arc<Item>]) -> Result<(), Ended> {
        let mut items = items.iter();
        loop {
            let chunk = chunk(&mut items, self.format);
            if chunk.is_empty() {
                return Ok(());
            }
            self.sender.send(Ok(Frame::data(chunk))).await.map_err(|_| Ended)?;
        }
    }
}

/// Returns the shortest time between two chunks of a stream, with this number of streams.
fn pace(streams: usize) -> Duration {
    PACE + PACE_OF_OTHERS * u32::try_from(streams.saturating_sub(1)).unwrap_or(u32::MAX)
}

/// Writes the next events, at most about one chunk.
fn chunk<'a>(items: &mut impl Iterator<Item = &'a Arc<Item>>, format: Format) -> Bytes {
    let mut chunk = BytesMut::new();
    while chunk.len() < CHUNK {
        let Some(item) = items.next() else { break };
        match format {
            Format::Ndjson => chunk.extend_from_slice(&item.line),
            Format::Sse => {
                let Item { cursor, kind, line, .. } = item.as_ref();
                chunk.extend_from_slice(format!("id: {cursor}\nevent: {kind}\ndata: ").as_bytes());
                chunk.extend_from_slice(line);
                chunk.extend_from_slice(b"\n");
            }
        }
        chunk.extend_from_slice(b"\n");
    }
    chunk.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_listed_with_commas_and_a_kind_that_no_event_has_is_refused() {
        assert_eq!(kinds("turn.*, session.state").unwrap(), ["turn.*", "session.state"]);
        assert_eq!(kinds("*").unwrap(), ["*"]);
        for wrong in ["", "turn", "turn.*,", "turns.*", "heartbeats"] {
            assert_eq!(kinds(wrong).unwrap_err().code, Code::InvalidRequest, "{wrong:?}");
        }
    }

    #[test]
    fn all_streams_together_send_a_bounded_number_of_chunks() {
        assert_eq!((pace(0), pace(1)), (PACE, PACE));
        for streams in [2_u32, 100, 100_000] {
            let rate = f64::from(streams) / pace(streams as usize).as_secs_f64();
            assert!(rate <= 125_000.0, "{streams} streams send {rate} chunks per second");
        }
    }

    #[test]
    fn a_page_excludes_a_stream() {
        let page = |window: Window| window.page().map_err(|problem| problem.code);
        let before = Window { before: Some(9), ..Window::default() };
        assert_eq!(page(before), Ok(Some((9, 100))));
        assert_eq!(page(Window { limit: Some(3), ..before }), Ok(Some((9, 3))));
        assert_eq!(page(Window::default()), Ok(None));
        for wrong in [
            Window { limit: Some(3), ..Window::default() },
            Window { limit: Some(0), ..before },
            Window { limit: Some(1001), ..before },
            Window { after: Some(1), ..before },
            Window { last: Some(1), ..before },
            Window { follow: Some(true), ..before },
        ] {
            assert_eq!(page(wrong), Err(Code::InvalidRequest), "{wrong:?}");
        }
    }
}
