//! Implements `POST /v1/prune`.

use std::sync::Arc;

use agentd_api::event::Cause;
use agentd_api::prune::{PruneRequest, PruneView};
use hyper::Request;

use super::handlers::{Answer, read, to_the_end};
use super::json;
use super::router::Context;
use crate::request_body::RequestBody;

/// Ids of the sessions that a call removed. The audit log gets a record for each.
#[derive(Debug, Clone)]
pub(super) struct RemovedSessions(pub(super) Vec<String>);

/// Lists the sessions that match, and removes them unless the request is a dry run.
pub(super) async fn prune(context: &Context, request: Request<RequestBody>) -> Answer {
    let request: PruneRequest = read(context, request).await?;
    let (sessions, cause) = (Arc::clone(&context.sessions), Cause::call(context.requester()));
    let view: PruneView = to_the_end(async move { sessions.prune(&request, cause).await }).await?;
    let mut response = json(&view)?;
    if !view.dry_run {
        let removed = view.sessions.iter().map(|session| session.id.clone()).collect();
        response.extensions_mut().insert(RemovedSessions(removed));
    }
    Ok(response)
}
