//! The named secrets of the configuration: their sources and their recipients, never their values.

use serde::{Deserialize, Serialize};

/// The response of `GET /v1/secrets` and `POST /v1/secrets/check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecretList {
    /// The secrets, sorted by name.
    pub secrets: Vec<SecretView>,
}

/// A named secret of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecretView {
    /// Name of the secret in the configuration.
    pub name: String,
    /// The environment variable that holds the secret in a session. Empty if only MCP servers, repositories and plugins
    /// get the secret.
    pub variable: String,
    /// Where agentd fetches the secret.
    #[serde(rename = "from")]
    pub source: SecretSource,
    /// Agents whose sessions get the secret. All agents if empty.
    #[serde(default)]
    pub agents: Vec<String>,
    /// Patterns of the working directories whose sessions get the secret. All directories if empty.
    #[serde(default)]
    pub directories: Vec<String>,
    /// Whether a session is not launched without the secret.
    pub required: bool,
    /// Whether the secret can be fetched now. Present only in the response of a check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<bool>,
    /// Why the secret cannot be fetched, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Where a secret is fetched at each launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecretSource {
    /// Kind of the source: `file`, `credential`, `command` or `snapshot`.
    pub kind: String,
    /// The path, the credential's name, the command line, or the name of the login shell's variable.
    #[serde(rename = "where")]
    pub place: String,
}
