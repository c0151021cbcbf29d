//! Makes calls. Each call has its own connection: connections are local and cheap.
//!
//! A failed call is not repeated: prompting twice is worse than an error. Only a request that was refused for lack of
//! capacity is repeated, since it had no effect. Streams continue over several connections: `stream`.

mod forward;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use agentd_api::route::{Typed, Wait, Within};
use agentd_api::{Call, Code, Problem};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, ETAG, HOST, IF_MATCH, IF_NONE_MATCH};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use crate::error::Error;
use crate::stream::Body;
use crate::transport::Way;

/// Time limit of an answer, in addition to the wait that the request asks for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit of repeated attempts while the daemon has no capacity for a further connection.
const CROWDED: Duration = Duration::from_secs(15);
/// Additional time limit of a request that builds an environment, with a login shell and scripts.
pub(crate) const BUILDING: Duration = Duration::from_mins(2);
/// Additional time limit of a reload, which compiles plugins.
pub(crate) const COMPILING: Duration = Duration::from_mins(10);
/// Longest document in bytes. Another program than agentd may send bytes without an end.
const LONGEST: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// Client of the daemon at one address.
#[derive(Debug, Clone)]
pub struct Client {
    way: Way,
    /// The generation of a specification for which calls are made: the header `If-Match`.
    generation: Option<u64>,
    /// The header `Idempotency-Key`.
    key: Option<String>,
    /// The tag of a known answer: the header `If-None-Match`.
    tag: Option<String>,
    /// Time limit of an answer, in addition to the wait that the request asks for.
    patience: Duration,
}

/// Answer of the daemon: the parsed value, and the document unchanged.
#[derive(Debug)]
pub struct Document<T> {
    /// The answer.
    pub value: T,
    /// The answer as the daemon sent it, with the fields that this version does not know.
    pub raw: Bytes,
}

/// A complete answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) tag: Option<String>,
    pub(crate) raw: Bytes,
    content_type: String,
}

impl Client {
    /// Makes calls over the control socket at a path. The daemon need not be there yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self::by(Way::Socket(socket.into()))
    }

    /// Makes calls over this way.
    pub fn by(way: Way) -> Self {
        Self { way, generation: None, key: None, tag: None, patience: PATIENCE }
    }

    /// Sets the time limit of an answer, from the connection to its last byte. The default is 30 s. Calls that wait for
    /// work have their wait in addition.
    #[must_use]
    pub fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Changes a specification only if it has this generation (`If-Match`).
    #[must_use]
    pub fn at_generation(&self, generation: Option<u64>) -> Self {
        Self { generation, ..self.clone() }
    }

    /// Makes a call that may be repeated: the daemon takes a key only once (`Idempotency-Key`).
    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.clone() }
    }

    /// Returns the address of the daemon.
    pub fn way(&self) -> &Way {
        &self.way
    }

    /// Makes a call without a body. The types of the answer come from the table of routes.
    ///
    /// # Errors
    ///
    /// Each variant of [`Error`] but those of an address.
    pub async fn ask<C>(&self, call: C) -> Result<Document<C::Answer>, Error>
    where
        C: Typed<Body = ()>,
        C::Answer: DeserializeOwned,
    {
        self.ask_for(call, Duration::ZERO).await
    }

    /// Makes a call without a body. `wait` extends the time limit.
    ///
    /// # Errors
    ///
    /// As [`Client::ask`].
    pub async fn ask_for<C>(&self, call: C, wait: Duration) -> Result<Document<C::Answer>, Error>
    where
        C: Typed<Body = ()>,
        C::Answer: DeserializeOwned,
    {
        self.fetch(&call.into(), wait).await
    }

    /// Makes a call with a body. `wait` extends the time limit.
    ///
    /// # Errors
    ///
    /// As [`Client::ask`].
    pub async fn send<C>(&self, call: C, body: &C::Body, wait: Duration) -> Result<Document<C::Answer>, Error>
    where
        C: Typed,
        C::Body: Serialize,
        C::Answer: DeserializeOwned,
    {
        self.submit(&call.into(), body, wait).await
    }

    /// Makes a call without a body, and reads the answer as a type of the caller. Sparse lists and calls that are known
    /// at run time only need this.
    ///
    /// # Errors
    ///
    /// As [`Client::ask`].
    pub async fn fetch<T: DeserializeOwned>(&self, call: &Call, wait: Duration) -> Result<Document<T>, Error> {
        document(call, self.call(call, None, wait).await?)
    }

    /// Makes a call with a body, and reads the answer as another type than that of the table.
    ///
    /// # Errors
    ///
    /// As [`Client::ask`].
    pub async fn submit<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        call: &Call,
        body: &B,
        wait: Duration,
    ) -> Result<Document<T>, Error> {
        let body = serde_json::to_vec(body).map_err(Error::Request)?;
        document(call, self.call(call, Some(body), wait).await?)
    }

    /// Makes a call, and discards the answer.
    pub(crate) async fn order(&self, call: &Call, wait: Duration) -> Result<(), Error> {
        self.call(call, None, wait).await.map(drop)
    }

    /// Opens a stream of documents, one a line (NDJSON).
    ///
    /// # Errors
    ///
    /// As [`Client::ask`], within the time limit of an answer. The stream itself has no time limit.
    pub async fn stream(&self, call: &Call) -> Result<Body, Error> {
        let since = Instant::now();
        loop {
            let opened = timeout(self.patience, self.begin(call, None)).await;
            let response = opened.map_err(|_| self.silent(call, self.patience))??;
            if response.status().is_success() {
                let (status, found) = (response.status().as_u16(), content_type(&response));
                if !found.starts_with("application/x-ndjson") {
                    let reason = format!("its content type is {found:?}, not application/x-ndjson");
                    return Err(Error::Answer { call: call.to_string(), status, reason });
                }
                return Ok(Body::new(response.into_body(), call.to_string()));
            }
            let read = timeout(self.patience, collect(call, response)).await;
            let answer = read.map_err(|_| self.silent(call, self.patience))??;
            wait_for_room(refusal(call, &answer), since).await?;
        }
    }

    /// Makes a call for a page, and returns the page with its tag; `None` if the page still has the given tag.
    pub(crate) async fn page(&self, call: &Call, tag: Option<&str>) -> Result<Option<Answer>, Error> {
        let client = Self { tag: tag.map(str::to_owned), ..self.clone() };
        let answer = client.call(call, None, Duration::ZERO).await?;
        Ok((answer.status != StatusCode::NOT_MODIFIED).then_some(answer))
    }

    /// Sends a request, and repeats it while the daemon has no capacity. An unsuccessful answer is an error, unless
    /// a page has not changed.
    async fn call(&self, call: &Call, body: Option<Vec<u8>>, wait: Duration) -> Result<Answer, Error> {
        let since = Instant::now();
        let limit = self.patience.saturating_add(wait);
        loop {
            let answer = async { collect(call, self.begin(call, body.clone()).await?).await };
            let answer = timeout(limit, answer).await.map_err(|_| self.silent(call, limit))??;
            if answer.status.is_success() || (answer.status == StatusCode::NOT_MODIFIED && self.tag.is_some()) {
                return Ok(answer);
            }
            wait_for_room(refusal(call, &answer), since).await?;
        }
    }

    /// Sends a request, and returns the head of the answer.
    async fn begin(&self, call: &Call, body: Option<Vec<u8>>) -> Result<Response<Incoming>, Error> {
        let broken = |source| broken(call.to_string(), source);
        self.way.check(call)?;
        let stream = self.way.connect().await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // The task ends with the response's body. Reading the body reports errors of the connection.
        tokio::spawn(connection);
        let mut request = Request::builder().method(call.route().method().as_str()).uri(call.address());
        request = request.header(HOST, self.way.host());
        request = request.header(ACCEPT, "application/json, application/x-ndjson");
        if let Some(authorization) = self.way.authorization() {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(generation) = self.generation {
            request = request.header(IF_MATCH, format!("\"{generation}\""));
        }
        if let Some(key) = &self.key {
            request = request.header("idempotency-key", key);
        }
        if let Some(tag) = &self.tag {
            request = request.header(IF_NONE_MATCH, tag);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| Error::Unreachable { place: self.way.to_string(), source: io::Error::other(error) })?;
        sender.send_request(request).await.map_err(broken)
    }

    fn silent(&self, call: &Call, limit: Duration) -> Error {
        Error::Silent { place: self.way.to_string(), call: call.to_string(), seconds: limit.as_secs() }
    }
}

