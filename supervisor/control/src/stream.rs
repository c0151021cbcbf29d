//! A session's events, as Server-Sent Events (WHATWG HTML, "Server-sent events") or as lines of JSON.
//!
//! A subscriber is a cursor into the journal file and costs one file descriptor and one buffer. A slow subscriber
//! loses nothing and delays no other. A record is sent after the session's driver has applied it, so a status that
//! the client reads afterwards includes it.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use agentd_api::{Code, Problem};
use agentd_journal::{ReadError, Reader};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::Body;
use super::router::Context;
use crate::request_body::RequestBody;
use agentd_session::{Published, Session};

/// Number of bytes that are read before they are sent.
const CHUNK: usize = 256 << 10;
/// Interval of heartbeats. Proxies and clients give up after a minute of silence.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);
/// A comment of server-sent events, which a client skips.
pub(super) const BEAT: Bytes = Bytes::from_static(b": alive\n\n");

/// Number of events in a page without `limit`.
const PAGE: u64 = 100;
/// Maximum of `limit`.
const LONGEST_PAGE: u64 = 1000;

/// Form of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Sse,
    Ndjson,
}

impl Format {
    /// Returns the form that the request accepts.
    pub(super) fn of(request: &Request<RequestBody>) -> Self {
        let accepts = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        if accepts.contains("text/event-stream") { Self::Sse } else { Self::Ndjson }
    }

    /// Makes the response that streams the frames.
    pub(super) fn response(self, receiver: mpsc::Receiver<Result<Frame<Bytes>, io::Error>>) -> Response<Body> {
        let mut response = Response::new(StreamBody::new(ReceiverStream::new(receiver)).boxed_unsync());
        let kind = match self {
            Self::Sse => "text/event-stream",
            Self::Ndjson => "application/x-ndjson",
        };
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// Query keys that choose a part of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Window {
    pub(super) after: Option<u64>,
    pub(super) last: Option<u64>,
    pub(super) follow: Option<bool>,
    pub(super) before: Option<u64>,
    pub(super) limit: Option<u64>,
}

impl Window {
    /// Returns the position before which a page ends, with the length of the page. `None` if no page is requested.
    pub(super) fn page(self) -> Result<Option<(u64, u64)>, Problem> {
        let refused = |detail: &str, hint: &str| Err(Problem::new(Code::InvalidRequest, detail).hint(hint));
        let Some(before) = self.before else {
            return match self.limit {
                Some(_) => {
                    refused("`limit` is the length of a page, and needs `before`", "use last=N without `before`")
                }
                None => Ok(None),
            };
        };
        if self.after.is_some() || self.last.is_some() || self.follow == Some(true) {
            return refused(
                "`before` requests one page, and excludes `after`, `last` and `follow=true`",
                "request the page alone, then follow from its last event",
            );
        }
        let limit = self.limit.unwrap_or(PAGE);
        if !(1..=LONGEST_PAGE).contains(&limit) {
            let detail = format!("a page of {limit} events is not possible");
            return refused(&detail, &format!("limit is a whole number from 1 to {LONGEST_PAGE}"));
        }
        Ok(Some((before, limit)))
    }
}

/// Position at which a subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// After the event with this sequence number.
    After(u64),
    /// With this number of last events.
    Last(u64),
    /// After the event with this sequence number, or with the oldest that is kept.
    Page(u64),
}

/// Implements `GET /v1/sessions/{id}/events`.
pub(super) async fn events(
    context: &Context,
    session: Session,
    window: Window,
    request: &Request<RequestBody>,
) -> Result<Response<Body>, Problem> {
    let format = Format::of(request);
    let (directory, mut upto) = (session.directory().clone(), session.view().status.last_seq);
    let page = window.page()?;
    let (start, follow) = match page {
        // The page is cut at the oldest record, since a page begins where the reader wants the newest records.
        Some((before, limit)) => {
            upto = upto.min(before.saturating_sub(1));
            (Start::Page(upto.saturating_sub(limit)), false)
        }
        None => (
            start(request, window.after, window.last)?,
            window.follow.unwrap_or(true) && request.method() != Method::HEAD,
        ),
    };
    // The first chunk is read before the response begins: segments can be removed at any time. A status tells
    // about removed events better than a stream that breaks.
    let begin = move || {
        let mut reader = match start {
            Start::After(seq) => Reader::open(&directory, seq),
            Start::Last(count) => Reader::open_last(&directory, count),
            Start::Page(seq) => {
                let oldest = agentd_journal::first_seq(&directory)?;
                Reader::open(&directory, if seq + 1 < oldest { 0 } else { seq })
            }
        }?;
        let (first, broken) = read_chunk(&mut reader, upto, format);
        broken.map_or(Ok((reader, first)), Err)
    };
    let read =
        agentd_host::work::blocking(begin).await.map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    let (reader, first) = match read {
        Ok(read) => read,
        Err(ReadError::Gone { first, .. }) => {
            let detail = format!("the events before {first} were removed");
            let hint = format!("begin with after={}, or with after=0 for all stored events", first - 1);
            return Err(Problem::new(Code::CursorGone, detail).hint(hint));
        }
        Err(error) => {
            // The session may have been removed since the lookup.
            context.sessions.find(session.id().as_str()).await?;
            return Err(Problem::new(Code::Internal, agentd_api::chain(&error)));
        }
    };

    let stream = if follow { context.stream()? } else { None };
    let (sender, receiver) = mpsc::channel(1);
    let closing = context.closing.clone();
    tokio::spawn(async move {
        let _stream = stream;
        tokio::select! {
            () = closing.cancelled() => {}
            () = pump(reader, first, &session, format, (follow, upto), &sender) => {}
        }
    });
    Ok(format.response(receiver))
}

