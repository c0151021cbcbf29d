//! Builds the messages that agentd sends, each as one line of JSON-RPC 2.0.

use std::path::{Path, PathBuf};

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1::{
    AuthCapabilities, BooleanConfigOptionCapabilities, CancelNotification, ClientCapabilities,
    ClientSessionCapabilities, ElicitationCapabilities, ElicitationFormCapabilities, ElicitationUrlCapabilities,
    FileSystemCapabilities, ForkSessionRequest, Implementation, InitializeRequest, LoadSessionRequest, McpServer,
    NewSessionRequest, RequestPermissionOutcome, RequestPermissionResponse, ResumeSessionRequest,
    SelectedPermissionOutcome, SessionConfigOptionsCapabilities,
};
use agentd_api::editor::{EditorTool, RequestOutcome};
use agentd_api::elicitation::FormValues;
use agentd_api::event::PermissionOutcome;
use agentd_api::mcp::LaunchedServer;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::mcp::{OwnServer, servers};
use super::{Capabilities, elicitation, id, method};

#[derive(Serialize)]
struct Call<'a, P> {
    jsonrpc: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: P,
}

pub(super) fn line<P: Serialize>(id: Option<u64>, method: &str, params: P) -> Box<RawValue> {
    to_raw_value(&Call { jsonrpc: "2.0", id, method, params })
        .expect("the protocol's types have string keys and no failing serializer")
}

/// Builds `initialize` with agentd's name and version. Offers files and terminals of an editor only where the
/// configuration has them: the agent's own tools work in the agent's own environment. Takes options that are on or off,
/// questions with a form or a page, and logins at a terminal, which `agentctl agent login` runs.
pub fn initialize(id: u64, editor: &[EditorTool]) -> Box<RawValue> {
    let files = editor.contains(&EditorTool::Fs);
    let options = SessionConfigOptionsCapabilities::new().boolean(BooleanConfigOptionCapabilities::new());
    let questions =
        ElicitationCapabilities::new().form(ElicitationFormCapabilities::new()).url(ElicitationUrlCapabilities::new());
    let capabilities = ClientCapabilities::default()
        .elicitation(questions)
        .session(ClientSessionCapabilities::new().config_options(options))
        .auth(AuthCapabilities::new().terminal(true))
        .fs(FileSystemCapabilities::new().read_text_file(files).write_text_file(files))
        .terminal(editor.contains(&EditorTool::Terminal));
    let request = InitializeRequest::new(ProtocolVersion::V1)
        .client_capabilities(capabilities)
        .client_info(Implementation::new("agentd", env!("CARGO_PKG_VERSION")));
    line(Some(id), method::INITIALIZE, request)
}

/// Directories and servers that an agent gets with a conversation.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// The working directory (ACP `cwd`).
    pub directory: &'a Path,
    /// Further directories (ACP `additionalDirectories`), for an agent that takes them.
    pub further: &'a [PathBuf],
    /// agentd's own MCP server.
    pub own: Option<&'a OwnServer>,
    /// The session's MCP servers.
    pub mcp: &'a [LaunchedServer],
    /// Abilities of the agent.
    pub capabilities: Capabilities,
}

impl Surroundings<'_> {
    fn servers(&self) -> Vec<McpServer> {
        servers(self.own, self.mcp, self.capabilities)
    }
}

pub fn new_conversation(id: u64, with: Surroundings<'_>) -> Box<RawValue> {
    let request = NewSessionRequest::new(with.directory).mcp_servers(with.servers());
    line(Some(id), method::NEW, request.additional_directories(with.further.to_vec()))
}

pub fn load(id: u64, conversation: &str, with: Surroundings<'_>) -> Box<RawValue> {
    let request = LoadSessionRequest::new(conversation.to_owned(), with.directory).mcp_servers(with.servers());
    line(Some(id), method::LOAD, request.additional_directories(with.further.to_vec()))
}

pub fn resume(id: u64, conversation: &str, with: Surroundings<'_>) -> Box<RawValue> {
    let request = ResumeSessionRequest::new(conversation.to_owned(), with.directory).mcp_servers(with.servers());
    line(Some(id), method::RESUME, request.additional_directories(with.further.to_vec()))
}

