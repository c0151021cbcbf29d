//! Handlers of the calls on hooks. The daemon has the hooks.

use super::handlers::Answer;
use super::json;
use super::router::Context;

pub(super) async fn list(context: &Context) -> Answer {
    json(&context.operations.hooks().await)
}

pub(super) async fn test(context: &Context, name: &str) -> Answer {
    json(&context.operations.test_hook(name).await?)
}
