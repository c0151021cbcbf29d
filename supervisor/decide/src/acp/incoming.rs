//! Parses the lines that an agent sends.

use std::collections::BTreeSet;

use agentd_api::editor::EditorTool;
use agentd_api::login::LoginMethod;
use agentd_api::session::{AgentInfo, PermissionOption};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::call::{Call, Raw as RawCall};
use super::id;

/// A line as a JSON-RPC 2.0 message. Params and results stay unparsed.
#[derive(Debug)]
pub enum Message<'a> {
    Request { id: Value, method: String, params: Option<&'a RawValue> },
    Notification { method: String, params: Option<&'a RawValue> },
    Response { id: Value, result: Result<&'a RawValue, RpcError> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    #[serde(default)]
    pub code: i64,
    #[serde(default)]
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl std::fmt::Display for RpcError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.message, self.code)?;
        match &self.data {
            Some(Value::String(text)) => write!(f, ": {text}"),
            Some(Value::Object(map)) if map.get("details").is_some_and(Value::is_string) => {
                write!(f, ": {}", map["details"].as_str().unwrap_or_default())
            }
            _ => Ok(()),
        }
    }
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<RpcError>,
}

const NULL: &str = "null";

impl<'a> Message<'a> {
    /// Parses a line. Returns `None` for JSON that is not JSON-RPC. `written` is the line as received; `line` may
    /// be a copy with repaired surrogates.
    pub fn parse(line: &'a RawValue, written: &RawValue) -> Option<Self> {
        let raw: Raw<'a> = serde_json::from_str(line.get()).ok()?;
        let id = raw.id.and_then(|id| id::read(id, written));
        match (id, raw.method) {
            (Some(id), Some(method)) => Some(Self::Request { id, method, params: raw.params }),
            (None, Some(method)) => Some(Self::Notification { method, params: raw.params }),
            (Some(id), None) => {
                // `"result": null` is a success (seen for session/load), and serde reads it as None.
                let result = match raw.error {
                    Some(error) => Err(error),
                    None => Ok(match raw.result {
                        Some(result) => result,
                        None => serde_json::from_str(NULL).ok()?,
                    }),
                };
                Some(Self::Response { id, result })
            }
            (None, None) => None,
        }
    }
}

/// Abilities of the agent around opening conversations and around prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "an agent offers each of them or not, and any may stand beside any")]
pub struct Capabilities {
    pub load: bool,
    pub resume: bool,
    #[serde(default)]
    pub fork: bool,
    #[serde(default)]
    pub delete: bool,
    /// Whether the agent takes `additionalDirectories`.
    #[serde(default)]
    pub directories: bool,
    /// Whether the agent takes MCP servers over HTTP, and over SSE.
    #[serde(default)]
    pub mcp_http: bool,
    #[serde(default)]
    pub mcp_sse: bool,
    /// Whether the agent takes images, sounds, and resources with their content, in prompts.
    #[serde(default)]
    pub image: bool,
    #[serde(default)]
    pub audio: bool,
    #[serde(default)]
    pub embedded: bool,
}

/// Result of `initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Initialized {
    pub protocol: u64,
    pub capabilities: Capabilities,
    pub agent: Option<AgentInfo>,
    /// The agent's login methods.
    pub login_methods: Vec<LoginMethod>,
}

/// Parses the result of `initialize`. The error describes the defect in the result.
pub fn initialized(result: &RawValue) -> Result<Initialized, String> {
    let value: Value = serde_json::from_str(result.get()).map_err(|error| error.to_string())?;
    let protocol = value.get("protocolVersion").and_then(Value::as_u64).ok_or("the result has no protocolVersion")?;
    let capabilities = value.get("agentCapabilities");
    let load = capabilities.and_then(|c| c.get("loadSession")).and_then(Value::as_bool).unwrap_or(false);
    let of_sessions = |name| capabilities?.get("sessionCapabilities")?.get(name).filter(|offer| !offer.is_null());
    let (resume, fork) = (of_sessions("resume").is_some(), of_sessions("fork").is_some());
    let delete = of_sessions("delete").is_some();
    let directories = of_sessions("additionalDirectories").is_some();
    // An invalid agentInfo is no reason to refuse an agent.
    let agent = value.get("agentInfo").cloned().and_then(|info| serde_json::from_value(info).ok());
    let mcp = |name| capabilities?.get("mcpCapabilities")?.get(name)?.as_bool();
    let (mcp_http, mcp_sse) = (mcp("http").unwrap_or(false), mcp("sse").unwrap_or(false));
    let login_methods = LoginMethod::of(&value);
    let prompt = |name| capabilities?.get("promptCapabilities")?.get(name)?.as_bool();
    let prompt = |name| prompt(name).unwrap_or(false);
    let (image, audio, embedded) = (prompt("image"), prompt("audio"), prompt("embeddedContext"));
    let capabilities =
        Capabilities { load, resume, fork, delete, directories, mcp_http, mcp_sse, image, audio, embedded };
    Ok(Initialized { protocol, capabilities, agent, login_methods })
}

