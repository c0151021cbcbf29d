//! Implements the calls on named secrets: their list, and whether each is available. No response contains a value.

use agentd_api::secret::SecretList;

use super::handlers::Answer;
use super::json;
use super::router::Context;

pub(super) fn list(context: &Context) -> Answer {
    json(&SecretList { secrets: context.generation.secrets.views() })
}

/// Reads each secret from its source and discards the value.
pub(super) async fn check(context: &Context) -> Answer {
    json(&SecretList { secrets: context.generation.secrets.check().await })
}
