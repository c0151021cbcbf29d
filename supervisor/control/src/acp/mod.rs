//! The Agent Client Protocol over HTTP and WebSocket (draft "Streamable HTTP & WebSocket Transport" of the protocol).
//!
//! ```text
//! client ── POST, GET, DELETE /acp ── connection ── service (agentctl acp, in this process) ── endpoint ── session
//! ```
//!
//! A connection outlives its streams. A client that comes back names its last event in `Last-Event-ID`. The messages
//! after it are still kept, or they are read from the journals again, also by a later daemon.
//!
//! Not responsible for the messages: the service answers them.

mod connection;
mod cursor;
mod outbox;
mod websocket;

use std::fmt;
use std::io;
use std::sync::Arc;

use agentd_api::acp::{AcpOptions, Outgoing};
use agentd_api::route::{PrerequisiteWait, Within};
use agentd_api::{Call, Code, Problem};
use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

pub use self::connection::Hub;
use self::connection::{Connection, OWN};
use self::cursor::Cursor;
use self::outbox::Scope;
use super::handlers::{self, Answer};
use super::router::Context;
use super::stream::{BEAT, HEARTBEAT};
use super::{Body, full};
use crate::request_body::RequestBody;

/// Makes a connection to this endpoint. The endpoint takes its calls as the owner's.
pub type Dial = Arc<dyn Fn() -> DuplexStream + Send + Sync>;

/// The two directions of a client's messages.
#[derive(Debug)]
pub struct AcpPipe {
    /// Takes the client's messages, one JSON document each. Dropping it ends the service, and no session.
    pub lines: mpsc::Sender<Vec<u8>>,
    /// Messages for the client, in their order.
    pub messages: mpsc::Receiver<Outgoing>,
}

/// An agent of the Agent Client Protocol, for the clients of `/acp`.
pub trait AcpService: fmt::Debug + Send + Sync {
    /// Begins to serve a client, with calls over `dial`.
    ///
    /// # Errors
    ///
    /// A resource of the system is missing.
    fn serve(&self, options: AcpOptions, dial: Dial) -> io::Result<AcpPipe>;
}

const CONNECTION: HeaderName = HeaderName::from_static("acp-connection-id");
const SESSION: HeaderName = HeaderName::from_static("acp-session-id");

/// Methods for which the client must name the session in the header too.
const OF_SESSION: &[&str] = &[
    "session/cancel",
    "session/close",
    "session/delete",
    "session/load",
    "session/prompt",
    "session/resume",
    "session/set_config_option",
    "session/set_mode",
    "session/set_model",
];

/// Query of each route: the options of new sessions, which count when the connection begins.
#[derive(Debug)]
struct Query {
    agent: Option<String>,
    wait: Option<PrerequisiteWait>,
    force: Option<bool>,
    degraded: Option<bool>,
}

impl Query {
    fn options(self) -> Result<AcpOptions, Problem> {
        let agent = self.agent.map(|agent| {
            agent.parse().map_err(|error| {
                Problem::new(Code::InvalidId, format!("agent={agent:?} is no name of an agent: {error}"))
                    .hint("`agentctl agents` lists the agents")
            })
        });
        Ok(AcpOptions {
            agent: agent.transpose()?,
            wait: self.wait.map(|Within(wait)| wait),
            force: self.force.unwrap_or(false),
            degraded: self.degraded.unwrap_or(false),
        })
    }
}

/// The fields of a message that concern its way.
#[derive(Debug, Deserialize)]
struct Message<'a> {
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Option<Params>,
}

#[derive(Debug, Default, Deserialize)]
struct Params {
    #[serde(default, rename = "sessionId")]
    session: Option<Value>,
}

/// Implements the routes of `/acp`.
pub(super) async fn answer(context: &Context, call: Call, request: Request<RequestBody>) -> Answer {
    match call {
        Call::AcpSend { agent, wait_for_prerequisites: wait, force, degraded } => {
            send(context, Query { agent, wait, force, degraded }, request).await
        }
        Call::AcpStream { agent, wait_for_prerequisites: wait, force, degraded } => {
            stream(context, Query { agent, wait, force, degraded }, request).await
        }
        _ => end(context, request.headers()),
    }
}

