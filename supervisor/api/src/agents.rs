//! The known and the configured agents: `GET /v1/catalogue`, `POST /v1/agents`, and `agentctl agent`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::configuration::Mistake;
use crate::id::AgentName;
use crate::keep::KeepLine;

/// The response of `GET /v1/catalogue`: first the configured agents, then the known agents that are not configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Catalogue {
    /// The agents.
    pub agents: Vec<AgentState>,
}

/// An agent, as the sessions of this daemon would find it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentState {
    /// Name in the configuration. For an agent that is not configured, the name of the known agent.
    pub name: String,
    /// Name of the known agent that this is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<String>,
    /// Whether the configuration has the agent.
    pub configured: bool,
    /// Whether sessions run this agent if their specification names none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// Program of the agent, with its arguments.
    pub command: Vec<String>,
    /// Path of the program in the environment of the agent's sessions. Missing if the program was not found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
    /// First line that the program prints with `--version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Why the program or its version is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether the agent is logged in.
    pub login: LoginState,
    /// Source of the state of the login: the variable, the file, or the agent's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_from: Option<String>,
    /// Command that installs the agent, or a page that describes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install: Option<String>,
    /// The processes of the agent that are kept ready for later sessions, if the configuration wants any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<WarmView>,
    /// The known facts of the agent, in the form of the public registry. Only if the request names the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<Value>,
}

/// Processes of an agent that are kept ready for later sessions (`agents.NAME.warm`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WarmView {
    /// Maximum number of processes, as configured.
    pub wanted: usize,
    /// Number of processes that have answered `initialize` and wait for a session.
    pub ready: usize,
    /// Number of processes that are being started.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub starting: usize,
    /// Why no process is kept ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// State of an agent's login. agentd does not start the agent for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LoginState {
    /// A variable of the agent's environment has a key.
    Key,
    /// A login has left its file in the home directory.
    LoggedIn,
    /// The agent works without a login.
    NotNeeded,
    /// There is neither a key nor the file of a login.
    Missing,
    /// The agent has refused a session for lack of a login.
    Refused,
    /// Nothing shows whether the agent is logged in; or a state newer than this reader.
    #[serde(other)]
    Unknown,
}

impl LoginState {
    /// Returns the state's name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::LoggedIn => "logged-in",
            Self::NotNeeded => "not-needed",
            Self::Missing => "missing",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// The body of `POST /v1/agents`: an agent for the user's configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentAddRequest {
    /// Name of the new entry. Default: the name of the known agent, or the id in the registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<AgentName>,
    /// A known agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<String>,
    /// Program and arguments, instead of those of the known agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Arguments after those of the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables of the agent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// An entry of the public registry (`agent.json`), in place of a known agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Value>,
    /// Whether sessions run the agent if their specification names none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// Whether to return the change without writing it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// The change to the configuration file, or the change that a dry run would make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentAddView {
    /// Name of the entry.
    pub name: AgentName,
    /// The configuration file that was changed.
    pub file: PathBuf,
    /// Whether the file was created.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub created: bool,
    /// Whether nothing was written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Removed and added lines, in the order of the file. Values that may be secrets are masked.
    pub lines: Vec<KeepLine>,
    /// Address of the archive from which the program is to be installed, for an entry of the registry without a
    /// package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// Mistakes in the configuration after the reload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<Mistake>,
}
