//! The entry of `mcpServers`, by which an agent starts the MCP server of agentd.
//!
//! Every agent must support MCP servers on stdio (ACP, "MCP Servers"), so no capability is checked.

use agent_client_protocol_schema::v1::{EnvVariable, McpServer, McpServerStdio};

/// Name of the server, which agents put before the names of its tools.
const NAME: &str = "agentd";

/// The MCP server of agentd for one session, as the session's agent starts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnServer {
    /// Absolute path of the program.
    pub command: String,
    pub args: Vec<String>,
    /// Variables that the program needs. An agent may pass no others.
    pub env: Vec<(String, String)>,
}

/// Builds the value of `mcpServers`.
pub(super) fn servers(own: Option<&OwnServer>) -> Vec<McpServer> {
    let entry = |own: &OwnServer| {
        let env = own.env.iter().map(|(name, value)| EnvVariable::new(name.clone(), value.clone())).collect();
        McpServer::Stdio(McpServerStdio::new(NAME, &own.command).args(own.args.clone()).env(env))
    };
    own.map(entry).into_iter().collect()
}
