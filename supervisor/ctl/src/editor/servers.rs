//! The MCP servers of an editor, for the agent of its session.
//!
//! A server is left out if agentd would store a secret in clear.

use std::collections::BTreeMap;

use agentd_api::mcp::{McpChoice, McpServer, TextOrSecret, Transport};
use agentd_api::session::SessionView;
use agentd_api::spec::SpecPatch;
use agentd_secret_names::{is_secret, is_secret_name};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::host::tell;
use super::refusal;
use super::wire::Refusal;
use agentd_client::Client;

/// A server as the protocol has it: a program on stdio, or an address.
#[derive(Deserialize)]
struct Given {
    name: String,
    #[serde(default)]
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<Pair>,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    headers: Vec<Pair>,
}

/// A variable of a program, or a header of its requests.
#[derive(Deserialize)]
struct Pair {
    name: String,
    value: String,
}

/// Adds the servers of an editor to an existing session, and replaces those of the same names. A running agent gets
/// them with the next launch.
pub(super) async fn change(client: &Client, view: &SessionView, given: &[Value]) -> Result<(), Refusal> {
    let (id, present) = (view.id.as_str(), &view.spec.mcp);
    let others = of(id, given).into_iter().filter(|(name, choice)| present.get(name) != Some(choice));
    let changes: Map<String, Value> = others
        .map(|(name, choice)| {
            let change = replacement(&json!(present.get(&name)), &json!(choice));
            (name, change)
        })
        .collect();
    if changes.is_empty() {
        return Ok(());
    }
    let patch = SpecPatch(Map::from_iter([("mcp".to_owned(), Value::Object(changes))]));
    client.change_spec(id, &patch, None).await.map_err(|error| refusal::of(&error.into()))?;
    if !view.status.phase.is_over() {
        let text = "the agent gets the MCP servers of the editor with the next launch; agentctl stop and agentctl \
                    resume apply them now";
        tell(id, text);
    }
    Ok(())
}

/// Returns the merge patch (RFC 7396) that makes `old` the same as `new`.
fn replacement(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return new.clone() };
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let kept = new.iter().map(|(key, value)| (key.clone(), replacement(&old.get(key).cloned().into(), value)));
    gone.chain(kept).collect::<Map<_, _>>().into()
}

/// Returns the servers for a session's specification. Standard error names each server that is left out.
pub(super) fn of(session: &str, servers: &[Value]) -> BTreeMap<String, McpChoice> {
    let mut choices = BTreeMap::new();
    for server in servers {
        match choice(server) {
            Ok((name, choice)) => drop(choices.insert(name, choice)),
            Err(why) => {
                let name = server["name"].as_str().unwrap_or_default();
                tell(session, &format!("the editor's MCP server {name:?} is left out: it {why}"));
            }
        }
    }
    choices
}

fn choice(server: &Value) -> Result<(String, McpChoice), String> {
    let transport = match server["type"].as_str() {
        None | Some("stdio") => None,
        Some("http") => Some(Transport::Http),
        Some("sse") => Some(Transport::Sse),
        Some(kind) => return Err(format!("has the type {kind:?}, which agentd does not know")),
    };
    let given = Given::deserialize(server).map_err(|error| format!("is not valid: {error}"))?;
    if let Some(place) = secret(&given) {
        return Err(format!(
            "has a secret in {place}: agentd does not store it; configure the server in agentd, with a declared secret"
        ));
    }
    // Names of editors may have spaces.
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let name: String = given.name.chars().map(plain).collect();
    let texts = |pairs: Vec<Pair>| pairs.into_iter().map(|pair| (pair.name, TextOrSecret::Text(pair.value))).collect();
    let server = McpServer {
        command: given.command.into_iter().chain(given.args).collect(),
        env: texts(given.env),
        url: given.url,
        transport,
        headers: texts(given.headers),
    };
    server.check(&name).map_err(|mistake| mistake.to_string())?;
    Ok((name, McpChoice::Own(Box::new(server))))
}

