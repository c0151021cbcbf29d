//! The records of a session's environment. They hold names, never a value.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentBuilt {
    pub launch: u64,
    /// SHA-256 over every name and value, hex.
    pub digest: String,
    /// How many variables there are.
    pub variables: u32,
    /// The names that a provider took away.
    #[serde(default)]
    pub dropped: Vec<String>,
    /// Names whose value differs from the launch before, or that it had not.
    #[serde(default)]
    pub changed: Vec<String>,
    /// Names that the launch before had.
    #[serde(default)]
    pub removed: Vec<String>,
    /// The same, with who did it; names only, for both sides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<VariableChange>,
    /// The agent's home directory, below which most agents keep their conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// Processes that the login shell and the scripts had started in the background, and that were ended with them.
    #[serde(default)]
    pub killed: u32,
    /// The number that is left running (`environment.children = "leave"`).
    #[serde(default)]
    pub left: u32,
    /// How long the providers took, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// When the first of it expires, where something does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When its providers are asked again, which is before that. Journals of older releases have none: there it is when it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_at: Option<Timestamp>,
}

/// Never a value, nor a file's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentRefreshed {
    pub launch: u64,
    /// The files that were written anew, by name.
    #[serde(default)]
    pub files: Vec<String>,
    /// The variables that hold no longer: the agent has what they were.
    #[serde(default)]
    pub stale: Vec<StaleVariable>,
    /// When the next of it expires, where something does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// As of `environment.built`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_at: Option<Timestamp>,
}

/// A variable of a running agent that would be another now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleVariable {
    pub name: String,
    /// The provider that gave what the agent has, or would give it now.
    pub provider: String,
    /// Since when what the agent has holds no longer. It is in the future where the provider gave another value early.
    pub since: Timestamp,
}

/// What became of a variable since the launch before. Never its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariableChange {
    pub name: String,
    pub kind: VariableChangeKind,
    /// The provider that set it last in the launch before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The provider that sets it now, or that takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VariableChangeKind {
    Added,
    Changed,
    Removed,
    #[serde(other)]
    Unknown,
}
