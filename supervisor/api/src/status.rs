//! Answers of the daemon about itself: health, readiness, version and configured agents.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::compatibility::Compatibility;

/// The response of `GET /healthz`. A daemon that cannot answer sends no such document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HealthView {
    /// The state of the daemon.
    pub status: Health,
}

/// State of a daemon that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// The daemon answers requests.
    Ok,
}

/// The response of `GET /readyz` from a daemon that can launch a session. Other daemons answer with a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadinessView {
    /// The state of the daemon.
    pub status: Readiness,
}

/// State of a daemon that can launch a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Readiness {
    /// The daemon can launch a session.
    Ready,
}

/// The response of `GET /v1/version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VersionView {
    /// Version of the build.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Path of the daemon's program, as the system shows it to the daemon.
    #[serde(default)]
    pub program: Option<PathBuf>,
    /// Directory of sockets and other runtime files.
    pub runtime_directory: PathBuf,
    /// Directory of journals and other stored files.
    pub state_directory: PathBuf,
    /// Address of the TCP listener.
    #[serde(default)]
    pub tcp: Option<SocketAddr>,
    /// Path of the read-only socket of `control.read_only`.
    #[serde(default)]
    pub read_only_socket: Option<PathBuf>,
    /// Reports whether the daemon is drained.
    #[serde(default)]
    pub draining: bool,
    /// How the daemon runs sessions, for people: `detached processes` or `systemd units`.
    #[serde(default)]
    pub sessions_run_as: String,
    /// Format and protocol versions of the daemon.
    pub compatibility: Compatibility,
}

/// The response of `GET /v1/openapi.json`: an `OpenAPI` 3.1 document that describes the control endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct OpenApi(pub serde_json::Map<String, serde_json::Value>);

/// The response of `GET /v1/agents`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentList {
    /// The configured agents.
    pub agents: Vec<AgentView>,
}

/// A configured agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentView {
    /// Name of the agent.
    pub name: String,
    /// Program of the agent, with its arguments.
    #[serde(default)]
    pub command: Vec<String>,
    /// Reports whether sessions run this agent if their specification names none.
    #[serde(default)]
    pub default: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_and_readiness_are_one_word_each() {
        let text = |document: serde_json::Result<String>| document.unwrap();
        assert_eq!(text(serde_json::to_string(&HealthView { status: Health::Ok })), r#"{"status":"ok"}"#);
        assert_eq!(text(serde_json::to_string(&ReadinessView { status: Readiness::Ready })), r#"{"status":"ready"}"#);
    }
}
