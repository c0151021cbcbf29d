//! Forwards requests of another program, unchanged but for the headers of one connection.

use std::io;

use agentd_api::route::Scope;
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, IF_MATCH,
    IF_NONE_MATCH, PROXY_AUTHENTICATE, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, WWW_AUTHENTICATE,
};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;

use super::{Client, broken};
use crate::error::{Error, Foreign};

/// Headers of a request that the daemon reads. No other is forwarded: the cookie, the host and the origin of a web page
/// belong to the server that forwards.
const OF_REQUEST: [HeaderName; 9] = [
    ACCEPT,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    IF_MATCH,
    IF_NONE_MATCH,
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("last-event-id"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];

/// Headers of an answer that concern one connection, or the client of that connection only.
const OF_CONNECTION: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    SET_COOKIE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    WWW_AUTHENTICATE,
];

impl Client {
    /// Sends a request unchanged, and returns the answer as it comes, whatever its status. Both bodies are streamed,
    /// and nothing is repeated.
    ///
    /// The daemon gets the path, the query, the body, and the headers that it reads. It gets the authorisation of this
    /// client and none of the request. There is no time limit: to give up, drop the future or the answer.
    ///
    /// # Errors
    ///
    /// [`Error::Problem`] for a change over the read-only socket of another user, and the errors of a connection.
    pub async fn forward<B>(&self, request: Request<B>) -> Result<Response<Incoming>, Error>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Foreign>,
    {
        let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
        let call = format!("{} {path}", request.method());
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        self.way.check_scope(&call, if is_read { Scope::Read } else { Scope::Operate })?;
        let stream = self.way.connect().await?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|source| broken(call.clone(), source))?;
        // The task ends with the response's body. Reading the body reports errors of the connection.
        tokio::spawn(connection);
        let (given, body) = request.into_parts();
        let mut request = Request::builder().method(given.method).uri(path).header(HOST, self.way.host());
        if let Some(authorization) = self.way.authorization() {
            request = request.header(AUTHORIZATION, authorization);
        }
        for (name, value) in chosen(&given.headers) {
            request = request.header(name, value);
        }
        let request = request
            .body(body)
            .map_err(|error| Error::Unreachable { place: self.way.to_string(), source: io::Error::other(error) })?;
        let mut response = sender.send_request(request).await.map_err(|source| broken(call, source))?;
        for name in OF_CONNECTION {
            response.headers_mut().remove(name);
        }
        Ok(response)
    }
}

/// Returns the headers of a request that are forwarded.
fn chosen(headers: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &hyper::header::HeaderValue)> {
    headers.iter().filter(|(name, _)| OF_REQUEST.contains(name))
}
