//! Messages of the Agent Client Protocol on their way to a client of `/acp`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Message of the Agent Client Protocol: a request, a notification or an answer of JSON-RPC 2.0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AcpMessage(pub Value);

/// A message for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The message: one line of JSON, with its newline.
    pub line: Vec<u8>,
    /// Id of the session that the message concerns, as the client names the session.
    pub session: Option<Arc<str>>,
    /// Sequence number of the last record of this session that the client has completely with this message.
    pub seq: u64,
}

/// Options of a client's new sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AcpOptions {
    /// The agent. Default: the configured default agent.
    pub agent: Option<crate::AgentName>,
    /// Time that a launch waits for missing prerequisites.
    pub wait: Option<std::time::Duration>,
    /// Whether a launch ignores missing prerequisites.
    pub force: bool,
    /// Whether a launch leaves out parts that cannot be provided.
    pub degraded: bool,
}
