//! Implements the calls on named secrets: their list, and whether each is available. No response contains a value.

use agentd_api::Call;
use agentd_api::secret::SecretList;

use super::handlers::Answer;
use super::json;
use super::router::Context;

/// Answers the calls about secrets. A check reads each secret from its source and discards the value.
pub(super) async fn answer(context: &Context, call: &Call) -> Answer {
    let secrets = &context.generation.secrets;
    json(&SecretList {
        secrets: if *call == (Call::CheckSecrets {}) { secrets.check().await } else { secrets.views() },
    })
}
