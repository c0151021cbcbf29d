//! Environment scripts of directories and scripts that were proposed for a session, and whether they are approved:
//! `/v1/scripts` and `/v1/sessions/{id}/script-proposal`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::prerequisite::Requester;

/// Maximum size in bytes of a script that is proposed for a session.
pub const PROPOSAL_BYTES: usize = 64 << 10;
/// Maximum length in bytes of the explanation of a proposed script.
pub const EXPLANATION_BYTES: usize = 2000;

/// Approval state of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ScriptState {
    /// The script is approved.
    Approved,
    /// The script was neither approved nor denied.
    NotApproved,
    /// The script was approved with other content, or as a symlink to another file.
    Changed,
    /// The script is denied.
    Denied,
    /// The script cannot be approved: it cannot be read, or users other than its owner could write or replace
    /// it.
    Refused,
    /// A state newer than this reader.
    #[serde(other)]
    Unknown,
}

impl ScriptState {
    /// Returns the state's name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::NotApproved => "not-approved",
            Self::Changed => "changed",
            Self::Denied => "denied",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// The response of the calls under `/v1/scripts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScriptList {
    /// The scripts that exist.
    pub scripts: Vec<ScriptView>,
    /// All paths that agentd checks for scripts of a session in the directory.
    #[serde(default)]
    pub looked_for: Vec<PathBuf>,
}

/// A script and its approval state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScriptView {
    /// Path of the script, with the symlinks of its directory resolved.
    pub path: PathBuf,
    /// The file that runs, if the path is a symlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<PathBuf>,
    /// Approval state.
    pub state: ScriptState,
    /// SHA-256 of the script's content in hexadecimal. Absent for a refused script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Time at which the script was approved or denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<Timestamp>,
    /// Why the script is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why the script was proposed, in the words of the process that proposed it. Only for the script of a proposal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<String>,
    /// Files that the script sources, as far as its text shows. The approval does not cover these files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourcedView>,
    /// Unified diff from the approved content, if the script has changed. Only with `?diff=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// The script's whole content, if no approved content exists to compare with. Only with `?diff=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// A file that a script sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourcedView {
    /// Line number in the script, counted from 1.
    pub line: usize,
    /// The argument as written in the script.
    pub argument: String,
    /// Path of the file, if the text alone determines it. A relative path is relative to the session's
    /// directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Whether the approval covers the file's content. Currently always false.
    pub covered: bool,
}

/// The body of `POST /v1/scripts/allow` and `POST /v1/scripts/deny`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScriptDecision {
    /// A script, or a directory whose scripts are meant.
    pub directory: PathBuf,
    /// Digests that were shown to the person who decides, by path. A script that now has another digest is not
    /// approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<BTreeMap<PathBuf, String>>,
}

/// The body of `PUT /v1/sessions/{id}/script-proposal`: a script that is to run at the session's next launches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScriptProposal {
    /// Text of the script. It replaces the script that was proposed before.
    pub text: String,
    /// Why the session needs the script. The owner sees this before the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<String>,
}

/// Data of the record `script.proposed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScriptProposed {
    /// SHA-256 of the script in hexadecimal.
    pub digest: String,
    /// Why the session needs the script, in the words of the process that proposed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<String>,
    /// The process that proposed the script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

/// The script that was proposed last for a session. `GET /v1/sessions/{id}/script-proposal` shows its approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProposedScript {
    /// SHA-256 of the script in hexadecimal.
    pub digest: String,
    /// Why the session needs the script, in the words of the process that proposed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<String>,
    /// Time of the proposal.
    pub at: Timestamp,
}
