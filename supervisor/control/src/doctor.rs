//! Implements `GET /v1/doctor`: the daemon's examination of itself.

use hyper::{Response, StatusCode};

use super::router::Context;
use super::{Body, json};

pub(super) async fn doctor(context: &Context) -> Response<Body> {
    json(StatusCode::OK, &context.operations.doctor().await)
}
