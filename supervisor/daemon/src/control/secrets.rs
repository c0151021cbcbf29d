//! The named secrets: what there is, and whether it can be had. No answer of these holds a value.

use agentd_api::secret::SecretList;
use hyper::{Response, StatusCode};

use super::router::Context;
use super::{Body, json};

pub(super) fn list(context: &Context) -> Response<Body> {
    json(StatusCode::OK, &SecretList { secrets: context.world.secrets.views() })
}

/// Takes each from where it lives, and forgets it.
pub(super) async fn check(context: &Context) -> Response<Body> {
    json(StatusCode::OK, &SecretList { secrets: context.world.secrets.check().await })
}