/// Returns the requests to an editor that the parameters of `initialize` offer to the agent.
pub fn offered_to_agent(params: &RawValue) -> BTreeSet<EditorTool> {
    let value: Value = serde_json::from_str(params.get()).unwrap_or_default();
    let capabilities = &value["clientCapabilities"];
    let fs = (capabilities["fs"]["readTextFile"] == true).then_some(EditorTool::Fs);
    let terminal = (capabilities["terminal"] == true).then_some(EditorTool::Terminal);
    fs.into_iter().chain(terminal).collect()
}

/// Returns the conversation's id from the result of `session/new`.
pub fn opened(result: &RawValue) -> Option<String> {
    let value: Value = serde_json::from_str(result.get()).ok()?;
    value.get("sessionId")?.as_str().map(str::to_owned)
}

/// Returns the stop reason from the result of `session/prompt`, in the agent's spelling.
pub fn stop_reason(result: &RawValue) -> Option<String> {
    let value: Value = serde_json::from_str(result.get()).ok()?;
    value.get("stopReason")?.as_str().map(str::to_owned)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPermission<'a> {
    #[serde(default, borrow)]
    tool_call: Option<&'a RawValue>,
    #[serde(default)]
    options: Vec<Value>,
}

/// Returns the tool call and the options of a permission request.
pub fn permission_request(params: &RawValue) -> Option<(Call, Vec<PermissionOption>)> {
    let raw: RawPermission<'_> = serde_json::from_str(params.get()).ok()?;
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let options = raw
        .options
        .iter()
        .filter_map(|option| {
            let id = text(option, "optionId")?;
            let name = text(option, "name").unwrap_or_else(|| id.clone());
            Some(PermissionOption { id, name, kind: text(option, "kind").unwrap_or_default() })
        })
        .collect();
    let call = raw.tool_call.and_then(|call| serde_json::from_str::<RawCall<'_>>(call.get()).ok()).unwrap_or_default();
    Some((call.read(), options))
}

/// State of a tool call, as reported by a `session/update`.
#[derive(Debug, PartialEq, Eq)]
pub enum ToolCall {
    /// The tool call has begun or continues. Holds its details, and whether the update names the tool call's state.
    Open(Box<Call>, bool),
    Closed(String),
}

/// Parses the state of a tool call from the params of `session/update`. Returns `None` for any other update.
pub fn tool_call(params: &RawValue) -> Option<ToolCall> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        update: Update<'a>,
    }
    #[derive(Deserialize)]
    struct Details<'a> {
        #[serde(borrow)]
        update: RawCall<'a>,
    }
    #[derive(Deserialize)]
    struct Update<'a> {
        #[serde(rename = "sessionUpdate", borrow)]
        kind: std::borrow::Cow<'a, str>,
        #[serde(rename = "toolCallId", default)]
        id: Option<String>,
        #[serde(default)]
        status: Option<String>,
    }
    let update = serde_json::from_str::<Params<'_>>(params.get()).ok()?.update;
    let id = update.id?;
    let call = || {
        let call = serde_json::from_str::<Details<'_>>(params.get()).ok();
        Box::new(Call { id: id.clone(), ..call.map(|call| call.update.read()).unwrap_or_default() })
    };
    match (&*update.kind, update.status.as_deref()) {
        ("tool_call" | "tool_call_update", Some("completed" | "failed")) => Some(ToolCall::Closed(id)),
        ("tool_call", _) | ("tool_call_update", Some(_)) => Some(ToolCall::Open(call(), true)),
        ("tool_call_update", None) => Some(ToolCall::Open(call(), false)),
        _ => None,
    }
}

