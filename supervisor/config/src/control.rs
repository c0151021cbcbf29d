//! `[control]`: the control endpoint over TCP, the read-only socket, and the rights of agents. The control socket
//! always exists.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use agentd_api::quantity::Time;
use agentd_api::route::Scope;
use agentd_api::{AgentName, TokenName};
use serde::Deserialize;

use super::{Flaws, flaw, seconds};

/// The control endpoint over TCP, the read-only socket, and the rights of processes inside sessions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Control {
    /// Address for TCP connections, on the loopback interface. With port 0 the system chooses a port, which
    /// `GET /v1/version` returns. Default: no TCP. Requires `token` or `tokens`.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub tcp: Option<SocketAddr>,
    /// Source of a token with all rights of the owner: `{ credential = "NAME" }` or `{ file = "/PATH" }`. Each request
    /// over TCP must carry this token or one of `tokens`. Default: none. Only valid together with `tcp`.
    pub token: Option<TokenSource>,
    /// Further tokens by name: `[control.tokens.NAME]`. A name has 1 to 63 of the characters `a-z`, `0-9` and `-`.
    /// Default: none. Only valid together with `tcp`.
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, NamedToken>"))]
    pub tokens: BTreeMap<TokenName, NamedToken>,
    /// A second unix socket, by which a group may read. Default: no such socket.
    pub read_only: Option<ReadOnly>,
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
        let tokens = BTreeMap::new();
        let heartbeat = seconds(15);
        Self { tcp: None, token: None, tokens, read_only: None, guests, guest_agents, guest_sessions: 4, heartbeat }
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

/// A token with a name and a scope.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct NamedToken {
    /// A file that only its owner can read. `~` at the start of the path means the home directory. Either `file` or
    /// `credential` is required.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// A credential of the systemd service, by its name.
    #[serde(default)]
    pub credential: Option<String>,
    /// Calls that the token permits: `read`, `operate` or `own`. Required.
    pub scope: Scope,
}

impl NamedToken {
    /// Returns the source of the token. `None` if the table names none or both, which is a mistake.
    pub fn source(&self) -> Option<TokenSource> {
        match (&self.file, &self.credential) {
            (Some(path), None) => Some(TokenSource::File(path.clone())),
            (None, Some(name)) => Some(TokenSource::Credential(name.clone())),
            _ => None,
        }
    }
}

/// The read-only socket.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct ReadOnly {
    /// Absolute path of the socket. Its directory must exist, the group must be able to enter the directory, and only
    /// the daemon's user or root may write to the directory. Required.
    pub socket: PathBuf,
    /// Group whose members may read, by name or number. The daemon's user must be a member. Required.
    pub group: GroupName,
}

/// A group, by name or number.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(untagged)]
pub enum GroupName {
    /// Number of the group.
    Id(u32),
    /// Name of the group, or its number as a text.
    Name(String),
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Maximum number of named tokens. Each request over TCP is compared with every token.
const MOST_TOKENS: usize = 64;

/// Returns the mistakes of the table.
pub(super) fn check(control: &Control) -> Flaws {
    let mut flaws = Flaws::new();
    let mut wrong = |key: &[&str], message: String| flaws.push(flaw(&[&["control"], key].concat(), message));
    let has_token = control.token.is_some() || !control.tokens.is_empty();
    match control.tcp {
        Some(address) if !address.ip().is_loopback() => wrong(
            &["tcp"],
            format!("control.tcp is {address}, which other machines can reach; use a loopback address: 127.0.0.1:7345"),
        ),
        Some(_) if !has_token => wrong(
            &["tcp"],
            "control.tcp needs control.token or a table in control.tokens, because every user of this machine can \
             connect; set one"
                .to_owned(),
        ),
        None if control.token.is_some() => {
            wrong(&["token"], "control.token needs control.tcp, which is not set".to_owned());
        }
        None if has_token => wrong(&["tokens"], "control.tokens needs control.tcp, which is not set".to_owned()),
        _ => {}
    }
    if let Some(detail) = control.token.as_ref().and_then(source_mistake) {
        wrong(&["token"], format!("control.token: {detail}"));
    }
    if control.tokens.len() > MOST_TOKENS {
        let count = control.tokens.len();
        wrong(&["tokens"], format!("control.tokens has {count} tokens; at most {MOST_TOKENS} are possible"));
    }
    for (name, token) in &control.tokens {
        let detail = match token.source() {
            Some(source) => source_mistake(&source),
            None => Some("give the source of the token: either `file` or `credential`".to_owned()),
        };
        if let Some(detail) = detail {
            wrong(&["tokens", name.as_str()], format!("control.tokens.{name}: {detail}"));
        }
    }
    if let Some(detail) = control.read_only.as_ref().and_then(socket_mistake) {
        wrong(&["read_only"], format!("control.read_only: {detail}"));
    }
    if control.heartbeat.0 < SHORTEST_HEARTBEAT {
        wrong(&["heartbeat"], "control.heartbeat is less than 0.1 s; set a longer time, as \"15s\"".to_owned());
    }
    flaws
}

fn source_mistake(source: &TokenSource) -> Option<String> {
    match source {
        TokenSource::File(path) if !path.is_absolute() && !path.starts_with("~") => {
            Some(format!("the file {} is not absolute", path.display()))
        }
        TokenSource::Credential(name) if name.is_empty() || name.contains('/') || name.starts_with('.') => {
            Some(format!("{name:?} is not a valid credential name"))
        }
        TokenSource::File(_) | TokenSource::Credential(_) => None,
    }
}

fn socket_mistake(read_only: &ReadOnly) -> Option<String> {
    let path: &Path = &read_only.socket;
    let climbs = path.components().any(|part| part == Component::ParentDir);
    if !path.is_absolute() || climbs || path.file_name().is_none() {
        return Some(format!("the socket {} is not an absolute path without `..`", path.display()));
    }
    matches!(&read_only.group, GroupName::Name(name) if name.is_empty()).then(|| "the group is empty".to_owned())
}