/// Builds `session/fork`, which copies a conversation (<https://agentclientprotocol.com/rfds/session-fork>).
pub fn fork(id: u64, conversation: &str, with: Surroundings<'_>) -> Box<RawValue> {
    let request = ForkSessionRequest::new(conversation.to_owned(), with.directory).mcp_servers(with.servers());
    line(Some(id), method::FORK, request.additional_directories(with.further.to_vec()))
}

pub fn cancel(conversation: &str) -> Box<RawValue> {
    line(None, method::CANCEL, CancelNotification::new(conversation.to_owned()))
}

/// Code of an error without a better one (JSON-RPC 2.0, section 5.1).
const INTERNAL_ERROR: i32 = -32603;

#[derive(Serialize)]
struct Answer<'a, R> {
    jsonrpc: &'a str,
    #[serde(serialize_with = "id::write")]
    id: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<R>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorObject<'a>>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    code: i32,
    message: &'a str,
}

/// Builds the answer to a permission request, with the agent's id of the request.
pub fn permission_answer(id: &Value, outcome: &PermissionOutcome) -> Box<RawValue> {
    let outcome = match outcome {
        PermissionOutcome::Selected(option) => {
            RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option.clone()))
        }
        PermissionOutcome::Cancelled => RequestPermissionOutcome::Cancelled,
    };
    let answer = Answer { jsonrpc: "2.0", id, result: Some(RequestPermissionResponse::new(outcome)), error: None };
    to_raw_value(&answer).expect("as above")
}

/// Builds the answer to a question, with the agent's id of the request and the values of the form.
pub fn question_answer(id: &Value, outcome: &PermissionOutcome, form: Option<&FormValues>) -> Box<RawValue> {
    let answer = Answer { jsonrpc: "2.0", id, result: Some(elicitation::result(outcome, form)), error: None };
    to_raw_value(&answer).expect("as above")
}

/// Builds an editor's answer to a request, with the agent's id of the request.
pub fn request_answer(id: &Value, outcome: &RequestOutcome) -> Box<RawValue> {
    let (result, error) = match outcome {
        RequestOutcome::Result(result) => (Some(result), None),
        RequestOutcome::Error(error) => {
            let code = error["code"].as_i64().and_then(|code| i32::try_from(code).ok()).unwrap_or(INTERNAL_ERROR);
            let message = error["message"].as_str().unwrap_or("the editor failed");
            (None, Some(ErrorObject { code, message }))
        }
    };
    to_raw_value(&Answer { jsonrpc: "2.0", id, result, error }).expect("as above")
}

