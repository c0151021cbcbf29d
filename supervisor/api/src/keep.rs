//! Requests to keep variables that the whitelist would drop: `POST /v1/environment/keep` and `agentctl env
//! keep`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::configuration::Mistake;
use crate::id::AgentName;

/// The names to write into the user's configuration file, and the sessions that they apply to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KeepRequest {
    /// Names of variables, or patterns of names with `*` and `?`.
    pub names: Vec<String>,
    /// Limits the change to sessions of this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
    /// Limits the change to sessions in and below this directory. Absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Whether to return the change without writing it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// The change to the configuration file, or the change that a dry run would make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeepView {
    /// The configuration file that was changed.
    pub file: PathBuf,
    /// Whether the file was created.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub created: bool,
    /// Whether nothing was written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Dotted paths of the keys that changed.
    pub keys: Vec<String>,
    /// Names that were added.
    pub added: Vec<String>,
    /// Names that the file already had.
    pub already: Vec<String>,
    /// The requested names that look like names of secrets. The whitelist dropped these variables before;
    /// agents now get their values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Removed and added lines, in the order of the file. Values that may be secrets are masked.
    pub lines: Vec<KeepLine>,
    /// Mistakes in the configuration after the reload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<Mistake>,
}

/// A line that was added or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeepLine {
    /// Line number, counted from 1: in the new file for an added line, in the former file for a removed line.
    pub line: u32,
    /// Whether the line was added. Otherwise it was removed.
    pub added: bool,
    /// Text of the line.
    pub text: String,
}
