//! Interprets the messages of an agent: the updates of the Agent Client Protocol that are shown to a user.
//!
//! Agents send updates, kinds and fields that no published version names. An unknown update is
//! [`Update::Other`], never an error.

use agentd_api::surrogates::replace_lone_surrogates;
use serde_json::Value;
use serde_json::value::RawValue;

/// Message of the agent with a meaning for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Update {
    Answer(String),
    Thought(String),
    Tool(ToolUpdate),
    Plan(Vec<PlanEntry>),
    /// Update that is not shown, by its name.
    Other(String),
    /// Names of the login methods in the response to `initialize`; empty without such a method.
    SignIn(Vec<String>),
    /// The agent answered a request of agentd with this error.
    Refused {
        id: u64,
        code: i64,
    },
}

/// Changes of a tool call. An absent field is unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ToolUpdate {
    pub(crate) id: String,
    pub(crate) title: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) status: Option<String>,
    /// Complete output so far.
    pub(crate) output: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlanEntry {
    pub(crate) text: String,
    pub(crate) status: String,
}

/// Interprets one message of the agent. Returns `None` for a message that is not for the user, such as most
/// responses.
pub(crate) fn interpret(message: &RawValue) -> Option<Update> {
    let message: Value = serde_json::from_str(replace_lone_surrogates(message).get()).ok()?;
    if message["method"].is_null() {
        return response(&message);
    }
    if message["method"] != "session/update" {
        return None;
    }
    let update = &message["params"]["update"];
    let name = update["sessionUpdate"].as_str().unwrap_or("an update without a name");
    Some(match name {
        "agent_message_chunk" => Update::Answer(block_text(&update["content"])),
        "agent_thought_chunk" => Update::Thought(block_text(&update["content"])),
        "tool_call" | "tool_call_update" => match update["toolCallId"].as_str() {
            Some(id) => Update::Tool(tool(id, update)),
            None => Update::Other(name.to_owned()),
        },
        "plan" => Update::Plan(update["entries"].as_array().into_iter().flatten().map(plan_entry).collect()),
        _ => Update::Other(name.to_owned()),
    })
}

/// Extracts the parts of a response that explain a failure.
fn response(message: &Value) -> Option<Update> {
    if let Some(ways) = message["result"]["authMethods"].as_array() {
        let name = |way: &Value| way["name"].as_str().or(way["id"].as_str()).map(str::to_owned);
        return Some(Update::SignIn(ways.iter().filter_map(name).collect()));
    }
    let (id, code) = (message["id"].as_u64()?, message["error"]["code"].as_i64()?);
    Some(Update::Refused { id, code })
}

fn tool(id: &str, update: &Value) -> ToolUpdate {
    let text = |field: &str| update[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let content = update["content"].as_array().filter(|content| !content.is_empty());
    let output = content
        .map(|content| content.iter().map(tool_content).collect::<String>())
        .or_else(|| raw_output(&update["rawOutput"]))
        .filter(|output| !output.is_empty());
    ToolUpdate { id: id.to_owned(), title: text("title"), kind: text("kind"), status: text("status"), output }
}

fn tool_content(content: &Value) -> String {
    match content["type"].as_str() {
        Some("content") => block_text(&content["content"]),
        Some("diff") => diff(content),
        _ => String::new(),
    }
}

/// Returns the command's output from `rawOutput`: some agents send it only there.
fn raw_output(output: &Value) -> Option<String> {
    output.as_str().or_else(|| output["output"].as_str()).or_else(|| output["stdout"].as_str()).map(str::to_owned)
}

/// Formats the removed and the added lines, without the lines that both texts share at the beginning and at the
/// end.
fn diff(content: &Value) -> String {
    let lines = |field: &str| content[field].as_str().unwrap_or_default().lines().collect::<Vec<_>>();
    let (old, new) = (lines("oldText"), lines("newText"));
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[head..], &new[head..]);
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let mut text = format!("{}:{}\n", content["path"].as_str().unwrap_or_default(), head + 1);
    for (sign, lines) in [('-', &old[..old.len() - tail]), ('+', &new[..new.len() - tail])] {
        for line in lines {
            text.extend([sign, ' ']);
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

fn block_text(block: &Value) -> String {
    match block["type"].as_str() {
        Some("text") | None => block["text"].as_str().unwrap_or_default().to_owned(),
        Some("resource_link") => block["uri"].as_str().unwrap_or_default().to_owned(),
        Some("resource") => match block["resource"]["text"].as_str() {
            Some(text) => text.to_owned(),
            None => block["resource"]["uri"].as_str().unwrap_or_default().to_owned(),
        },
        Some(other) => format!("({other})"),
    }
}

fn plan_entry(entry: &Value) -> PlanEntry {
    let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    PlanEntry { text: text("content"), status: text("status") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(update: &Value) -> Option<Update> {
        let message = json!({ "method": "session/update", "params": { "sessionId": "s", "update": update } });
        interpret(&serde_json::value::to_raw_value(&message).unwrap())
    }

    #[test]
    fn what_nobody_has_seen_before_is_not_an_error() {
        for update in
            [json!({ "sessionUpdate": "moon_phase" }), json!({}), json!(7), json!({ "sessionUpdate": "tool_call" })]
        {
            assert!(matches!(read(&update), Some(Update::Other(_))), "{update}");
        }
        let content = json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "hologram" } });
        assert_eq!(read(&content), Some(Update::Answer("(hologram)".into())));
    }

    #[test]
    fn a_tools_output_is_found_in_its_content_or_else_in_its_raw_output() {
        let output = |update: Value| match read(&update) {
            Some(Update::Tool(tool)) => tool.output,
            other => panic!("{other:?}"),
        };
        let content = json!([{ "type": "content", "content": { "type": "text", "text": "hi\n" } }]);
        let named =
            |key: &str, value: Value| json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", key: value });
        assert_eq!(output(named("content", content)), Some("hi\n".into()));
        assert_eq!(output(named("rawOutput", json!({ "output": "raw" }))), Some("raw".into()));
        assert_eq!(output(named("status", json!("completed"))), None);
    }

    #[test]
    fn an_edit_shows_the_lines_that_changed() {
        let content = json!({ "type": "diff", "path": "/a", "oldText": "1\n2\n3\n", "newText": "1\ntwo\n3\n" });
        assert_eq!(tool_content(&content), "/a:2\n- 2\n+ two\n");
    }
}
