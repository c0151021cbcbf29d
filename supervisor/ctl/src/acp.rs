//! Interprets the messages of an agent: the updates of the Agent Client Protocol that are shown to a user.
//!
//! Agents send updates, kinds and fields that no published version names. An unknown update is
//! [`Update::Other`], never an error.

use agentd_api::surrogates::replace_lone_surrogates;
use serde_json::Value;
use serde_json::value::RawValue;

use agentd_screen::change::Change;

/// Message of the agent with a meaning for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Update {
    Answer(String),
    Thought(String),
    /// A prompt in the history that an agent replays.
    Prompt(String),
    Tool(ToolUpdate),
    Plan(Vec<PlanEntry>),
    /// Update that is not shown, by its name.
    Other(String),
}

/// Changes of a tool call. An absent field is unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ToolUpdate {
    pub(crate) id: String,
    pub(crate) title: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) status: Option<String>,
    /// Complete output so far, from `content`.
    pub(crate) output: Option<String>,
    /// Output since the update before, from the extension fields of terminals.
    pub(crate) more: Option<String>,
    /// Complete output so far, from `rawOutput`. It often repeats the other outputs.
    pub(crate) raw: Option<String>,
    /// Changes of files, all so far.
    pub(crate) changes: Vec<Change>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlanEntry {
    pub(crate) text: String,
    pub(crate) status: String,
}

/// Interprets one message of the agent. Returns `None` for a message that is not for the user, such as a
/// response.
pub(crate) fn interpret(message: &RawValue) -> Option<Update> {
    let message: Value = serde_json::from_str(replace_lone_surrogates(message).get()).ok()?;
    if message["method"] != "session/update" {
        return None;
    }
    let update = &message["params"]["update"];
    let name = update["sessionUpdate"].as_str().unwrap_or("an update without a name");
    Some(match name {
        "agent_message_chunk" => Update::Answer(block_text(&update["content"])),
        "user_message_chunk" => Update::Prompt(block_text(&update["content"])),
        "agent_thought_chunk" => Update::Thought(block_text(&update["content"])),
        "tool_call" | "tool_call_update" => match update["toolCallId"].as_str() {
            Some(id) => Update::Tool(tool(id, update)),
            None => Update::Other(name.to_owned()),
        },
        "plan" => Update::Plan(update["entries"].as_array().into_iter().flatten().map(plan_entry).collect()),
        _ => Update::Other(name.to_owned()),
    })
}

