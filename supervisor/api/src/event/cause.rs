//! The cause of a record: a client's request, or a configured limit.

use serde::{Deserialize, Serialize};

use crate::prerequisite::Requester;

/// The cause of a record: a client's request, or a configured limit. Empty if agentd acted for another reason,
/// and in journals of older releases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cause {
    /// The process that sent the request, if a client did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
    /// Configuration key of the limit that was reached, for example `limits.turn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

impl Cause {
    /// Makes the cause of a client's request.
    pub fn call(requester: Requester) -> Self {
        Self { requester: Some(requester), limit: None }
    }

    /// Makes the cause of a configured limit, named by its key.
    pub fn limit(key: &str) -> Self {
        Self { requester: None, limit: Some(key.to_owned()) }
    }
}

impl std::fmt::Display for Cause {
    /// Formats the cause to append to a sentence: ` (by user 1000)`, ` (limits.turn was reached)`, or nothing
    /// if the cause is empty.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.requester, &self.limit) {
            (_, Some(limit)) => write!(f, " ({limit} was reached)"),
            (Some(requester), None) => write!(f, " (by {requester})"),
            (None, None) => Ok(()),
        }
    }
}