/// Implements `POST /acp`.
async fn send(context: &Context, query: Query, request: Request<RequestBody>) -> Answer {
    let headers = request.headers().clone();
    let kind = text(&headers, &CONTENT_TYPE).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(Code::UnsupportedMediaType, format!("the Content-Type is {kind:?}"))
            .hint("send one message as application/json"));
    }
    let limits = &context.generation.config.limits;
    let body = handlers::whole(request.into_body(), limits.prompt, limits.body_time.0).await?;
    let malformed = |why: String| {
        Problem::new(Code::MalformedRequest, format!("the body is no message of the protocol: {why}"))
            .hint("send one JSON-RPC message in each request")
    };
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(malformed("it is not a map".to_owned()));
    }
    let message: Message<'_> = serde_json::from_slice(&body).map_err(|error| malformed(error.to_string()))?;
    let id = text(&headers, &CONNECTION);
    if message.method.as_deref() == Some("initialize") {
        if id.is_some() {
            return Err(Problem::new(Code::InvalidRequest, "the connection is initialized already")
                .hint("send initialize without the header Acp-Connection-Id, for a new connection"));
        }
        message.id.ok_or_else(|| malformed("initialize has no id".to_owned()))?;
        return initialize(context, query, body).await;
    }
    let connection = find(context, id)?;
    check_session(&message, text(&headers, &SESSION))?;
    if !connection.send(body).await {
        return Err(no_connection(connection.id()));
    }
    Ok(accepted())
}

/// Begins a connection, and answers with the service's answer.
async fn initialize(context: &Context, query: Query, body: Vec<u8>) -> Answer {
    let (connection, answer) = context.acp.begin(query.options()?, Some(body)).await?;
    let mut answer: Value = serde_json::from_slice(&answer)
        .map_err(|error| Problem::new(Code::Internal, format!("the answer to initialize is not JSON: {error}")))?;
    if let Some(result) = answer.get_mut("result").and_then(Value::as_object_mut) {
        result.insert("connectionId".to_owned(), json!(connection.id()));
    }
    let mut response = super::json(&answer)?;
    name(&mut response, &connection);
    Ok(response)
}

/// Checks that the header names the session of the message.
fn check_session(message: &Message<'_>, header: Option<&str>) -> Result<(), Problem> {
    let refused = |detail: String| {
        let hint = "send the header Acp-Session-Id with the sessionId of the message";
        Err(Problem::new(Code::InvalidRequest, detail).hint(hint))
    };
    let Some(method) = &message.method else { return Ok(()) };
    let session = message.params.as_ref().and_then(|params| params.session.as_ref()).and_then(Value::as_str);
    match (session, header) {
        (Some(session), Some(header)) if session != header => {
            refused(format!("Acp-Session-Id is {header:?}, and the message is for {session:?}"))
        }
        (Some(_), None) => refused(format!("the header Acp-Session-Id of {method} is missing")),
        (None, None) if OF_SESSION.contains(&method.as_str()) => {
            refused(format!("the header Acp-Session-Id of {method} is missing"))
        }
        _ => Ok(()),
    }
}