/// Returns the part of a server that contains a secret.
fn secret(given: &Given) -> Option<String> {
    if let Some(variable) = given.env.iter().find(|pair| is_secret(&pair.name, pair.value.as_bytes())) {
        return Some(variable.name.clone());
    }
    // With a word in front, names of one word such as `Cookie` are names of secrets too.
    let is_secret_header =
        |pair: &&Pair| is_secret(&pair.name, pair.value.as_bytes()) || is_secret_name(&format!("X-{}", pair.name));
    if let Some(header) = given.headers.iter().find(is_secret_header) {
        return Some(format!("the header {}", header.name));
    }
    if given.url.as_ref().is_some_and(|url| is_secret("", url.as_bytes())) {
        return Some("its address".to_owned());
    }
    let has_secret = given.args.iter().any(|argument| is_secret("", argument.as_bytes()));
    has_secret.then(|| "its arguments".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers_without_secrets_are_passed_on() {
        let team = json!([{ "name": "X-Team", "value": "w" }]);
        let servers = [
            json!({ "name": "my files", "command": "/f", "args": ["-v"], "env": [{ "name": "A", "value": "1" }] }),
            json!({ "type": "http", "name": "web", "url": "http://h/mcp", "headers": team }),
            json!({ "type": "sse", "name": "old", "url": "https://h/sse", "headers": [] }),
            json!({ "name": "agentd", "command": "/bin/k" }),
            json!({ "type": "acp", "name": "new", "id": "x" }),
            json!({ "type": "http", "name": "nowhere", "headers": [] }),
            json!(7),
        ];
        let choices = of("k", &servers);
        assert_eq!(choices.keys().collect::<Vec<_>>(), ["my-files", "old", "web"]);
        let own = |name: &str| match &choices[name] {
            McpChoice::Own(server) => server.clone(),
            McpChoice::Configured(_) => panic!("{name}"),
        };
        assert_eq!((own("my-files").command.join(" "), own("my-files").env.len()), ("/f -v".to_owned(), 1));
        assert_eq!((own("web").url.as_deref(), own("web").transport), (Some("http://h/mcp"), Some(Transport::Http)));
        assert_eq!(own("web").headers["X-Team"], TextOrSecret::Text("w".to_owned()));
        assert_eq!((own("old").transport, own("old").headers.len()), (Some(Transport::Sse), 0));
    }

    #[test]
    fn a_replaced_server_keeps_nothing_of_the_old_one() {
        let old = json!({ "url": "http://h", "headers": { "A": "1", "B": "2" } });
        let new = json!({ "command": ["/f"], "headers": { "B": "2" } });
        let patch = json!({ "url": null, "command": ["/f"], "headers": { "A": null, "B": "2" } });
        assert_eq!(replacement(&old, &new), patch);
        assert_eq!(replacement(&Value::Null, &new), new);
        assert_eq!(replacement(&json!(false), &new), new);
    }

    #[test]
    fn a_server_with_a_secret_is_left_out_and_the_remark_names_the_place() {
        let http = |url: &str, name: &str, value: &str| {
            let headers = json!([{ "name": name, "value": value }]);
            json!({ "type": "http", "name": "n", "url": url, "headers": headers })
        };
        let key = json!([{ "name": "API_KEY", "value": "s" }]);
        for (server, place) in [
            (json!({ "name": "n", "command": "/bin/k", "env": key }), "API_KEY"),
            (json!({ "name": "n", "command": "/bin/k", "args": ["--password=hunter2"] }), "its arguments"),
            (http("https://h", "Authorization", "x"), "the header Authorization"),
            (http("https://h", "Cookie", "x"), "the header Cookie"),
            (http("https://h", "X-Api-Key", "x"), "the header X-Api-Key"),
            (http("https://h", "X-Team", "Bearer 0123456789abcdef"), "the header X-Team"),
            (http("https://h/?api_key=0123456789abcdef", "X-Team", "w"), "its address"),
        ] {
            let why = choice(&server).unwrap_err();
            assert!(why.starts_with(&format!("has a secret in {place}: ")), "{server}: {why}");
        }
    }
}