/// Returns the start of the stream. `Last-Event-ID` overrides `?after=`, since a browser that reconnects repeats
/// its first address.
fn start(request: &Request<RequestBody>, after: Option<u64>, last: Option<u64>) -> Result<Start, Problem> {
    if let Some(number) = last_event(request, "sequence number (seq)")? {
        return Ok(Start::After(number));
    }
    Ok(match (after, last) {
        (None, Some(count)) => Start::Last(count),
        (after, _) => Start::After(after.unwrap_or(0)),
    })
}

/// Returns the header `Last-Event-ID`. `number` names the number for messages.
pub(super) fn last_event(request: &Request<RequestBody>, number: &str) -> Result<Option<u64>, Problem> {
    let Some(header) = request.headers().get("last-event-id") else { return Ok(None) };
    let text = header.to_str().unwrap_or("?");
    let parsed = text.parse::<u64>().map_err(|_| {
        Problem::new(Code::InvalidRequest, format!("Last-Event-ID is {text:?}, which is not a {number}"))
            .hint(format!("use the {number} of an event, a whole number from 0"))
    })?;
    Ok(Some(parsed))
}

pub(super) type Sender = mpsc::Sender<Result<Frame<Bytes>, io::Error>>;

/// Sends the first chunk, then all further records. Ends when the client disconnects, when the session is removed,
/// or at the end without `follow`.
///
/// A stream that does not follow ends at the record `end`.
async fn pump(
    mut reader: Reader,
    first: Bytes,
    session: &Session,
    format: Format,
    (follow, end): (bool, u64),
    sender: &Sender,
) {
    let mut published = session.watch();
    if !first.is_empty() && sender.send(Ok(Frame::data(first))).await.is_err() {
        return;
    }
    loop {
        let present = published.borrow_and_update().view.status.last_seq;
        let upto = if follow { present } else { end };
        loop {
            let read = agentd_host::work::blocking(move || {
                let chunk = read_chunk(&mut reader, upto, format);
                (reader, chunk)
            });
            let Ok((returned, (chunk, broken))) = read.await else { return };
            reader = returned;
            let is_empty = chunk.is_empty();
            if !is_empty && sender.send(Ok(Frame::data(chunk))).await.is_err() {
                return;
            }
            if let Some(error) = broken {
                // The client's stream breaks, and the client reconnects with its cursor.
                let _ = sender.send(Err(io::Error::other(error))).await;
                return;
            }
            if is_empty {
                break;
            }
        }
        if !follow || !wait_for_more(&mut published, format, sender).await {
            return;
        }
    }
}

/// Waits for new records and sends heartbeats. Returns `false` when no further record can follow.
async fn wait_for_more(
    published: &mut watch::Receiver<std::sync::Arc<Published>>,
    format: Format,
    sender: &Sender,
) -> bool {
    loop {
        tokio::select! {
            changed = published.changed() => return changed.is_ok(),
            () = sender.closed() => return false,
            () = tokio::time::sleep(HEARTBEAT) => {
                if format == Format::Sse && sender.send(Ok(Frame::data(BEAT))).await.is_err() {
                    return false;
                }
            }
        }
    }
}

/// Reads the next records up to `upto`, at most about one chunk. Also returns the error that ended the reading.
fn read_chunk(reader: &mut Reader, upto: u64, format: Format) -> (Bytes, Option<ReadError>) {
    let mut chunk = BytesMut::with_capacity(reader.ahead().len().min(CHUNK));
    while chunk.len() < CHUNK {
        let line = match reader.next_upto(upto) {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(error) => return (chunk.freeze(), Some(error)),
        };
        match format {
            Format::Ndjson => chunk.extend_from_slice(line.bytes),
            Format::Sse => {
                let parts = line.parts();
                let kind = parts.map_or_else(|| kind_of(line.bytes), |parts| parts.kind.into());
                chunk.extend_from_slice(format!("id: {}\nevent: {kind}\ndata: ", line.seq).as_bytes());
                chunk.extend_from_slice(line.bytes);
                chunk.extend_from_slice(b"\n");
            }
        }
        chunk.extend_from_slice(b"\n");
    }
    (chunk.freeze(), None)
}

/// Returns the kind of a record.
fn kind_of(line: &[u8]) -> Cow<'_, str> {
    #[derive(serde::Deserialize)]
    struct Kind<'a> {
        #[serde(borrow)]
        kind: Cow<'a, str>,
    }
    serde_json::from_slice::<Kind<'_>>(line).map(|kind| kind.kind).unwrap_or_default()
}
