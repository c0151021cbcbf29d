//! What is asked of a session's environment, and the environment its agent was started in, with who put each variable there.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bytes::ByteString;

/// What is asked of a session's environment; what is left out is as configured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EnvironmentSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SnapshotSource>,
    /// The terminal's environment, by the id that `POST /v1/snapshots` gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh: Option<Refresh>,
    /// Whether the session shares a terminal's environment with the others of its directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
}

impl EnvironmentSpec {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What the environment's first step begins with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotSource {
    /// What the user's login shell gives to a program, as it is at each launch.
    #[default]
    LoginShell,
    /// What the terminal had in which the session was created.
    Terminal,
    /// What the login shell gave when the session was created.
    Stored,
}

/// What a launch after the first does with the environment of the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refresh {
    /// It is given again as a whole; secrets are taken fresh.
    Stored,
    /// It is built again.
    #[default]
    Fresh,
    /// It is given again, and what a fresh one would have otherwise is said.
    Warn,
}

/// The environment of a session's last launch; `environment.json`, and `GET /v1/sessions/{id}/environment`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentView {
    pub captured: Timestamp,
    /// The launch it was built for.
    pub launch: u64,
    /// SHA-256 over every name and every value that is no secret, hex.
    pub digest: String,
    /// By name.
    pub variables: Vec<VariableView>,
    /// What a provider took away, by name.
    #[serde(default)]
    pub dropped: Vec<DroppedView>,
}

/// One variable and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariableView {
    pub name: String,
    /// Left out unless asked for, and always for a secret one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<ByteString>,
    /// SHA-256 of the value, hex; of a secret one it is left out, since a short secret could be guessed from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The provider that set it last.
    pub provider: String,
    /// The provider's place in the pipeline, from 1.
    pub step: u32,
    /// The script or file it came from, where the provider knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<PathBuf>,
    /// Whether its value is a secret: never shown, never stored.
    #[serde(default)]
    pub secret: bool,
}

/// A variable that a provider took away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedView {
    pub name: String,
    pub provider: String,
    pub step: u32,
    /// The rule that dropped it, in the provider's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The script that removed it, where the provider knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<PathBuf>,
}
