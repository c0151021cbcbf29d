//! Requests of an agent that only an editor can carry out: files with unsaved changes, and terminals that the person
//! sees.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A kind of requests that an agent may make to an editor (ACP `clientCapabilities`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EditorTool {
    /// Reads and writes text files: `fs/read_text_file`, `fs/write_text_file`.
    Fs,
    /// Runs commands in terminals: `terminal/create` and the other methods of terminals.
    Terminal,
}

impl EditorTool {
    /// Returns the tool to which a method belongs.
    pub fn of_method(method: &str) -> Option<Self> {
        match method {
            "fs/read_text_file" | "fs/write_text_file" => Some(Self::Fs),
            "terminal/create" | "terminal/output" | "terminal/wait_for_exit" | "terminal/kill" | "terminal/release" => {
                Some(Self::Terminal)
            }
            _ => None,
        }
    }
}

/// The body of `POST /v1/sessions/{id}/requests`: an editor's answer to a request of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RequestAnswer {
    /// Id of the agent's JSON-RPC request, as the record `agent.out` has it.
    pub id: Value,
    /// The answer.
    #[serde(flatten)]
    pub outcome: RequestOutcome,
}

/// Result of a request, or its error (JSON-RPC 2.0, section 5).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RequestOutcome {
    /// The result.
    Result(Value),
    /// An object with `code` and `message`.
    Error(Value),
}
