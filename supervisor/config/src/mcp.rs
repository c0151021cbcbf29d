//! `[mcp]`: agentd's own MCP server.

use serde::Deserialize;

/// agentd's own MCP server, which every agent can start (`agentctl mcp`).
#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Mcp {
    /// Whether agents get the MCP server when their conversation is opened. Default: true. `agents.NAME.mcp` overrides
    /// it for one agent.
    pub enabled: bool,
}

impl Default for Mcp {
    fn default() -> Self {
        Self { enabled: true }
    }
}
