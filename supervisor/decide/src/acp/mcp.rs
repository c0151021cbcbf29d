//! The entries of `mcpServers`: agentd's own MCP server, and those of the session.
//!
//! Every agent must support MCP servers on stdio (ACP, "MCP Servers"). The others depend on its capabilities.

use agent_client_protocol_schema::v1::{
    EnvVariable, HttpHeader, McpServer, McpServerHttp, McpServerSse, McpServerStdio,
};
use agentd_api::mcp::{LaunchedServer, OWN, Transport};

use super::Capabilities;

/// The MCP server of agentd for one session, as the session's agent starts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnServer {
    /// Absolute path of the program.
    pub command: String,
    pub args: Vec<String>,
    /// Variables that the program needs. An agent may pass no others.
    pub env: Vec<(String, String)>,
}

/// Returns why an agent with these capabilities does not get the server.
pub fn obstacle(launched: &LaunchedServer, capabilities: Capabilities) -> Option<String> {
    if let Some(missing) = &launched.missing {
        return Some(missing.clone());
    }
    let (takes, what) = match (&launched.server.url, launched.server.transport.unwrap_or_default()) {
        (None, _) => return None,
        (Some(_), Transport::Http) => (capabilities.mcp_http, "HTTP"),
        (Some(_), Transport::Sse) => (capabilities.mcp_sse, "SSE"),
    };
    (!takes).then(|| format!("the agent takes no MCP servers over {what}"))
}

/// Builds the value of `mcpServers`. Secrets are placeholders.
pub(super) fn servers(
    own: Option<&OwnServer>,
    launched: &[LaunchedServer],
    capabilities: Capabilities,
) -> Vec<McpServer> {
    let entry = |own: &OwnServer| {
        let env = own.env.iter().map(|(name, value)| EnvVariable::new(name.clone(), value.clone())).collect();
        McpServer::Stdio(McpServerStdio::new(OWN, &own.command).args(own.args.clone()).env(env))
    };
    let given = launched.iter().filter(|launched| obstacle(launched, capabilities).is_none());
    own.map(entry).into_iter().chain(given.map(server)).collect()
}

fn server(launched: &LaunchedServer) -> McpServer {
    let LaunchedServer { name, server, .. } = launched;
    let values = || server.values().map(|(name, value)| (name.to_owned(), value.with_placeholder()));
    let headers = || values().map(|(name, value)| HttpHeader::new(name, value)).collect();
    match (&server.url, server.transport.unwrap_or_default()) {
        (Some(url), Transport::Http) => McpServer::Http(McpServerHttp::new(name, url).headers(headers())),
        (Some(url), Transport::Sse) => McpServer::Sse(McpServerSse::new(name, url).headers(headers())),
        (None, _) => {
            let (program, args) =
                server.command.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
            let env = values().map(|(name, value)| EnvVariable::new(name, value)).collect();
            McpServer::Stdio(McpServerStdio::new(name, program).args(args.to_vec()).env(env))
        }
    }
}
