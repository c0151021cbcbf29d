//! Versions of the formats and protocols that outlive a daemon. They tell which builds of agentd can read each
//! other's files.

use serde::{Deserialize, Serialize};

/// Format and protocol versions that one build supports.
///
/// `agentd compatibility` prints those of a binary. `GET /v1/version` returns those of the running daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Compatibility {
    /// Version of the build.
    pub version: String,
    /// Versions of the keeper's frame protocol that this build can adopt.
    pub keeper_protocols: Vec<u32>,
    /// Versions of `session.json` that this build reads. It writes the last one.
    pub session_documents: Vec<u32>,
    /// Versions of `trust.json` that this build reads. It writes the last one.
    pub trust_records: Vec<u32>,
    /// Versions of `environment.json` that this build reads. It writes the last one. Empty for builds that know
    /// only version 2 or older.
    #[serde(default)]
    pub environments: Vec<u32>,
}
