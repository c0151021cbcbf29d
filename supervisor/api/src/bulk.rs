//! Calls on many sessions at once: `POST /v1/bulk/stop`, `resume`, `remove` and `answer`.
//!
//! Each session has its own result. The response is 200 even if every session failed.

use serde::{Deserialize, Serialize};

use crate::id::{SessionId, SessionName};
use crate::problem::Problem;
use crate::session::{PermissionAnswer, Phase};

/// The sessions of a bulk call. A session must meet every given criterion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Selection {
    /// Ids or names of sessions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<String>,
    /// Selector of labels, as `team=web,!done`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Phases.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// Configured name of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Whether all sessions are meant. Required if there is no other criterion, and refused beside one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// The body of `POST /v1/bulk/stop`. Without phases, sessions at rest are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BulkStop {
    /// The sessions.
    pub select: Selection,
    /// Whether the response waits until the sessions have ended, for at most ten minutes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wait: bool,
}

/// The body of `POST /v1/bulk/resume`. Without phases, sessions that are active are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BulkResume {
    /// The sessions.
    pub select: Selection,
    /// Whether each session begins a new conversation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new_conversation: bool,
}

/// The body of `POST /v1/bulk/remove`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BulkRemove {
    /// The sessions.
    pub select: Selection,
    /// Whether active sessions are stopped first. They are refused otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// The body of `POST /v1/bulk/answer`: one answer for each open permission request of the sessions. Sessions without
/// an open request are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BulkAnswer {
    /// The sessions.
    pub select: Selection,
    /// The answer.
    pub answer: PermissionAnswer,
}

/// The response of a bulk call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BulkView {
    /// One result for each selected session, by id.
    pub results: Vec<BulkResult>,
    /// Number of sessions that failed.
    pub failed: usize,
}

/// Result for one session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BulkResult {
    /// Id of the session.
    pub session: SessionId,
    /// Name of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SessionName>,
    /// Phase after the call. Absent after a removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why the call failed for this session. Absent after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<Problem>>,
}