fn tool(id: &str, update: &Value) -> ToolUpdate {
    let text = |field: &str| update[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let content = || update["content"].as_array().into_iter().flatten();
    let output: String =
        content().filter(|part| part["type"] == "content").map(|part| block_text(&part["content"])).collect();
    ToolUpdate {
        id: id.to_owned(),
        title: text("title"),
        kind: text("kind"),
        status: text("status"),
        output: Some(output).filter(|output| !output.is_empty()),
        more: terminal_output(&update["_meta"]),
        raw: Some(raw_output(&update["rawOutput"])).filter(|output| !output.is_empty()),
        changes: changes(content(), &update["locations"]),
    }
}

/// Returns the output of a terminal since the update before: some adapters send it only in the extension fields.
fn terminal_output(meta: &Value) -> Option<String> {
    let keys = ["terminal_output", "terminal_output_delta"];
    let output: String = keys.iter().filter_map(|key| meta[key]["data"].as_str()).collect();
    Some(output).filter(|output| !output.is_empty())
}

/// Returns the command's output from `rawOutput`: some agents send it only there. Codex puts the result of an MCP
/// server's tool into a field.
fn raw_output(output: &Value) -> String {
    let output = output.get("result").filter(|result| result.is_object()).unwrap_or(output);
    let keys = ["output", "formatted_output", "aggregated_output"];
    if let Some(text) = output.as_str().or_else(|| keys.iter().find_map(|key| output[key].as_str())) {
        return text.to_owned();
    }
    let streams: String = ["stdout", "stderr"].iter().filter_map(|key| output[key].as_str()).collect();
    let blocks = || output.as_array().or_else(|| output["content"].as_array()).into_iter().flatten();
    let blocks: String = blocks().filter(|block| block["type"] == "text").map(block_text).collect();
    streams + &blocks
}

fn changes<'a>(content: impl Iterator<Item = &'a Value>, locations: &Value) -> Vec<Change> {
    let mut used = Vec::new(); // an agent with several changes of a file has a place for each
    let diffs = content.filter(|part| part["type"] == "diff").map(|part| {
        let path = part["path"].as_str().unwrap_or_default();
        let mut places = locations.as_array().into_iter().flatten().enumerate();
        let place = places.find(|(at, place)| !used.contains(at) && place["path"] == path);
        used.extend(place.map(|(at, _)| at));
        let text = |field: &str| part[field].as_str().unwrap_or_default();
        let line = place.and_then(|(_, place)| usize::try_from(place["line"].as_u64()?).ok());
        Change::new(path, text("oldText"), text("newText"), line)
    });
    diffs.collect()
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
        let raw = |output: Value| match read(&json!({
            "sessionUpdate": "tool_call_update", "toolCallId": "1", "rawOutput": output
        })) {
            Some(Update::Tool(tool)) => tool.raw,
            other => panic!("{other:?}"),
        };
        let named =
            |key: &str, value: Value| json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", key: value });
        assert_eq!(output(named("content", content)), Some("hi\n".into()));
        assert_eq!(raw(json!("raw")), Some("raw".into()));
        assert_eq!(raw(json!({ "output": "raw" })), Some("raw".into()));
        assert_eq!(raw(json!({ "stdout": "out", "stderr": "err", "exit_code": 1 })), Some("outerr".into()));
        assert_eq!(raw(json!({ "formatted_output": "formatted", "stdout": "out" })), Some("formatted".into()));
        assert_eq!(raw(json!({ "content": [{ "type": "text", "text": "mcp" }] })), Some("mcp".into()));
        let result = json!({ "content": [{ "type": "text", "text": "plum" }], "structuredContent": null });
        assert_eq!(raw(json!({ "result": result, "error": null })), Some("plum".into()));
        assert_eq!(raw(json!({ "exitCode": 1 })), None);
        assert_eq!(output(named("status", json!("completed"))), None);
    }

    #[test]
    fn a_terminals_output_is_found_in_the_extension_fields() {
        for key in ["terminal_output", "terminal_output_delta"] {
            let update = json!({
                "sessionUpdate": "tool_call_update", "toolCallId": "1",
                "_meta": { key: { "terminal_id": "1", "data": "part" } },
            });
            assert!(matches!(read(&update), Some(Update::Tool(tool)) if tool.more.as_deref() == Some("part")), "{key}");
        }
    }

    #[test]
    fn an_edit_has_the_lines_that_changed_with_the_files_line_numbers() {
        let edit = |old: &str, new: &str, locations: Value| {
            let content = json!([{ "type": "diff", "path": "/a", "oldText": old, "newText": new }]);
            changes(content.as_array().unwrap().iter(), &locations).remove(0).plain()
        };
        assert_eq!(edit("1\n2\n3\n", "1\ntwo\n3\n", Value::Null), "/a:2\n- 2\n+ two\n");
        // A part of the file, which begins at line 40.
        let place = json!([{ "path": "/b", "line": 7 }, { "path": "/a", "line": 40 }]);
        assert_eq!(edit("1\n2\n3\n", "1\ntwo\n3\n", place), "/a:41\n- 2\n+ two\n");
        // The whole file, and the place of the change.
        assert_eq!(edit("1\n2\n3\n", "1\ntwo\n3\n", json!([{ "path": "/a", "line": 2 }])), "/a:2\n- 2\n+ two\n");
    }
}
