//! The scripts of directories, and whether they may run: `/v1/scripts`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How a script stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScriptState {
    Approved,
    NotApproved,
    /// Approved with another content, or as a link to another file.
    Changed,
    Denied,
    /// It cannot be approved as it is: others than its owner could write or replace it, or it cannot be read.
    Refused,
    /// A state newer than this reader.
    #[serde(other)]
    Unknown,
}

impl ScriptState {
    /// The state as it stands in JSON.
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

/// What the calls under `/v1/scripts` answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptList {
    /// Those that are there.
    pub scripts: Vec<ScriptView>,
    /// Every path that a session in the directory would look at.
    #[serde(default)]
    pub looked_for: Vec<PathBuf>,
}

/// A script and how it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptView {
    /// Where it is looked for, with the symlinks of its directory resolved.
    pub path: PathBuf,
    /// The file that is run, where the path is a symlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<PathBuf>,
    pub state: ScriptState,
    /// SHA-256 of its content, hex; absent for one that is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// When it was approved or denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<Timestamp>,
    /// Why it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it sources, as far as its text tells. An approval is of the script and not of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourcedView>,
    /// With `?diff=true`, where it has changed: the unified diff from what was approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// With `?diff=true`, where it is not approved and nothing is there to compare it with: the whole of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// A file that a script sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcedView {
    /// From 1.
    pub line: usize,
    /// As it is written.
    pub argument: String,
    /// The file, where the text alone says which: a relative path is one from the session's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Whether the approval covers its content: never, so far.
    pub covered: bool,
}

/// The body of `POST /v1/scripts/allow` and `deny`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptDecision {
    /// A directory whose scripts are meant, or one script.
    pub directory: PathBuf,
    /// The digests that were shown to whoever decides, by path: a script that has another one by now is not approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<BTreeMap<PathBuf, String>>,
}
