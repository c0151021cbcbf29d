//! Data of the records of turns and of permission requests.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Cause;
use crate::elicitation::FormValues;
use crate::id::{PermissionId, TurnId};
use crate::prerequisite::Requester;
use crate::prompt::PromptPart;
use crate::session::PermissionRequest;

/// Data of the record `turn.queued`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnQueued {
    /// Id of the turn.
    pub turn: TurnId,
    /// The prompt.
    pub prompt: String,
    /// Parts that follow the text. A large content is in a file of the session, and its place has the digest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PromptPart>,
    /// Whether the prompt is the startup prompt of a workflow. It precedes the prompts that wait.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_startup: bool,
    /// The `Idempotency-Key` of the request that queued the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// A JSON Schema that the answer must satisfy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<serde_json::Value>,
    /// The process that requested the turn, if a client did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

/// Data of the record `turn.limited`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnLimited {
    /// Id of the turn.
    pub turn: TurnId,
    /// Time at which the prompt is sent again.
    pub until: Timestamp,
    /// Whether that time follows from the agent's words. Otherwise the pause doubles with each attempt.
    pub is_named: bool,
    /// Number of rate limits of this turn in a row.
    pub attempt: u32,
    /// The agent's words.
    pub message: String,
    /// Tool calls that started and did not finish (ACP `toolCallId`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interrupted_tool_calls: Vec<String>,
}

/// Data of the record `turn.released`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnReleased {
    /// Id of the turn.
    pub turn: TurnId,
    /// The process that requested it, if a client did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

/// Data of the record `turn.started`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnStarted {
    /// Id of the turn.
    pub turn: TurnId,
    /// JSON-RPC id of the `session/prompt` request, which is the next record in the journal.
    pub rpc: u64,
    /// Whether the prompt was sent before, and met a rate limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// The note that agentd put in front of the prompt, after a resume or a rate limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The workflow's instructions that agentd put in front of the note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Why the note has the built-in template although the configuration names another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note_error: Option<String>,
}

/// Why agentd ended a turn instead of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SyntheticCause {
    /// The agent's process ended before the agent answered.
    AgentExited,
    /// The agent answered the prompt with an error.
    AgentError,
    /// The turn was cancelled while it was queued.
    Dropped,
    /// The answer does not satisfy the turn's schema, also after a second prompt.
    AnswerInvalid,
    /// A cause newer than this reader.
    #[serde(other)]
    Unknown,
}

/// Data of the record `turn.ended`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnEnded {
    /// Id of the turn.
    pub turn: TurnId,
    /// The agent's stop reason (ACP `stopReason`). Absent if the agent gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Why agentd ended the turn, if the agent did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<Synthetic>,
    /// Tool calls that started and did not finish (ACP `toolCallId`). This record marks them as interrupted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interrupted_tool_calls: Vec<String>,
}

/// Details of a turn that agentd ended instead of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Synthetic {
    /// Why agentd ended the turn.
    pub cause: SyntheticCause,
    /// Description of the cause for people.
    pub detail: String,
    /// The last lines that the agent wrote to stderr during the turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
}

/// Data of the record `turn.silent`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnSilent {
    /// Id of the turn.
    pub turn: TurnId,
    /// Number of seconds since the agent's last output.
    pub seconds: u64,
}

/// Data of the record `turn.cancelling`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnCancelling {
    /// Id of the turn.
    pub turn: TurnId,
    /// The client or the limit that cancels the turn.
    #[serde(flatten)]
    pub cause: Cause,
}

/// Data of the record `permission.requested`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PermissionRequested {
    /// The permission request.
    pub request: PermissionRequest,
    /// Id of the agent's JSON-RPC request. `{"verbatim": TEXT}` if no JSON value can hold the id exactly. Null for a
    /// request of agentd itself.
    pub rpc: serde_json::Value,
}

/// How a permission request ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PermissionOutcome {
    /// The option with this id was selected.
    Selected(String),
    /// The request was cancelled without a selection.
    Cancelled,
}

/// Source of the answer to a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AnsweredBy {
    /// A client.
    Client,
    /// The session's permission policy.
    Policy,
    /// The time limit for permission requests.
    Expiry,
    /// The cancellation or the end of the turn.
    Cancel,
    /// A source newer than this reader.
    #[serde(other)]
    Unknown,
}

/// Data of the record `permission.resolved`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PermissionResolved {
    /// Id of the permission request.
    pub permission: PermissionId,
    /// The answer.
    pub outcome: PermissionOutcome,
    /// Values of the form of an accepted question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<FormValues>,
    /// Source of the answer.
    pub by: AnsweredBy,
    /// The client or the limit that led to the answer.
    #[serde(flatten)]
    pub cause: Cause,
}
