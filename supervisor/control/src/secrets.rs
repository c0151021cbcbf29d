//! Implements the calls on named secrets: their list, and whether each is available. No response contains a value.

use agentd_api::secret::SecretList;
use hyper::{Response, StatusCode};

use super::router::Context;
use super::{Body, json};

pub(super) fn list(context: &Context) -> Response<Body> {
    json(StatusCode::OK, &SecretList { secrets: context.generation.secrets.views() })
}

/// Reads each secret from its source and discards the value.
pub(super) async fn check(context: &Context) -> Response<Body> {
    json(StatusCode::OK, &SecretList { secrets: context.generation.secrets.check().await })
}
