//! Implements `agentctl mcp`: the MCP server that an agent starts for its session.

use super::Context;
use crate::error::Error;

pub(super) async fn mcp(context: &Context) -> Result<u8, Error> {
    let session = std::env::var("AGENTD_SESSION").ok().filter(|id| !id.is_empty());
    crate::mcp::serve(context.client.clone(), session).await.map(|()| 0)
}
