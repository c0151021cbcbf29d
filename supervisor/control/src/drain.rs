//! Begins and undoes a drain, and shows its progress.

use agentd_api::route::Wait;

use super::handlers::{Answer, bounded};
use super::json;
use super::router::Context;

pub(super) async fn begin(context: &Context, wait: Option<Wait>) -> Answer {
    context.sessions.drain(context.requester());
    show(context, wait).await
}

pub(super) async fn undo(context: &Context, wait: Option<Wait>) -> Answer {
    context.sessions.undo_drain();
    show(context, wait).await
}

/// Shows the progress. A wait ends when every session is stopped.
pub(super) async fn show(context: &Context, wait: Option<Wait>) -> Answer {
    if let Some(wait) = wait {
        bounded(&context.closing, wait.0, context.sessions.drained()).await;
    }
    json(&context.sessions.drain_view())
}
