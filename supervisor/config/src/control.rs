//! `[control]`: the control endpoint over TCP, and the rights of agents. The control socket always exists.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use agentd_api::AgentName;
use agentd_api::quantity::Time;
use serde::Deserialize;

use super::{Flaws, flaw, seconds};

/// The control endpoint over TCP, and the rights of processes inside sessions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Control {
    /// Address for TCP connections, on the loopback interface. With port 0 the system chooses a port, which
    /// `GET /v1/version` returns. Default: no TCP. Requires `token`.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub tcp: Option<SocketAddr>,
    /// Source of the token that each request over TCP must carry: `{ credential = "NAME" }` or `{ file = "/PATH" }`.
    /// Default: none. Only valid together with `tcp`.
    pub token: Option<TokenSource>,
    /// Rights of agents and their descendants at the control endpoint: `none`, `own` or `children`. Default: `own`.
    pub guests: Guests,
    /// Agents that a session with the right `children` may use for new sessions, in addition to its own agent.
    /// Default: none.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<super::schema::Name>"))]
    pub guest_agents: Vec<AgentName>,
    /// Maximum number of active sessions that one session has created. Default: 4.
    pub guest_sessions: usize,
    /// Time without an event after which a stream of events sends a heartbeat. Default: 15 s. Less than 0.1 s is
    /// refused.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub heartbeat: Time,
}

/// Shortest interval of heartbeats.
const SHORTEST_HEARTBEAT: Duration = Duration::from_millis(100);

impl Default for Control {
    fn default() -> Self {
        let (guests, guest_agents) = (Guests::default(), Vec::new());
        Self { tcp: None, token: None, guests, guest_agents, guest_sessions: 4, heartbeat: seconds(15) }
    }
}

/// Rights of callers inside a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Guests {
    /// Only `/healthz`.
    None,
    /// Read access to the caller's own session.
    #[default]
    Own,
    /// Creation of sessions in the caller's directory and below it, and control of these sessions.
    Children,
}

/// Source of a token.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum TokenSource {
    /// A credential of the systemd service, by its name.
    Credential(String),
    /// A file that only its owner can read. `~` at the start of the path means the home directory.
    File(PathBuf),
}

/// Returns the mistake of the table, if it has one.
pub(super) fn check(control: &Control) -> Flaws {
    let wrong = |key: &str, message: String| vec![flaw(&["control", key], message)];
    match (control.tcp, &control.token) {
        (Some(address), _) if !address.ip().is_loopback() => wrong(
            "tcp",
            format!("control.tcp is {address}, which other machines can reach; use a loopback address: 127.0.0.1:7345"),
        ),
        (Some(_), None) => wrong(
            "tcp",
            "control.tcp needs control.token, because every user of this machine can connect; set control.token"
                .to_owned(),
        ),
        (None, Some(_)) => wrong("token", "control.token needs control.tcp, which is not set".to_owned()),
        (_, Some(TokenSource::File(path))) if !path.is_absolute() && !path.starts_with("~") => {
            wrong("token", format!("control.token: the file {} is not absolute", path.display()))
        }
        (_, Some(TokenSource::Credential(name))) if name.is_empty() || name.contains('/') || name.starts_with('.') => {
            wrong("token", format!("control.token: {name:?} is not a valid credential name"))
        }
        _ if control.heartbeat.0 < SHORTEST_HEARTBEAT => {
            wrong("heartbeat", "control.heartbeat is less than 0.1 s; set a longer time, as \"15s\"".to_owned())
        }
        _ => Flaws::new(),
    }
}
