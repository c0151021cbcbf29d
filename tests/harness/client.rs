//! HTTP client for the control socket: typed for requests of the contract, and raw for malformed requests.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::problem::Problem;
use agentd_api::reason;
use agentd_api::session::SessionView;
use agentd_client::{Connect, Connecting, Way};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::events::{Events, Lines, Sse, Stream};
use super::{reached, within};

/// Encodes a path as a query value. All characters except the unreserved ones of RFC 3986 are percent-encoded.
pub(crate) fn in_query(path: &Path) -> String {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.iter().fold(String::new(), |mut text, byte| {
        match byte {
            b'-' | b'.' | b'_' | b'~' | b'/' => text.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => text.push(char::from(*byte)),
            byte => write!(text, "%{byte:02X}").expect("a string takes all"),
        }
        text
    })
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) content_type: String,
    pub(crate) location: Option<String>,
    pub(crate) etag: Option<String>,
    pub(crate) body: Bytes,
}

impl Response {
    async fn read(response: hyper::Response<Incoming>) -> Result<Self, hyper::Error> {
        let header =
            |name: &str| response.headers().get(name).map(|value| value.to_str().expect("header text").to_owned());
        let (status, location, etag) = (response.status(), header("location"), header("etag"));
        let content_type = header("content-type").unwrap_or_default();
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Self { status, content_type, location, etag, body })
    }

    pub(crate) fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Parses the response as a problem document.
    pub(crate) fn problem(&self) -> Problem {
        assert_eq!(self.content_type, "application/problem+json", "{self:?}");
        let problem: Problem = self.json();
        assert_eq!(problem.status, self.status.as_u16(), "the document's status is not the answer's: {self:?}");
        problem
    }

    /// Parses the typed body of a response that must have this status.
    pub(crate) fn expect<T: DeserializeOwned>(&self, status: u16) -> T {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        self.json()
    }
}

/// Connects to the socket at a path.
struct Plain(PathBuf);

impl Connect for Plain {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async { Ok(Box::new(UnixStream::connect(&self.0).await?) as _) })
    }

    fn place(&self) -> String {
        self.0.display().to_string()
    }
}

/// Client of one daemon. Each request has its own connection, so that no connection outlives a daemon that a test
/// kills.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    socket: PathBuf,
}

impl Client {
    pub(crate) fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns a client with typed calls. It trusts every listener, since a test may run the daemon as another user.
    pub(crate) fn typed(&self) -> agentd_client::Client {
        agentd_client::Client::by(Way::By(Arc::new(Plain(self.socket.clone())))).within(super::LIMIT)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<hyper::Response<Incoming>, hyper::Error> {
        let answer = self.try_send(request).await;
        answer.unwrap_or_else(|| panic!("no daemon listens on {}", self.socket.display()))
    }

    /// Returns `None` if no daemon listens.
    async fn try_send(&self, request: Request<Full<Bytes>>) -> Option<Result<hyper::Response<Incoming>, hyper::Error>> {
        let stream = UnixStream::connect(&self.socket).await.ok()?;
        let exchange = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            sender.send_request(request).await
        };
        Some(exchange.await)
    }

