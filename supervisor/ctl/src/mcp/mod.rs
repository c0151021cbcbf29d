//! The MCP server of agentd on standard input and output, by which an agent reports to its own session.
//!
//! An agent starts the server, because agentd names it when it opens the conversation. Each tool is one call of the
//! control endpoint. The server decides nothing: the daemon knows from the kernel which session the caller is inside,
//! and refuses calls for other sessions.
//!
//! A failed call is a tool's result with `isError`, so the model reads the reason and the remedy. Each call has its own
//! connection, so the server outlives a restart of the daemon. The server ends with its standard input.

mod request;
mod tools;

use std::sync::Arc;
use std::time::Duration;

use agentd_api::Code;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer, ServerInitializeError};
use rmcp::{ServerHandler, ServiceExt as _};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::error::Error;
use agentd_client::{Client, Error as ClientError};
use request::Request;

/// Time for which a call is repeated while no daemon listens, or a new daemon does not know its sessions yet.
const AWAY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);

/// Answer to `initialize` that explains the server to a model.
const INSTRUCTIONS: &str = "agentd runs this conversation as a session that can sleep for days and be resumed. These \
    tools record what the session needs then. Call set_relevant_context when files, endpoints or ports become \
    important for the work, and set_environment_hint when a command needed preparation (a VPN, a module, a login). \
    After a resume, call get_relevant_context and check_prerequisites before other work. The tools concern this \
    session only.";

/// The server for one session.
#[derive(Debug, Clone)]
struct Server {
    client: Client,
    /// Id of the session, unless this process was started outside of every session.
    session: Option<Arc<str>>,
    /// Time for which a call is repeated while no daemon answers it.
    away: Duration,
}

/// Serves until standard input ends.
pub(crate) async fn serve(client: Client, session: Option<String>) -> Result<(), Error> {
    let server = Server { client, session: session.map(Arc::from), away: AWAY };
    match server.serve(rmcp::transport::stdio_pipes()).await {
        Ok(running) => running.waiting().await.map(drop).map_err(|error| Error::Setup(std::io::Error::other(error))),
        // The agent closed its end before it introduced itself.
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(Error::Setup(std::io::Error::other(error))),
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("agentd", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(call.arguments.unwrap_or_default());
        let result = match self.result(&call.name, arguments).await {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Err(text) => CallToolResult::error(vec![ContentBlock::text(text)]),
        };
        Ok(result.into())
    }
}

impl Server {
    /// Runs a tool. The error is a text for the model.
    async fn result(&self, tool: &str, arguments: Value) -> Result<String, String> {
        let session = self.session.as_deref().ok_or_else(|| {
            "cannot find the session: AGENTD_SESSION is not set\nhint: this server works inside a session of agentd"
                .to_owned()
        })?;
        let request = Request::of(tool, arguments, session)?;
        let answer = self.call(&request).await.map_err(|error| described(&error))?;
        Ok(request.answer(answer).to_string())
    }

    /// Makes the call. Repeats it only if no daemon has received it, or a daemon has refused it before it knew its
    /// sessions.
    async fn call(&self, request: &Request) -> Result<Value, Error> {
        let since = Instant::now();
        loop {
            let answer = match &request.body {
                None => self.client.fetch(&request.call, request.wait).await,
                Some(body) => self.client.submit(&request.call, body, request.wait).await,
            };
            match answer {
                Ok(document) => return Ok(document.value),
                Err(error) if is_temporary(&error) && since.elapsed() < self.away => sleep(PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn is_temporary(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. }) || error.problem_code() == Some(Code::CallerUnknown)
}

/// Formats an error for a model, with its remedy.
fn described(error: &Error) -> String {
    let hint = error.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    format!("{}{hint}", agentd_api::chain(error))
}

#[cfg(test)]
mod tests {
    use agentd_api::Problem;

    use super::*;

    fn server(session: Option<&str>) -> Server {
        let client = Client::new("/nowhere/control.sock");
        Server { client, session: session.map(Arc::from), away: PAUSE }
    }

    #[tokio::test]
    async fn a_server_outside_of_a_session_says_so_instead_of_calling() {
        let said = server(None).result("get_relevant_context", Value::Null).await.unwrap_err();
        assert!(said.contains("AGENTD_SESSION is not set") && said.contains("hint: "), "{said}");
    }

    #[tokio::test]
    async fn a_daemon_that_is_away_is_waited_for_and_then_named() {
        let begun = Instant::now();
        let arguments = serde_json::json!({ "title": "t" });
        let said = server(Some("k3m")).result("set_title", arguments).await.unwrap_err();
        assert!(said.contains("cannot reach agentd at /nowhere/control.sock"), "{said}");
        assert!(begun.elapsed() >= PAUSE, "{:?}", begun.elapsed());
    }

    #[test]
    fn an_error_names_the_refusal_and_its_remedy() {
        let problem = Problem::new(Code::ContextFull, "the set files has 11 items").hint("remove some");
        assert_eq!(described(&Error::from(problem)), "the set files has 11 items\nhint: remove some");
    }
}
