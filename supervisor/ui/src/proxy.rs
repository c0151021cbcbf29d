//! Forwards the calls of the page to the daemons of its hosts. Bodies are streamed in both directions, and never kept.
//!
//! When the browser leaves, the connection to the daemon is dropped. When the daemon leaves, the answer ends early.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::channel::{Channel, Sender};
use http_body_util::combinators::MapErr;
use http_body_util::{BodyExt as _, Either, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, StatusCode, Uri};

use agentd_client::Error;

use crate::Host;
use crate::answer::{Body, full};
use crate::refusal::Refusal;

/// First segment of the paths of all hosts.
pub(crate) const PREFIX: &str = "/host/";
/// First segment of the calls that are forwarded.
const CALLS: &str = "/v1/";
/// The only other path that is forwarded: the page shows the durations of plugins.
const METRICS: &str = "/metrics";
/// Number of pieces of a request's body that wait for the daemon.
const PIECES: usize = 4;
/// Maximum time for which the rest of a body is read after an answer that did not need it.
const REST: Duration = Duration::from_secs(5);

/// Sends a request of the page to the daemon that its path names, and returns the answer as it comes. Takes the body if
/// the request is sent.
pub(crate) async fn forward(
    hosts: &[Host],
    request: Request<()>,
    body: &mut Option<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let path = request.uri().path_and_query().map_or("", PathAndQuery::as_str);
    let (name, call) = split(path).ok_or(Refusal::NoSuchPath)?;
    let host = hosts.iter().find(|host| host.name == name);
    let host = host.ok_or_else(|| Refusal::NoSuchHost { name: name.to_owned() })?;
    let uri = call.parse::<Uri>().map_err(|error| Refusal::MalformedRequest { detail: error.to_string() })?;
    let (mut head, ()) = request.into_parts();
    head.uri = uri;
    match host.client.forward(Request::from_parts(head, streamed(body.take()))).await {
        Ok(response) => Ok(response.map(|body| body.map_err(io::Error::other).boxed_unsync())),
        Err(Error::Problem { problem, raw }) => {
            let mut response = full("application/problem+json", raw);
            *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::FORBIDDEN);
            Ok(response)
        }
        Err(error) => Err(Refusal::of_host(&error)),
    }
}

/// Splits `/host/NAME/v1/...` or `/host/NAME/metrics` into the name and the path of the call.
fn split(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix(PREFIX)?;
    let (name, call) = rest.split_at(rest.find('/')?);
    (call == METRICS || call.starts_with(CALLS)).then_some((name, call))
}

/// Body of a request to the daemon.
type Streamed = Either<MapErr<Empty<Bytes>, fn(Infallible) -> hyper::Error>, Channel<Bytes, hyper::Error>>;

/// Passes a body on in a task, which outlives an early answer of the daemon.
fn streamed(body: Option<Incoming>) -> Streamed {
    let Some(body) = body.filter(|body| !body.is_end_stream()) else {
        return Either::Left(Empty::new().map_err(|never| match never {}));
    };
    let (sender, channel) = Channel::new(PIECES);
    tokio::spawn(pass_on(body, sender));
    Either::Right(channel)
}

async fn pass_on(mut body: Incoming, mut sender: Sender<Bytes, hyper::Error>) {
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                if sender.send(frame).await.is_err() {
                    return read_rest(body).await;
                }
            }
            Err(error) => {
                sender.abort(error);
                return;
            }
        }
    }
}

/// Reads and discards the rest of a body, for a limited time. The connection is closed afterwards.
pub(crate) async fn read_rest(mut body: Incoming) {
    let _ = tokio::time::timeout(REST, async { while let Some(Ok(_)) = body.frame().await {} }).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_of_the_interface_are_forwarded() {
        for (path, expected) in [
            ("/host/this/v1/sessions?limit=1", Some(("this", "/v1/sessions?limit=1"))),
            ("/host/lab.example/v1/events", Some(("lab.example", "/v1/events"))),
            ("/host/this/acp", None),
            ("/host/this/metrics", Some(("this", "/metrics"))),
            ("/host/this/metrics/x", None),
            ("/host/this/v1", None),
            ("/host/this", None),
            ("/host//v1/x", Some(("", "/v1/x"))),
            ("/other/this/v1/x", None),
        ] {
            assert_eq!(split(path), expected, "{path}");
        }
    }
}