    /// Sends one request and reads the whole response.
    pub(crate) async fn call(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Response {
        self.try_call(method, path, body).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Like [`Self::call`], for a daemon that may be killed before it answers.
    pub(crate) async fn try_call(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Result<Response, hyper::Error> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "agentd")
            .header("content-type", "application/json")
            .body(Full::new(body.into()))
            .expect("the test wrote a valid request");
        let answer =
            within(&format!("{method} {path}"), async { Response::read(self.send(request).await?).await }).await;
        answer.inspect(|answer| reached::record(method, path, &answer.body))
    }

    /// Sends one request like a client that retries. Returns `None` if no daemon runs, or if it was killed before the
    /// response.
    pub(crate) async fn attempt(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
        key: Option<&str>,
    ) -> Option<Response> {
        self.attempt_with(method, path, body, key.map(|key| ("idempotency-key", key))).await
    }

    /// Like [`Self::attempt`], with a header.
    async fn attempt_with(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
        header: Option<(&str, &str)>,
    ) -> Option<Response> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "agentd")
            .header("content-type", "application/json");
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body.into())).expect("the test wrote a valid request");
        let answer = self.try_send(request).await?.ok()?;
        let answer = Response::read(answer).await.ok()?;
        reached::record(method, path, &answer.body);
        Some(answer)
    }

    /// Changes a session's specification, with the header `If-Match` if given.
    pub(crate) async fn patch(&self, path: &str, change: &Value, if_match: Option<&str>) -> Response {
        let attempt = self.attempt_with("PATCH", path, change.to_string(), if_match.map(|tags| ("if-match", tags)));
        let answer = within(&format!("PATCH {path}"), attempt).await;
        answer.unwrap_or_else(|| panic!("no answer to PATCH {path}"))
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.call("GET", path, Bytes::new()).await
    }

    /// Reads with a header.
    pub(crate) async fn get_with(&self, path: &str, header: (&str, &str)) -> Response {
        let answer = within(path, self.attempt_with("GET", path, Bytes::new(), Some(header))).await;
        answer.unwrap_or_else(|| panic!("no answer to GET {path}"))
    }

    pub(crate) async fn post(&self, path: &str, body: &impl Serialize) -> Response {
        self.call("POST", path, serde_json::to_vec(body).expect("a body is JSON")).await
    }

    /// Writes bytes, and reads the reply until the daemon closes the connection.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = UnixStream::connect(&self.socket).await.expect("the daemon listens");
        // A daemon may answer and close before it has read all bytes.
        stream.write_all(bytes).await.ok();
        let mut answer = Vec::new();
        within("the raw answer", stream.read_to_end(&mut answer)).await.ok();
        reached::record_raw(bytes, &answer);
        answer
    }

    async fn stream(&self, path: &str, headers: &[(&str, &str)]) -> Lines {
        self.try_stream(path, headers).await.unwrap_or_else(|| panic!("{path}: no daemon answers"))
    }

    /// Returns `None` if no daemon answers: it was killed, or has not restarted yet.
    pub(crate) async fn try_stream(&self, path: &str, headers: &[(&str, &str)]) -> Option<Lines> {
        let mut request = Request::get(path).header("host", "agentd");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::default()).expect("the test wrote a valid request");
        let response = within(path, self.try_send(request)).await?.ok()?;
        assert_eq!(response.status(), 200, "{path}");
        Some(Lines::new(response.into_body()))
    }

    /// Opens a session's events as NDJSON. `query` follows the contract: `after=7&follow=false`.
    pub(crate) async fn events(&self, id: &str, query: &str) -> Events {
        Events(self.stream(&format!("/v1/sessions/{id}/events?{query}"), &[]).await)
    }

    /// Like [`Self::events`] and [`Self::sse`], for a daemon that may be down. Opens the events after `cursor` as
    /// NDJSON or as server-sent events.
    pub(crate) async fn try_events(&self, id: &str, cursor: u64, server_sent: bool) -> Option<Stream> {
        if server_sent {
            let headers = [("accept", "text/event-stream"), ("last-event-id", &cursor.to_string())];
            return Some(Stream::Sse(Sse(self.try_stream(&format!("/v1/sessions/{id}/events"), &headers).await?)));
        }
        Some(Stream::Ndjson(Events(self.try_stream(&format!("/v1/sessions/{id}/events?after={cursor}"), &[]).await?)))
    }

    /// Opens a session's events as server-sent events, after `last_event_id` if given.
    pub(crate) async fn sse(&self, id: &str, query: &str, last_event_id: Option<&str>) -> Sse {
        let mut headers = vec![("accept", "text/event-stream")];
        headers.extend(last_event_id.map(|id| ("last-event-id", id)));
        Sse(self.stream(&format!("/v1/sessions/{id}/events?{query}"), &headers).await)
    }

    /// Returns the view of a session. Fails if a condition has a reason that the reference does not list.
    pub(crate) async fn view(&self, id: &str) -> SessionView {
        let view = self.typed().session(id).await.unwrap_or_else(|error| panic!("session {id}: {error:?}")).value;
        for condition in &view.status.conditions {
            let is_listed = reason::ALL.iter().any(|known| known.name == condition.reason);
            assert!(is_listed, "agentd_api::reason lacks the reason of {condition:?}");
        }
        view
    }

    /// Waits until the session's view satisfies `condition`: checks the view, waits for an event, then checks again.
    pub(crate) async fn wait_for(&self, id: &str, what: &str, condition: impl Fn(&SessionView) -> bool) -> SessionView {
        let mut view = self.view(id).await;
        let waiting = async {
            let mut events = self.events(id, &format!("after={}", view.status.last_seq)).await;
            while !condition(&view) {
                assert!(events.next().await.is_some(), "the stream of events ended; the session is {view:#?}");
                view = self.view(id).await;
            }
        };
        let in_time = tokio::time::timeout(super::LIMIT, waiting).await.is_ok();
        assert!(in_time, "{what}: not within {:?}; the session is {:#?}", super::LIMIT, self.view(id).await);
        view
    }
}
