//! What an agent wants permission for, as far as it says so: the command, the arguments, the files and what would change in them.
//!
//! It is taken from the request and from the tool call that the agent announced before under the same id. Every text is bounded, and
//! secrets in it are masked.

use serde::{Deserialize, Serialize};

/// A tool call that waits for permission. A field that the agent said nothing of is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolDetails {
    /// The agent's id of the tool call (ACP `toolCallId`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call: Option<String>,
    /// The agent's name of the tool: `Bash`, `run_shell_command`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The command line that would run. A list of words is joined as a shell would read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The directory that the command would run in, where it is another than the session's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The tool's input as JSON text (ACP `rawInput`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    /// The files and directories that it names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// What it would change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diffs: Vec<ToolDiff>,
    /// Something of the above was too long, and its end is missing.
    #[serde(skip_serializing_if = "is_false")]
    pub cut: bool,
}

/// A change of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDiff {
    pub path: String,
    /// What is there now; absent for a new file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    pub new: String,
}

impl ToolDetails {
    /// Whether the agent said nothing at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}
