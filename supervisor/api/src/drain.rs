//! Draining: every session is stopped in order, and none is launched until that is undone or the daemon starts anew.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{SessionId, SessionName};
use crate::prerequisite::Requester;
use crate::session::Phase;

/// What `/v1/drain` answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainView {
    pub draining: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Requester>,
    /// The sessions that have an agent still, whether draining or not.
    #[serde(default)]
    pub active: Vec<ActiveSession>,
}

/// A session that is not stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveSession {
    pub id: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SessionName>,
    pub phase: Phase,
}
