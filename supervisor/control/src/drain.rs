//! Begins and undoes a drain, and shows its progress.

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::handlers::{Answer, bounded, wait};
use super::json;
use super::router::Context;

/// `POST` begins a drain, `DELETE` undoes it, `GET` shows its progress. `?wait=SECONDS` waits until every session
/// is stopped.
pub(super) async fn drain(context: &Context, request: &Request<Incoming>) -> Answer {
    let wait = wait(request)?;
    let status = match *request.method() {
        Method::POST => {
            context.sessions.drain(context.requester());
            StatusCode::ACCEPTED
        }
        Method::DELETE => {
            context.sessions.undo_drain();
            StatusCode::OK
        }
        _ => StatusCode::OK,
    };
    if let Some(wait) = wait {
        bounded(&context.closing, wait, context.sessions.drained()).await;
    }
    Ok(json(status, &context.sessions.drain_view()))
}