/// Implements `GET /acp`.
async fn stream(context: &Context, query: Query, request: Request<RequestBody>) -> Answer {
    let headers = request.headers();
    if websocket::is_asked(headers) && request.method() == Method::GET {
        let options = query.options()?;
        let accept = websocket::accept(headers)?;
        let (connection, _) = context.acp.begin(options, None).await?;
        let mut response = websocket::upgrade(context, Arc::clone(&connection), &accept, request)?;
        name(&mut response, &connection);
        return Ok(response);
    }
    if !text(headers, &ACCEPT).is_some_and(|accept| accept.contains("text/event-stream") || accept.contains("*/*")) {
        return Err(Problem::new(Code::NotAcceptable, "the answer is a stream of events")
            .hint("send the header Accept: text/event-stream"));
    }
    let connection = find(context, text(headers, &CONNECTION))?;
    if request.method() == Method::HEAD {
        // No stream begins, so a stream that the connection has stays open.
        return Ok(event_stream(full("")));
    }
    let scope: Scope = text(headers, &SESSION).map(Into::into);
    let cursor = text(headers, &HeaderName::from_static("last-event-id")).map(|given| {
        given.parse::<Cursor>().map_err(|_| {
            Problem::new(Code::InvalidRequest, format!("Last-Event-ID is {given:?}, which is no id of an event here"))
                .hint("send the id of an event of /acp unchanged")
        })
    });
    let cursor = cursor.transpose()?;
    let permit = context.stream()?;
    let (own, other): (Option<Cursor>, Option<Cursor>) = match cursor {
        Some(cursor) if cursor.connection == connection.id() => (Some(cursor), None),
        other => (None, other),
    };
    let reader = connection.read(scope.clone(), own.map(|cursor| cursor.number)).map_err(|_| {
        Problem::new(Code::CursorGone, "the messages after this event are no longer kept for the connection")
            .hint("send initialize for a new connection, and this Last-Event-ID with its stream")
    })?;
    if let Some(cursor) = other {
        reopen(context, &connection, &scope, cursor).await;
    }
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _permit = permit;
        loop {
            let event = tokio::select! {
                next = reader.next() => match next {
                    Some((id, line)) => event(&id, &line),
                    None => return,
                },
                () = tokio::time::sleep(HEARTBEAT) => BEAT,
                () = sender.closed() => return,
            };
            if sender.send(io::Result::Ok(Frame::data(event))).await.is_err() {
                return;
            }
        }
    });
    Ok(event_stream(StreamBody::new(ReceiverStream::new(receiver)).boxed_unsync()))
}

fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns a message as a server-sent event.
fn event(id: &str, line: &[u8]) -> Bytes {
    [format!("event: message\nid: {id}\ndata: ").as_bytes(), line, b"\n\n"].concat().into()
}

/// Opens the sessions of an earlier connection in this one. Each replays what came after its last record there. A
/// session that has ended is not started by a stream: the client opens it with `session/load`.
async fn reopen(context: &Context, connection: &Connection, scope: &Scope, cursor: Cursor) {
    let of_stream = |session: &str| scope.as_deref().is_none_or(|scope| scope == session);
    for (name, seq) in cursor.sessions.into_iter().filter(|(session, _)| of_stream(session)) {
        let Ok(session) = context.sessions.find(&name).await else { continue };
        let view = session.view();
        if connection.knows(&name) || view.status.phase.is_over() {
            continue;
        }
        let params = json!({
            "sessionId": name,
            "cwd": view.spec.directory,
            "mcpServers": [],
            "_meta": { "agentd": { "after": seq } },
        });
        let id = format!("{OWN}{name}");
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": "session/load", "params": params });
        connection.send(line.to_string().into_bytes()).await;
    }
}

/// Implements `DELETE /acp`.
fn end(context: &Context, headers: &HeaderMap) -> Answer {
    find(context, text(headers, &CONNECTION))?.end();
    Ok(accepted())
}

fn find(context: &Context, id: Option<&str>) -> Result<Arc<Connection>, Problem> {
    let id = id.ok_or_else(|| {
        Problem::new(Code::InvalidRequest, "the header Acp-Connection-Id is missing")
            .hint("POST initialize returns it in its answer's header")
    })?;
    context.acp.find(id).ok_or_else(|| no_connection(id))
}

fn no_connection(id: &str) -> Problem {
    Problem::new(Code::NoSuchConnection, format!("no connection has the id {id:?}")).hint(
        "POST initialize begins a new connection; a Last-Event-ID of the old one continues its sessions without a gap",
    )
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Adds the id of the connection.
fn name(response: &mut Response<Body>, connection: &Connection) {
    if let Ok(id) = HeaderValue::from_str(connection.id()) {
        response.headers_mut().insert(CONNECTION, id);
    }
}

fn accepted() -> Response<Body> {
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}
