//! Details of a tool call that needs permission: the command, the arguments, the files and the changes, as far
//! as the agent sends them.
//!
//! The details come from the permission request and from the tool call that the agent announced earlier under
//! the same id. Every text has a bounded length, and secrets are masked.

use serde::{Deserialize, Serialize};

/// A tool call that waits for permission. Fields that the agent did not send are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ToolDetails {
    /// The agent's id for the tool call (ACP `toolCallId`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call: Option<String>,
    /// The agent's name for the tool, for example `Bash` or `run_shell_command`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The command line to run. A list of words is joined with shell quoting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The working directory of the command, if it differs from the session's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The tool's input as JSON text (ACP `rawInput`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    /// Files and directories that the tool call names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// File changes that the tool call would make.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diffs: Vec<ToolDiff>,
    /// Whether a field was too long and was truncated.
    #[serde(skip_serializing_if = "is_false")]
    pub cut: bool,
}

/// A change to one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolDiff {
    /// Path of the file, as the agent sent it.
    pub path: String,
    /// The current text. Absent for a new file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The new text.
    pub new: String,
}

impl ToolDetails {
    /// Reports whether the agent sent no details.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}
