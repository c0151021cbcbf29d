//! Answers the calls on places.

use std::sync::Arc;

use agentd_api::Call;

use super::handlers::{Answer, to_the_end};
use super::json;
use super::router::Context;

/// Lists the places, or checks one.
pub(super) async fn answer(context: &Context, call: Call) -> Answer {
    let sessions = Arc::clone(&context.sessions);
    match call {
        Call::CheckPlace { name } => json(&to_the_end(async move { sessions.check_place(&name).await }).await?),
        _ => json(&sessions.places().await),
    }
}
