//! MCP servers that agents get with their conversations (<https://agentclientprotocol.com/protocol/session-setup>,
//! "MCP Servers").

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Name of agentd's own server. No other server may have it.
pub const OWN: &str = "agentd";

/// An MCP server: a program that speaks MCP on stdio, or an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct McpServer {
    /// Program and its arguments, for a server on stdio. A program without a `/` is looked up in the `PATH` of the
    /// session's environment. The agent starts it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Variables of the program, in addition to those that the agent gives it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, TextOrSecret>,
    /// Address of a server over HTTP or SSE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Transport of a server with an address. Default: `http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Headers of each request to a server with an address.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, TextOrSecret>,
}

/// Transport of a server with an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Streamable HTTP.
    #[default]
    Http,
    /// HTTP with server-sent events, which MCP has deprecated.
    Sse,
}

/// A text, or a declared secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "a text, or { secret = \"NAME\" }")]
pub enum TextOrSecret {
    /// The text itself. Not for secrets, since it is stored in clear.
    Text(String),
    /// A declared secret.
    Secret(SecretText),
}

/// A value that contains a declared secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretText {
    /// Name of a secret in `[secrets]`, which the configuration must give to the session.
    pub secret: String,
    /// Text before the secret, such as `Bearer `. Default: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = "")))]
    pub prefix: String,
}

/// A session's choice about a server: a configured server or not, or a server of the session's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "true, false, or a table with `command` or `url`")]
pub enum McpChoice {
    /// Whether the session gets the configured server of this name.
    Configured(bool),
    /// A server of the session's own.
    Own(Box<McpServer>),
}

/// A mistake in the definition of a server. It follows the server's name in a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum McpMistake {
    /// The name is not usable.
    #[error("has a name that is taken or not usable: use letters, digits, `-`, `_` and `.`, and not `agentd`")]
    Name,
    /// Neither or both of the two kinds.
    #[error("must have either `command` or `url`")]
    Kind,
    /// The command has no program.
    #[error("has a command without a program")]
    Program,
    /// The field belongs to the other kind.
    #[error("has {0}, which belongs to a server with {1}")]
    Field(&'static str, &'static str),
    /// The address is not one.
    #[error("has an address that does not begin with http:// or https://")]
    Address,
    /// The address contains a user or a password.
    #[error("has an address with a user name or a password; give the secret in `headers`")]
    Credentials,
    /// A name of a variable or of a header is not valid.
    #[error("has {0:?}, which is not the name of a {1}")]
    Key(String, &'static str),
    /// A text that cannot be sent.
    #[error("has a line break or another control character in {0:?}")]
    Text(String),
}

impl McpServer {
    /// Checks a server and its name.
    ///
    /// # Errors
    ///
    /// The first mistake.
    pub fn check(&self, name: &str) -> Result<(), McpMistake> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name == OWN || name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
            return Err(McpMistake::Name);
        }
        let has_control = |text: &str| text.contains(|c: char| c.is_control() && c != '\t');
        match (&self.url, self.command.first()) {
            (None, Some(program)) if program.is_empty() => return Err(McpMistake::Program),
            (None, Some(_)) => {
                if !self.headers.is_empty() {
                    return Err(McpMistake::Field("`headers`", "`url`"));
                }
                if self.transport.is_some() {
                    return Err(McpMistake::Field("`transport`", "`url`"));
                }
            }
            (Some(url), None) => {
                if !self.env.is_empty() {
                    return Err(McpMistake::Field("`env`", "`command`"));
                }
                let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
                let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
                if authority.is_empty() || url.contains(char::is_whitespace) || has_control(url) {
                    return Err(McpMistake::Address);
                }
                if authority.contains('@') {
                    return Err(McpMistake::Credentials);
                }
            }
            _ => return Err(McpMistake::Kind),
        }
        let is_variable = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
        let is_header =
            |name: &str| !name.is_empty() && name.chars().all(|c| is_plain(c) || "!#$%&'*+^`|~".contains(c));
        for (keys, is_valid, what) in [
            (&self.env, &is_variable as &dyn Fn(&str) -> bool, "variable"),
            (&self.headers, &is_header as &dyn Fn(&str) -> bool, "header"),
        ] {
            for (key, value) in keys {
                if !is_valid(key) {
                    return Err(McpMistake::Key(key.clone(), what));
                }
                let text = value.text();
                if text.contains('\0') || (what == "header" && has_control(text)) {
                    return Err(McpMistake::Text(key.clone()));
                }
            }
        }
        if self.command.iter().any(|word| word.contains('\0')) {
            return Err(McpMistake::Text("command".to_owned()));
        }
        Ok(())
    }

    /// Returns the variables or the headers.
    pub fn values(&self) -> impl Iterator<Item = (&str, &TextOrSecret)> {
        self.env.iter().chain(&self.headers).map(|(name, value)| (name.as_str(), value))
    }

    /// Returns the names of the secrets that the server needs.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.values().filter_map(|(_, value)| match value {
            TextOrSecret::Text(_) => None,
            TextOrSecret::Secret(secret) => Some(secret.secret.as_str()),
        })
    }

    /// Describes the server in one line: its command or its address, and the names of its variables or headers.
    pub fn describe(&self) -> String {
        let place = match (&self.url, self.transport) {
            (Some(url), Some(Transport::Sse)) => format!("{url} (sse)"),
            (Some(url), _) => url.clone(),
            (None, _) => self.command.join(" "),
        };
        let named = |(name, value): (&str, &TextOrSecret)| match value {
            TextOrSecret::Text(_) => name.to_owned(),
            TextOrSecret::Secret(secret) => format!("{name} from the secret {}", secret.secret),
        };
        let values: Vec<String> = self.values().map(named).collect();
        if values.is_empty() { place } else { format!("{place}, with {}", values.join(", ")) }
    }
}

