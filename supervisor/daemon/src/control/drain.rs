//! Draining: begun, undone, and how far it is.

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::handlers::{Answer, bounded, wait};
use super::json;
use super::router::Context;

/// `POST` begins it, `DELETE` undoes it, `GET` tells; `?wait=SECONDS` until every session is stopped.
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