pub(crate) fn broken(call: String, source: hyper::Error) -> Error {
    Error::Broken { call, source: io::Error::other(source) }
}

/// Waits until a request refused for lack of capacity may be repeated. Returns every other error, and this
/// error after the limit.
async fn wait_for_room(error: Error, since: Instant) -> Result<(), Error> {
    match error.problem_code().and_then(Code::retry_after) {
        Some(seconds) if since.elapsed() < CROWDED => {
            sleep(Duration::from_secs(seconds.into())).await;
            Ok(())
        }
        _ => Err(error),
    }
}

fn content_type(response: &Response<Incoming>) -> String {
    let value = response.headers().get(CONTENT_TYPE);
    value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).unwrap_or_default()
}

async fn collect(call: &Call, response: Response<Incoming>) -> Result<Answer, Error> {
    let (status, content_type) = (response.status(), content_type(&response));
    let tag = response.headers().get(ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
    let body = Limited::new(response.into_body(), LONGEST).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            return Error::TooLong { call: call.to_string(), limit: LONGEST };
        }
        Error::Broken { call: call.to_string(), source: io::Error::other(error) }
    })?;
    Ok(Answer { status, tag, raw: body.to_bytes(), content_type })
}

pub(crate) fn document<T: DeserializeOwned>(call: &Call, answer: Answer) -> Result<Document<T>, Error> {
    let Answer { status, raw, content_type, .. } = answer;
    let unreadable = |reason| Error::Answer { call: call.to_string(), status: status.as_u16(), reason };
    if !raw.is_empty() && !content_type.starts_with("application/json") {
        return Err(unreadable(format!("its content type is {content_type:?}, not application/json")));
    }
    // An answer without a body is read as `null`.
    let text: &[u8] = if raw.is_empty() { b"null" } else { &raw };
    match serde_json::from_slice(text) {
        Ok(value) => Ok(Document { value, raw }),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

fn refusal(call: &Call, answer: &Answer) -> Error {
    let status = answer.status.as_u16();
    match serde_json::from_slice::<Problem>(&answer.raw) {
        Ok(problem) => Error::Problem { problem: Box::new(problem), raw: answer.raw.clone() },
        Err(error) => Error::Answer { call: call.to_string(), status, reason: error.to_string() },
    }
}

/// Returns the wait of a request, in whole seconds.
pub(crate) fn waiting(wait: Option<Duration>) -> Option<Wait> {
    wait.map(|wait| Within(Duration::from_secs(wait.as_secs())))
}

#[cfg(test)]
mod tests;