/// Parses the title from the params of a `session/update` that reports information about the session. The outer
/// `None` means another update, or information without a title. The inner `None` removes the title.
#[allow(clippy::option_option, reason = "ACP distinguishes a title that is absent from a title that is null")]
pub fn session_title(params: &RawValue) -> Option<Option<String>> {
    let value: Value = serde_json::from_str(params.get()).ok()?;
    let update = value.get("update")?;
    let is_info = update.get("sessionUpdate").and_then(Value::as_str) == Some("session_info_update");
    let title = update.get("title").filter(|_| is_info)?;
    Some(title.as_str().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_read_and_removed_and_otherwise_left() {
        let read = |update: &str| session_title(&raw(&format!(r#"{{"sessionId":"s","update":{update}}}"#)));
        assert_eq!(read(r#"{"sessionUpdate":"session_info_update","title":"T"}"#), Some(Some("T".to_owned())));
        assert_eq!(read(r#"{"sessionUpdate":"session_info_update","title":null}"#), Some(None));
        assert_eq!(read(r#"{"sessionUpdate":"session_info_update","updatedAt":"x"}"#), None);
        assert_eq!(read(r#"{"sessionUpdate":"tool_call","title":"T"}"#), None);
    }

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn a_lines_type_follows_from_its_fields() {
        let request = raw(r#"{"jsonrpc":"2.0","id":0,"method":"m","params":{}}"#);
        assert!(matches!(Message::parse(&request, &request), Some(Message::Request { id, .. }) if id == 0));
        let notification = raw(r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#);
        assert!(matches!(
            Message::parse(&notification, &notification),
            Some(Message::Notification { params: None, .. })
        ));
        let null_result = raw(r#"{"id":"x","result":null}"#);
        assert!(matches!(
            Message::parse(&null_result, &null_result),
            Some(Message::Response { result: Ok(r), .. }) if r.get() == "null"
        ));
        let error = raw(r#"{"id":3,"error":{"code":-32000,"message":"sign in","data":{"details":"no key"}}}"#);
        let Some(Message::Response { result: Err(error), .. }) = Message::parse(&error, &error) else { panic!() };
        assert_eq!(error.to_string(), "sign in (-32000): no key");
        for not_rpc in ["[]", "1", "{}", r#"{"id":null,"error":{"code":-32700,"message":""}}"#] {
            assert!(Message::parse(&raw(not_rpc), &raw(not_rpc)).is_none(), "{not_rpc}");
        }
    }

    #[test]
    fn capabilities_are_read_and_what_is_odd_beside_them_is_no_reason_to_refuse() {
        let result = raw(
            r#"{"protocolVersion":1,"agentInfo":7,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"resume":{}}}}"#,
        );
        let got = initialized(&result).unwrap();
        assert_eq!(got.capabilities, Capabilities { load: true, resume: true, ..Capabilities::default() });
        assert_eq!(got.agent, None);
        assert!(initialized(&raw("{}")).is_err());
        let none = raw(r#"{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":null}}}"#);
        assert_eq!(initialized(&none).unwrap().capabilities, Capabilities::default());
    }

    #[test]
    fn unknown_kinds_of_options_are_kept() {
        let params = raw(r#"{"sessionId":"s","toolCall":{"toolCallId":"c","title":"rm","kind":"execute"},
            "options":[{"optionId":"a","name":"A","kind":"allow_for_a_moon"},{"name":"no id"}]}"#);
        let (call, options) = permission_request(&params).unwrap();
        assert_eq!((call.title.as_deref(), call.kind.as_deref()), (Some("rm"), Some("execute")));
        assert_eq!(options, [PermissionOption { id: "a".into(), name: "A".into(), kind: "allow_for_a_moon".into() }]);
    }

    #[test]
    fn a_tool_call_is_open_until_it_is_completed_or_failed() {
        let update = |text: &str| tool_call(&raw(&format!(r#"{{"sessionId":"s","update":{text}}}"#)));
        let open = |title: Option<&str>, told| {
            let mut call = Call { id: "c".into(), title: title.map(str::to_owned), ..Call::default() };
            call.details.tool_call = Some("c".into());
            Some(ToolCall::Open(Box::new(call), told))
        };
        assert_eq!(update(r#"{"sessionUpdate":"tool_call","toolCallId":"c"}"#), open(None, true));
        assert_eq!(
            update(r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","title":"t"}"#),
            open(Some("t"), false)
        );
        assert_eq!(
            update(r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"in_progress"}"#),
            open(None, true)
        );
        let closed = Some(ToolCall::Closed("c".into()));
        assert_eq!(update(r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"failed"}"#), closed);
        assert_eq!(update(r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"x"}}"#), None);
    }
}
