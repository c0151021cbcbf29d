//! The named secrets of the configuration: where each is taken from and who gets it, and never what it is.

use serde::{Deserialize, Serialize};

/// What `GET /v1/secrets` and `POST /v1/secrets/check` answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretList {
    /// By name.
    pub secrets: Vec<SecretView>,
}

/// One named secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretView {
    pub name: String,
    /// The variable it becomes.
    pub variable: String,
    #[serde(rename = "from")]
    pub source: SecretSource,
    /// The agents whose sessions get it; none is all.
    #[serde(default)]
    pub agents: Vec<String>,
    /// Patterns of the working directories whose sessions get it; none is all.
    #[serde(default)]
    pub directories: Vec<String>,
    /// Whether a session is not launched without it.
    pub required: bool,
    /// Whether it could be had just now; only where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<bool>,
    /// Why it could not, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Where a secret is taken from, at every launch anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretSource {
    /// `file`, `credential`, `command` or `snapshot`.
    pub kind: String,
    /// The path, the credential's name, the command line, or the login shell's variable.
    #[serde(rename = "where")]
    pub place: String,
}
