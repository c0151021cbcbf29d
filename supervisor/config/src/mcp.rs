//! `[mcp]`: agentd's own MCP server, and the MCP servers that agents get: `[mcp.NAME]`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use agentd_api::mcp::{McpServer, OWN, TextOrSecret, Transport};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::declared_secret::is_for;

/// MCP servers of the agents.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mcp {
    /// Whether agents get agentd's own MCP server (`agentctl mcp`) when their conversation is opened. Default: true.
    /// `agents.NAME.mcp` overrides it for one agent.
    #[cfg_attr(feature = "schema", schemars(default = "is_enabled"))]
    pub enabled: bool,
    /// Servers by name: `[mcp.NAME]`.
    #[cfg_attr(feature = "schema", schemars(flatten))]
    pub servers: BTreeMap<String, ConfiguredServer>,
}

#[cfg(feature = "schema")]
fn is_enabled() -> bool {
    true
}

// Repeats the fields of `McpServer`, because serde cannot refuse unknown fields beside a flattened structure.
/// A configured MCP server, and the sessions that get it.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConfiguredServer {
    /// Program and its arguments, for a server on stdio. A program without a `/` is looked up in the `PATH` of the
    /// session's environment. The agent starts it.
    #[serde(default)]
    command: Vec<String>,
    /// Variables of the program: texts, and secrets as `{ secret = "NAME" }`. Default: none.
    #[serde(default)]
    env: BTreeMap<String, TextOrSecret>,
    /// Address of a server over HTTP or SSE, instead of a command.
    #[serde(default)]
    url: Option<String>,
    /// Transport of a server with an address: `http` or `sse`. Default: `http`.
    #[serde(default)]
    transport: Option<Transport>,
    /// Headers of each request to a server with an address: texts, and secrets as
    /// `{ secret = "NAME", prefix = "Bearer " }`. Default: none.
    #[serde(default)]
    headers: BTreeMap<String, TextOrSecret>,
    /// Agents whose sessions get the server. Default: all agents.
    #[serde(default)]
    agents: Vec<String>,
    /// Patterns of working directories whose sessions get the server. Default: all directories.
    #[serde(default)]
    directories: Vec<String>,
}

impl ConfiguredServer {
    /// Returns the server without the sessions that get it.
    pub fn server(&self) -> McpServer {
        McpServer {
            command: self.command.clone(),
            env: self.env.clone(),
            url: self.url.clone(),
            transport: self.transport,
            headers: self.headers.clone(),
        }
    }

    /// Reports whether a session with this agent and directory gets the server.
    fn is_for(&self, agent: &str, directory: &Path) -> bool {
        is_for(&self.agents, &self.directories, agent, Some(directory))
    }
}

/// The MCP servers of an agent's sessions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "true, false, or a list of names of MCP servers")]
pub enum AgentMcp {
    /// All servers that the configuration has for the agent, and agentd's own; or none at all.
    All(bool),
    /// The servers with these names. `agentd` is agentd's own.
    Named(Vec<String>),
}

impl Mcp {
    /// Reports whether an agent with this setting gets agentd's own server.
    pub fn gives_own(&self, of_agent: Option<&AgentMcp>) -> bool {
        match of_agent {
            Some(AgentMcp::All(all)) => *all,
            Some(AgentMcp::Named(names)) => names.iter().any(|name| name == OWN),
            None => self.enabled,
        }
    }

    /// Returns the configured servers of a session, by name. A list of an agent overrides the agents and directories of
    /// the servers.
    pub fn of(
        &self,
        (agent, of_agent): (&str, Option<&AgentMcp>),
        directory: &Path,
    ) -> impl Iterator<Item = (&String, &ConfiguredServer)> {
        self.servers.iter().filter(move |(name, server)| match of_agent {
            Some(AgentMcp::All(false)) => false,
            Some(AgentMcp::Named(names)) => names.contains(name),
            Some(AgentMcp::All(true)) | None => server.is_for(agent, directory),
        })
    }
}

impl Default for Mcp {
    fn default() -> Self {
        Self { enabled: true, servers: BTreeMap::new() }
    }
}

impl<'de> Deserialize<'de> for Mcp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;

        impl<'de> Visitor<'de> for Table {
            type Value = Mcp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table with `enabled` and MCP servers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Mcp, A::Error> {
                let mut mcp = Mcp::default();
                while let Some(key) = table.next_key::<String>()? {
                    if key == "enabled" {
                        mcp.enabled = table.next_value()?;
                    } else {
                        mcp.servers.insert(key, table.next_value()?);
                    }
                }
                Ok(mcp)
            }
        }

        deserializer.deserialize_map(Table)
    }
}
