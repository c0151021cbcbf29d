//! Variables that the whitelist is to keep: `POST /v1/environment/keep`, and `agentctl env keep`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::configuration::Mistake;
use crate::id::AgentName;

/// Which names to write into the user's configuration file, and for whom.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepRequest {
    /// Names of variables, or patterns of names with `*` and `?`.
    pub names: Vec<String>,
    /// For the sessions of this agent only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
    /// For the sessions in and below this directory only. Absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Say what would be written, and write nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// What was written, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepView {
    /// The file that has the line.
    pub file: PathBuf,
    /// The file was not there before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub created: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The keys that changed, dotted.
    pub keys: Vec<String>,
    /// The names that were added.
    pub added: Vec<String>,
    /// The names that were there already.
    pub already: Vec<String>,
    /// Those of the names that look like names of secrets: each of them was kept out before, and now agents get its value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Lines that went and lines that came, in the order of the file. What may be a secret in them is masked.
    pub lines: Vec<KeepLine>,
    /// What of the configuration is not in force as the files say it, after the reload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<Mistake>,
}

/// A line that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepLine {
    /// From 1: in the new file of an added line, in the former file of a removed one.
    pub line: u32,
    /// Whether it was added, and not removed.
    pub added: bool,
    pub text: String,
}
