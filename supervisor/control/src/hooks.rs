//! Answers the calls on hooks. The daemon has the hooks.

use agentd_api::Call;

use super::handlers::Answer;
use super::json;
use super::router::Context;

/// Makes a call on the hooks.
pub(super) async fn answer(context: &Context, call: &Call) -> Answer {
    match call {
        Call::TestHook { name } => json(&context.operations.test_hook(name).await?),
        _ => json(&context.operations.hooks().await),
    }
}
