//! Records about a session's environment. They hold names, and no values except those of options.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bytes::ByteString;
use crate::mcp::LaunchedServer;

/// Data of the record `environment.built`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentBuilt {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// SHA-256 over all names and values, in hexadecimal.
    pub digest: String,
    /// Number of variables.
    pub variables: u32,
    /// Names of the variables that a provider removed.
    #[serde(default)]
    pub dropped: Vec<String>,
    /// Names of variables that are new, or whose value differs from the previous launch.
    #[serde(default)]
    pub changed: Vec<String>,
    /// Names of variables that only the previous launch had.
    #[serde(default)]
    pub removed: Vec<String>,
    /// `changed` and `removed` with the providers that caused each change. Names only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<VariableChange>,
    /// The agent's home directory. Most agents keep their conversations below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// Values that the session wants for options of the agent: `mode`, `model` and `options.ID` of the configuration,
    /// and variables of the environment with `compatibility = "ambient"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// MCP servers of the agent, besides agentd's own. Secrets are named, and their values are in no record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp: Vec<LaunchedServer>,
    /// Login method that agentd requests from the agent before the conversation is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// Login methods that use a named secret of the environment, in the order of preference. agentd requests the first
    /// that the agent offers, if `login` names none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_logins: Vec<String>,
    /// Variables that name where a known agent keeps its conversations. Null for a variable that is not set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<String, Option<ByteString>>,
    /// Those of them that kept their values from the beginning of the conversation, though they would be others now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<String>,
    /// Number of background processes of the login shell and the scripts that agentd killed afterwards.
    #[serde(default)]
    pub killed: u32,
    /// Number of background processes that were left running (`environment.children = "leave"`).
    #[serde(default)]
    pub left: u32,
    /// Time that the providers took, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// Earliest time at which a variable or file of the environment expires. Absent if nothing expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Time at which agentd calls the providers again, which is before `expires_at`. Absent in journals of
    /// older releases, which used `expires_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_at: Option<Timestamp>,
}

/// Data of the record `environment.refreshed`. Holds no value and no file's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentRefreshed {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// Names of the files that were written again.
    #[serde(default)]
    pub files: Vec<String>,
    /// Variables whose values have expired. The running agent keeps the old values.
    #[serde(default)]
    pub stale: Vec<StaleVariable>,
    /// Earliest time at which something else expires. Absent if nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Time at which agentd calls the providers again, which is before `expires_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_at: Option<Timestamp>,
}

/// A variable of a running agent that would now have another value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StaleVariable {
    /// Name of the variable.
    pub name: String,
    /// The provider that set the agent's value, or that would set the new value.
    pub provider: String,
    /// Time at which the agent's value became invalid. In the future if the provider gave the new value early.
    pub since: Timestamp,
}

/// How a variable changed since the previous launch. Never holds its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VariableChange {
    /// Name of the variable.
    pub name: String,
    /// Whether the variable was added, changed or removed.
    pub kind: VariableChangeKind,
    /// Provider that set the variable last in the previous launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Provider that now sets or removes the variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// The kind of change of a variable between two launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VariableChangeKind {
    /// The previous launch did not have the variable.
    Added,
    /// The value differs.
    Changed,
    /// Only the previous launch had the variable.
    Removed,
    /// A kind newer than this reader.
    #[serde(other)]
    Unknown,
}