impl TextOrSecret {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Secret(secret) => &secret.prefix,
        }
    }

    /// Returns the value with a placeholder for the secret. The process that holds the agent fills it in, so that no
    /// record contains the secret.
    pub fn with_placeholder(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Secret(secret) => format!("{}{}", secret.prefix, placeholder(&secret.secret)),
        }
    }
}

/// Returns the placeholder of a secret in a line for the agent.
pub fn placeholder(secret: &str) -> String {
    format!("‹secret {secret}›")
}

/// A server of a launch, or the reason why the agent does not get it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaunchedServer {
    /// Name of the server.
    pub name: String,
    /// Where the server is defined: `configuration` or `session`.
    pub origin: McpOrigin,
    /// The server, with the absolute path of its program.
    pub server: McpServer,
    /// Why the agent does not get the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// Where a server is defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum McpOrigin {
    /// `[mcp.NAME]` of the configuration.
    Configuration,
    /// The session's specification.
    Session,
    /// A value newer than this reader.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(json: &str) -> String {
        let server: McpServer = serde_json::from_str(json).unwrap();
        server.check("lab").map_or_else(|mistake| mistake.to_string(), |()| String::new())
    }

    #[test]
    fn each_mistake_is_named() {
        assert_eq!(mistake(r#"{"command":["x"],"env":{"A":"b","T":{"secret":"S"}}}"#), "");
        assert_eq!(mistake(r#"{"url":"https://h/mcp","transport":"sse","headers":{"X-A":"b"}}"#), "");
        for (json, part) in [
            ("{}", "either `command` or `url`"),
            (r#"{"command":["x"],"url":"https://h"}"#, "either `command` or `url`"),
            (r#"{"command":[""]}"#, "without a program"),
            (r#"{"command":["x"],"headers":{"A":"b"}}"#, "`headers`"),
            (r#"{"command":["x"],"transport":"http"}"#, "`transport`"),
            (r#"{"url":"https://h","env":{"A":"b"}}"#, "`env`"),
            (r#"{"url":"ftp://h"}"#, "http:// or https://"),
            (r#"{"url":"https:///x"}"#, "http:// or https://"),
            (r#"{"url":"https://u:p@h/x"}"#, "a user name or a password"),
            (r#"{"url":"https://h","headers":{"A B":"b"}}"#, "not the name of a header"),
            (r#"{"url":"https://h","headers":{"A":"b\nC: d"}}"#, "a line break"),
            (r#"{"command":["x"],"env":{"A=B":"b"}}"#, "not the name of a variable"),
        ] {
            assert!(mistake(json).contains(part), "{json}: {}", mistake(json));
        }
        let server = McpServer { command: vec!["x".to_owned()], ..McpServer::default() };
        for name in ["agentd", "", "a b", &"n".repeat(65)] {
            assert_eq!(server.check(name), Err(McpMistake::Name), "{name}");
        }
        assert!(serde_json::from_str::<McpServer>(r#"{"command":["x"],"environment":{}}"#).is_err());
        assert!(serde_json::from_str::<McpServer>(r#"{"command":["x"],"env":{"A":{"secret":"s","x":1}}}"#).is_err());
    }

    #[test]
    fn a_description_and_a_placeholder_have_the_secrets_name_alone() {
        let server: McpServer = serde_json::from_str(
            r#"{"url":"https://h","headers":{"Authorization":{"secret":"T","prefix":"Bearer "}}}"#,
        )
        .unwrap();
        assert_eq!(server.describe(), "https://h, with Authorization from the secret T");
        assert_eq!(server.headers["Authorization"].with_placeholder(), "Bearer ‹secret T›");
        assert_eq!(server.secrets().collect::<Vec<_>>(), ["T"]);
    }
}
