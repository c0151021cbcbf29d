//! Draining: agentd stops every session and launches none until the drain is cancelled or the daemon restarts.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{SessionId, SessionName};
use crate::prerequisite::Requester;
use crate::session::Phase;

/// The response of the calls under `/v1/drain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DrainView {
    /// Whether the daemon is drained or draining.
    pub draining: bool,
    /// Time at which the drain was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The caller that requested the drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Requester>,
    /// Sessions that still have an agent. Listed even if the daemon is not draining.
    #[serde(default)]
    pub active: Vec<ActiveSession>,
}

/// A session that is not stopped yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ActiveSession {
    /// Id of the session.
    pub id: SessionId,
    /// Name of the session, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SessionName>,
    /// Current phase of the session.
    pub phase: Phase,
}
