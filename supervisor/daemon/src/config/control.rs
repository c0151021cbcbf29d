//! `[control]`: the control endpoint over TCP, beside the socket that is always there.

use std::net::SocketAddr;
use std::path::PathBuf;

use agentd_api::AgentName;
use serde::Deserialize;

use super::{Flaws, flaw};

/// Where requests may come from besides the control socket.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Control {
    /// An address of this machine's loopback; port 0 is one that the system chooses, and `GET /v1/version` tells.
    pub(crate) tcp: Option<SocketAddr>,
    /// Where the token is that each request over TCP has to carry.
    pub(crate) token: Option<TokenSource>,
    /// What an agent, and whatever it starts, may ask of agentd.
    pub(crate) guests: Guests,
    /// The agents that a session may be created with from inside another, besides that session's own.
    pub(crate) guest_agents: Vec<AgentName>,
    /// The most active sessions that one session has created.
    pub(crate) guest_sessions: usize,
}

impl Default for Control {
    fn default() -> Self {
        Self { tcp: None, token: None, guests: Guests::default(), guest_agents: Vec::new(), guest_sessions: 4 }
    }
}

/// What callers inside a session may do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Guests {
    /// Nothing but ask for `/healthz`.
    None,
    /// Look at their own session.
    #[default]
    Own,
    /// Create sessions below their own directory, and direct these.
    Children,
}

/// Where a token is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TokenSource {
    /// A credential of the service, by its name.
    Credential(String),
    /// A file that only its owner can read; `~` is the home directory.
    File(PathBuf),
}

/// What is wrong in it.
pub(super) fn check(control: &Control) -> Flaws {
    let wrong = |key: &str, message: String| vec![flaw(&["control", key], message)];
    match (control.tcp, &control.token) {
        (Some(address), _) if !address.ip().is_loopback() => wrong(
            "tcp",
            format!(
                "control.tcp is {address}, which other machines can reach; give an address of the loopback, as 127.0.0.1:7345"
            ),
        ),
        (Some(_), None) => wrong(
            "tcp",
            "control.tcp needs control.token: whoever is on this machine can connect to it, so that each request has to carry one"
                .to_owned(),
        ),
        (None, Some(_)) => wrong("token", "control.token is for control.tcp, and that is not set".to_owned()),
        (_, Some(TokenSource::File(path))) if !path.is_absolute() && !path.starts_with("~") => {
            wrong("token", format!("control.token: the file {} is not absolute", path.display()))
        }
        (_, Some(TokenSource::Credential(name))) if name.is_empty() || name.contains('/') || name.starts_with('.') => {
            wrong("token", format!("control.token: {name:?} is no name of a credential"))
        }
        _ => Flaws::new(),
    }
}
