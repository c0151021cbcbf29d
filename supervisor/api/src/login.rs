//! Ways to log in to an agent (ACP `authMethods`, <https://agentclientprotocol.com/protocol/authentication>).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::SessionId;
use crate::snapshot::TerminalVariable;

/// The body of `POST /v1/agents/{name}/environment`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentStartRequest {
    /// Directory in which the agent would work. Absolute.
    pub directory: PathBuf,
    /// A session, by its id, whose specification and whose place of conversations the environment has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
}

/// How an agent would be started, outside of a session. Contains secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentStart {
    /// Absolute path of the program, and its arguments.
    pub command: Vec<String>,
    /// The complete environment.
    pub environment: Vec<TerminalVariable>,
}

/// Shows no value of a variable.
impl std::fmt::Debug for AgentStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AgentStart({:?}, {} variables)", self.command, self.environment.len())
    }
}

/// A login method that an agent offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoginMethod {
    /// The agent's id of the method.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// The agent's own words about the method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How the method works.
    pub kind: LoginKind,
    /// Program of a terminal login, where the agent names another than its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Arguments of a terminal login.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables of a terminal login, in addition to the agent's environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Variables that hold the key, for the kind `variables`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<String>,
}

/// How a login method works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LoginKind {
    /// The agent logs in by itself when it gets the request `authenticate`.
    Agent,
    /// A program asks at a terminal.
    Terminal,
    /// The agent reads a key from variables of its environment.
    Variables,
    /// A kind newer than this reader.
    #[serde(other)]
    Unknown,
}

impl LoginKind {
    /// Returns the kind's name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Terminal => "terminal",
            Self::Variables => "variables",
            Self::Unknown => "unknown",
        }
    }
}

/// Maximum number of methods kept, and maximum number of characters of each text.
const METHODS: usize = 8;
const LONGEST: usize = 300;

impl LoginMethod {
    /// Reads the methods from the result of `initialize`. Cuts long texts, and leaves out invalid methods.
    pub fn of(result: &Value) -> Vec<Self> {
        let methods = result.get("authMethods").and_then(Value::as_array).into_iter().flatten();
        methods.filter_map(read).take(METHODS).collect()
    }
}

fn text(value: &Value, key: &str) -> Option<String> {
    Some(value.get(key)?.as_str()?.chars().take(LONGEST).collect())
}

fn texts(value: &Value, key: &str) -> Vec<String> {
    let texts = value.get(key).and_then(Value::as_array).into_iter().flatten();
    texts.filter_map(|text| text.as_str().map(str::to_owned)).take(32).collect()
}

fn read(method: &Value) -> Option<LoginMethod> {
    let name = text(method, "name");
    let id = text(method, "id").or_else(|| name.clone())?;
    // Agents offer a terminal login also as an extension that some editors know.
    let extension = method.get("_meta").and_then(|meta| meta.get("terminal-auth")).filter(|value| value.is_object());
    let (kind, source) = match (method.get("type").and_then(Value::as_str), extension) {
        (Some("terminal"), _) => (LoginKind::Terminal, method),
        (Some("env_var"), _) => (LoginKind::Variables, method),
        (None | Some("agent"), Some(extension)) => (LoginKind::Terminal, extension),
        (None | Some("agent"), None) => (LoginKind::Agent, method),
        (Some(_), _) => (LoginKind::Unknown, method),
    };
    let env = source.get("env").and_then(Value::as_object).into_iter().flatten();
    let listed = method.get("vars").and_then(Value::as_array).into_iter().flatten();
    let variables = listed.filter_map(|variable| text(variable, "name")).chain(text(method, "varName"));
    Some(LoginMethod {
        name: name.unwrap_or_else(|| id.clone()),
        id,
        description: text(method, "description"),
        kind,
        command: text(source, "command").filter(|_| extension.is_some()),
        args: texts(source, "args"),
        env: env
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect::<BTreeMap<_, _>>(),
        variables: variables.take(8).collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_of_method_is_known() {
        let result = json!({ "authMethods": [
            { "id": "oauth", "name": "Log in", "description": "In the browser" },
            { "id": "setup", "name": "Set up", "type": "terminal", "args": ["--login"], "env": { "A": "1" } },
            { "id": "key", "name": "Key", "type": "env_var", "vars": [{ "name": "API_KEY" }] },
            { "id": "old", "name": "Old", "_meta": { "terminal-auth": { "command": "/bin/x", "args": ["login"] } } },
            { "id": "new", "name": "New", "type": "telepathy" },
            { "name": "No id" }, 7,
        ] });
        let found = LoginMethod::of(&result);
        let kinds: Vec<(&str, &str)> = found.iter().map(|method| (method.id.as_str(), method.kind.as_str())).collect();
        assert_eq!(
            kinds,
            [
                ("oauth", "agent"),
                ("setup", "terminal"),
                ("key", "variables"),
                ("old", "terminal"),
                ("new", "unknown"),
                ("No id", "agent"),
            ]
        );
        assert_eq!((found[1].args.as_slice(), found[1].env["A"].as_str()), (&["--login".to_owned()][..], "1"));
        assert_eq!(found[2].variables, ["API_KEY"]);
        assert_eq!((found[3].command.as_deref(), found[3].args[0].as_str()), (Some("/bin/x"), "login"));
    }
}
