//! The control endpoint: HTTP/1.1 and HTTP/2 over a unix socket for its owner. If configured, also over TCP for holders
//! of a token, and over a second unix socket for the readers of a group.
//!
//! It checks, converts and delegates. Each request becomes one call on a session or the registry, and the result
//! becomes JSON. No other module knows HTTP, and this one decides nothing about a session. A dropped connection
//! cancels no work.

mod access;
mod acp;
mod agents;
mod audit;
mod audit_log;
mod bulk;
mod children;
mod description;
mod directories;
mod doctor;
mod drain;
mod environment;
mod fair;
mod feed;
mod grant;
mod handlers;
mod hooks;
mod list;
mod metrics;
mod named;
mod note;
mod operations;
mod places;
mod plugins;
mod prerequisites;
mod prune;
mod read_only;
mod readiness;
mod repositories;
mod request_body;
mod room;
mod router;
mod routes;
mod schedules;
mod scripts;
mod secrets;
mod server;
mod session_context;
mod session_spec;
mod snapshots;
mod socket;
mod sparse;
mod stream;
mod tcp;
mod tcp_listener;
mod validation;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};

use agentd_api::{Code, Problem};
use serde::Serialize;

pub use acp::{AcpPipe, AcpService, Dial, Hub};
pub use audit_log::{Audit, TARGET as AUDIT_TARGET};
pub use list::Lists;
pub use operations::Operations;
pub use read_only::{ReadOnlyEndpoint, ReadOnlyError, check_read_only};
pub use routes::{Access, access};
pub use server::EndpointError;
pub use server::{Endpoint, Served};
pub use socket::listen;
pub use tcp_listener::{TcpEndpoint, TcpError, check_token};

/// Body of every response: a document or a stream.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Builds a response with a JSON document. The router sets the status of the route.
fn json<T: Serialize>(document: &T) -> Result<Response<Body>, Problem> {
    let mut bytes = serde_json::to_vec(document).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    bytes.push(b'\n');
    let mut response = Response::new(full(bytes));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

fn problem(problem: &Problem) -> Response<Body> {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut bytes = serde_json::to_vec(problem).unwrap_or_default();
    bytes.push(b'\n');
    let mut response = Response::new(full(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(seconds) = problem.code.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
