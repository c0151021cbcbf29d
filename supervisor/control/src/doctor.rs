//! Implements `GET /v1/doctor`: the daemon's examination of itself.

use super::handlers::Answer;
use super::json;
use super::router::Context;

pub(super) async fn doctor(context: &Context) -> Answer {
    json(&context.operations.doctor().await)
}
