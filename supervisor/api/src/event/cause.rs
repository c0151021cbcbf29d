//! What caused a record.

use serde::{Deserialize, Serialize};

use crate::prerequisite::Requester;

/// What caused a record: a call of a client, or a limit of the configuration. Empty where agentd acted for another reason,
/// and in the journals of older releases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The process that called, where a client did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
    /// The configuration key of the limit that was reached: `limits.turn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

impl Cause {
    /// A client's call.
    pub fn call(requester: Requester) -> Self {
        Self { requester: Some(requester), limit: None }
    }

    /// A limit of the configuration, by its key.
    pub fn limit(key: &str) -> Self {
        Self { requester: None, limit: Some(key.to_owned()) }
    }
}

impl std::fmt::Display for Cause {
    /// Ready to stand behind a sentence: empty, or " (by user 1000)", " (limits.turn was reached)".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.requester, &self.limit) {
            (_, Some(limit)) => write!(f, " ({limit} was reached)"),
            (Some(requester), None) => write!(f, " (by {requester})"),
            (None, None) => Ok(()),
        }
    }
}
