//! Answers the calls on places.

use std::sync::Arc;

use agentd_api::Call;
use agentd_api::route::Within;

use super::handlers::{Answer, to_the_end};
use super::json;
use super::router::Context;

/// Lists the places, or checks one.
pub(super) async fn answer(context: &Context, call: Call) -> Answer {
    let sessions = Arc::clone(&context.sessions);
    match call {
        Call::CheckPlace { name, wait } => {
            let limit = wait.map(|Within(wait)| wait);
            json(&to_the_end(async move { sessions.check_place(&name, limit).await }).await?)
        }
        _ => json(&sessions.places().await),
    }
}
