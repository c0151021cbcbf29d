//! What agentd finds out about itself: `GET /v1/doctor`.

use hyper::{Response, StatusCode};

use super::router::Context;
use super::{Body, json};
use crate::doctor::examine;

pub(super) async fn doctor(context: &Context) -> Response<Body> {
    json(StatusCode::OK, &examine(&context.world, &context.sessions).await)
}