/// Builds the error −32601, method not found (JSON-RPC 2.0, section 5.1).
pub fn unknown_method(id: &Value, method: &str) -> Box<RawValue> {
    let message = format!("agentd does not offer {method:?}");
    let error = Some(ErrorObject { code: -32601, message: &message });
    to_raw_value(&Answer::<()> { jsonrpc: "2.0", id, result: None, error }).expect("as above")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surroundings(directory: &Path) -> Surroundings<'_> {
        Surroundings { directory, further: &[], own: None, mcp: &[], capabilities: Capabilities::default() }
    }

    #[test]
    fn an_agent_gets_the_servers_that_it_takes_with_placeholders_for_secrets() {
        let mcp: Vec<LaunchedServer> = serde_json::from_value(serde_json::json!([
            { "name": "lab", "origin": "configuration",
              "server": { "command": ["/bin/lab", "-x"], "env": { "A": "b", "T": { "secret": "S" } } } },
            { "name": "web", "origin": "session", "server": {
                "url": "https://h/mcp", "headers": { "Authorization": { "secret": "S", "prefix": "Bearer " } } } },
            { "name": "old", "origin": "session", "server": { "url": "https://h/sse", "transport": "sse" } },
            { "name": "gone", "origin": "session", "server": { "command": ["/bin/x"] }, "missing": "no program" },
        ]))
        .unwrap();
        let names = |capabilities| {
            let with = Surroundings { mcp: &mcp, capabilities, ..surroundings(Path::new("/work")) };
            let message: Value = serde_json::from_str(new_conversation(2, with).get()).unwrap();
            message["params"]["mcpServers"].as_array().unwrap().clone()
        };
        let stdio = serde_json::json!({
            "name": "lab", "command": "/bin/lab", "args": ["-x"],
            "env": [{ "name": "A", "value": "b" }, { "name": "T", "value": "‹secret S›" }],
        });
        assert_eq!(names(Capabilities::default()), std::slice::from_ref(&stdio));
        let http = serde_json::json!({
            "type": "http", "name": "web", "url": "https://h/mcp",
            "headers": [{ "name": "Authorization", "value": "Bearer ‹secret S›" }],
        });
        assert_eq!(names(Capabilities { mcp_http: true, ..Capabilities::default() }), [stdio.clone(), http]);
        assert_eq!(names(Capabilities { mcp_sse: true, ..Capabilities::default() })[1]["type"], "sse");
    }

    #[test]
    fn lines_follow_the_protocol() {
        let with = Surroundings { own: None, ..surroundings(Path::new("/work")) };
        let more = Surroundings { further: &["/more".into()], ..with };
        let lines = [
            (initialize(1, &[]), r#""method":"initialize","params":{"protocolVersion":1,"#),
            (initialize(1, &[]), r#""session":{"configOptions":{"boolean":{}}}"#),
            (initialize(1, &[]), r#""auth":{"terminal":true}"#),
            (initialize(1, &[EditorTool::Fs]), r#""fs":{"readTextFile":true,"writeTextFile":true}"#),
            (initialize(1, &[EditorTool::Terminal]), r#""terminal":true"#),
            (initialize(1, &[]), r#""elicitation":{"form":{},"url":{}}"#),
            (new_conversation(2, with), r#""params":{"cwd":"/work","mcpServers":[]"#),
            (new_conversation(2, more), r#""additionalDirectories":["/more"]"#),
            (load(3, "c", more), r#""additionalDirectories":["/more"]"#),
            (resume(3, "c", more), r#""additionalDirectories":["/more"]"#),
            (fork(3, "c", more), r#""additionalDirectories":["/more"]"#),
            (load(3, "c", with), r#""method":"session/load","#),
            (resume(4, "c", with), r#""method":"session/resume","params":{"sessionId":"c","cwd":"/work""#),
            (fork(4, "c", with), r#""method":"session/fork","params":{"sessionId":"c","cwd":"/work""#),
            (cancel("c"), r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"c"}}"#),
            (
                permission_answer(&Value::from("a"), &PermissionOutcome::Selected("o".into())),
                r#"{"jsonrpc":"2.0","id":"a","result":{"outcome":{"outcome":"selected","optionId":"o"}}}"#,
            ),
            (
                permission_answer(&Value::from(1), &PermissionOutcome::Cancelled),
                r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"cancelled"}}}"#,
            ),
            (unknown_method(&Value::from(7), "x"), r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"#),
        ];
        for (line, expected) in lines {
            assert!(line.get().contains(expected), "{} does not contain {expected}", line.get());
            assert!(!line.get().contains('\n'));
        }
    }

    #[test]
    fn every_way_to_open_a_conversation_names_agentds_own_mcp_server() {
        let (directory, own) = (
            Path::new("/work"),
            OwnServer {
                command: "/bin/agentctl".to_owned(),
                args: vec!["mcp".to_owned()],
                env: vec![("AGENTD_SOCKET".to_owned(), "/run/s".to_owned())],
            },
        );
        let with = Surroundings { own: Some(&own), ..surroundings(directory) };
        let expected = serde_json::json!([{
            "name": "agentd", "command": "/bin/agentctl", "args": ["mcp"],
            "env": [{ "name": "AGENTD_SOCKET", "value": "/run/s" }],
        }]);
        for line in [new_conversation(2, with), load(3, "c", with), resume(4, "c", with), fork(4, "c", with)] {
            let message: Value = serde_json::from_str(line.get()).unwrap();
            assert_eq!(message["params"]["mcpServers"], expected, "{message}");
        }
    }
}
