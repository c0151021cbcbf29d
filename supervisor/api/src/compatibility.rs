//! What one build of agentd can read of another's: the versions of everything that outlives a daemon.

use serde::{Deserialize, Serialize};

/// The versions a build knows. `agentd compatibility` prints those of a program, `GET /v1/version` those of the daemon that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compatibility {
    pub version: String,
    /// Frame protocols of keepers that it can adopt.
    pub keeper_protocols: Vec<u32>,
    /// Versions of `session.json` that it reads; it writes the last.
    pub session_documents: Vec<u32>,
    /// Versions of `trust.json`, likewise.
    pub trust_records: Vec<u32>,
    /// Versions of `environment.json`, likewise; builds that knew no later one than 2 do not say.
    #[serde(default)]
    pub environments: Vec<u32>,
}
