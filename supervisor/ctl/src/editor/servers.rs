//! The MCP servers of an editor, for the agent of a new session.
//!
//! `initialize` offers servers on stdio only. A server is left out if agentd would store a secret of it in clear.

use std::collections::BTreeMap;

use agentd_api::mcp::{McpChoice, McpServer, TextOrSecret};
use agentd_secret_names::is_secret;
use serde::Deserialize;
use serde_json::Value;

use super::host::tell;

/// A server on stdio, as the protocol has it.
#[derive(Deserialize)]
struct Stdio {
    name: String,
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<Variable>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

/// Returns the servers for a session's specification. Standard error names each server that is left out.
pub(super) fn of(servers: &[Value]) -> BTreeMap<String, McpChoice> {
    let mut choices = BTreeMap::new();
    for server in servers {
        match choice(server) {
            Ok((name, choice)) => drop(choices.insert(name, choice)),
            Err(why) => {
                let name = server["name"].as_str().unwrap_or_default();
                tell("(new)", &format!("the editor's MCP server {name:?} is left out: it {why}"));
            }
        }
    }
    choices
}

fn choice(server: &Value) -> Result<(String, McpChoice), String> {
    if server["type"].as_str().is_some_and(|kind| kind != "stdio") {
        return Err("is not on stdio".to_owned());
    }
    let Stdio { name, command, args, env } =
        Stdio::deserialize(server).map_err(|error| format!("is not valid: {error}"))?;
    let hint = "agentd does not store it; configure the server in agentd, with a declared secret";
    if let Some(secret) = env.iter().find(|variable| is_secret(&variable.name, variable.value.as_bytes())) {
        return Err(format!("has a secret in {}: {hint}", secret.name));
    }
    if args.iter().any(|argument| is_secret("", argument.as_bytes())) {
        return Err(format!("has a secret in its arguments: {hint}"));
    }
    // Names of editors may have spaces.
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let name: String = name.chars().map(plain).collect();
    let server = McpServer {
        command: std::iter::once(command).chain(args).collect(),
        env: env.into_iter().map(|variable| (variable.name, TextOrSecret::Text(variable.value))).collect(),
        ..McpServer::default()
    };
    server.check(&name).map_err(|mistake| mistake.to_string())?;
    Ok((name, McpChoice::Own(Box::new(server))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers_on_stdio_are_passed_on_without_secrets() {
        let servers = [
            json!({ "name": "my files", "command": "/f", "args": ["-v"], "env": [{ "name": "A", "value": "1" }] }),
            json!({ "name": "key", "command": "/bin/k", "args": [], "env": [{ "name": "API_KEY", "value": "s" }] }),
            json!({ "type": "http", "name": "web", "url": "http://h", "headers": [] }),
            json!({ "name": "agentd", "command": "/bin/k" }),
            json!(7),
        ];
        let choices = of(&servers);
        assert_eq!(choices.keys().collect::<Vec<_>>(), ["my-files"]);
        let McpChoice::Own(server) = &choices["my-files"] else { panic!() };
        assert_eq!((server.command.join(" "), server.env.len()), ("/f -v".to_owned(), 1));
    }
}
