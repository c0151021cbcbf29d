//! Begins and undoes a drain, and shows its progress.

use agentd_api::Call;
use agentd_api::route::Wait;

use super::handlers::{Answer, bounded};
use super::json;
use super::router::Context;

/// Answers a call about the drain.
pub(super) async fn answer(context: &Context, call: Call) -> Answer {
    let wait = match call {
        Call::BeginDrain { wait } => {
            context.sessions.drain(context.requester());
            wait
        }
        Call::UndoDrain { wait } => {
            context.sessions.undo_drain();
            wait
        }
        Call::Drain { wait } => wait,
        _ => None,
    };
    show(context, wait).await
}

/// Shows the progress. A wait ends when every session is stopped.
async fn show(context: &Context, wait: Option<Wait>) -> Answer {
    if let Some(wait) = wait {
        bounded(&context.closing, wait.0, context.sessions.drained()).await;
    }
    json(&context.sessions.drain_view())
}
