//! Collects the agent's last message of a turn from its lines.
//!
//! An agent sends its text in chunks. Tool calls, thoughts and plans between them, and another `messageId`, begin
//! another message. The last message is the answer: what an agent says between its tool calls is a report of its work.

use agentd_api::completion::LONGEST_ANSWER;
use agentd_api::surrogates::replace_lone_surrogates;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The last message so far.
#[derive(Debug, Default)]
pub struct Collector {
    text: String,
    message: Option<String>,
    is_cut: bool,
    /// Whether the next chunk begins another message.
    is_over: bool,
}

#[derive(Deserialize)]
struct Line {
    method: String,
    params: Params,
}

#[derive(Deserialize)]
struct Params {
    update: Update,
}

#[derive(Deserialize)]
struct Update {
    #[serde(rename = "sessionUpdate")]
    kind: String,
    #[serde(rename = "messageId", default)]
    message: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    content: serde_json::Value,
}

impl Collector {
    /// Takes in a line that the agent wrote.
    pub fn take(&mut self, line: &RawValue) {
        let readable = replace_lone_surrogates(line);
        let Ok(Line { method, params: Params { update } }) = serde_json::from_str(readable.get()) else { return };
        if method != "session/update" {
            return;
        }
        match update.kind.as_str() {
            "agent_message_chunk" => self.chunk(&update),
            "tool_call" | "agent_thought_chunk" | "plan" => self.is_over = true,
            // An update with a status is progress of the agent's work. Other updates are output of a tool.
            "tool_call_update" if update.status.is_some() => self.is_over = true,
            _ => {}
        }
    }

    /// Begins another answer, for example after a second prompt of the turn.
    pub fn begin(&mut self) {
        *self = Self::default();
    }

    fn chunk(&mut self, update: &Update) {
        let Some(text) = update.content.get("text").and_then(serde_json::Value::as_str) else { return };
        if text.is_empty() {
            return;
        }
        let is_other = update.message.is_some() && self.message.is_some() && self.message != update.message;
        if self.is_over || is_other {
            self.begin();
        }
        if update.message.is_some() {
            self.message.clone_from(&update.message);
        }
        let room = LONGEST_ANSWER - self.text.len();
        self.is_cut |= text.len() > room;
        self.text.push_str(&text[..text.floor_char_boundary(room)]);
    }

    /// Returns the last message, and whether it is cut. `None` if the agent sent none.
    pub fn end(self) -> (Option<String>, bool) {
        (Some(self.text).filter(|text| !text.is_empty()), self.is_cut)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(updates: &[serde_json::Value]) -> (Option<String>, bool) {
        let mut collector = Collector::default();
        for update in updates {
            let line = json!({ "method": "session/update", "params": { "update": update } });
            collector.take(&RawValue::from_string(line.to_string()).unwrap());
        }
        collector.end()
    }

    #[test]
    fn the_text_behind_the_last_tool_call_is_the_answer() {
        let chunk = |text: &str| json!({ "sessionUpdate": "agent_message_chunk", "content": { "text": text } });
        let tool = json!({ "sessionUpdate": "tool_call", "toolCallId": "t" });
        let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed" });
        let all = [chunk("I look"), tool.clone(), done.clone(), chunk("it is "), chunk("7")];
        assert_eq!(answer(&all).0.as_deref(), Some("it is 7"));
        assert_eq!(answer(&[chunk("7"), tool, done]).0.as_deref(), Some("7"), "no text follows the tool call");
        assert_eq!(answer(&[]), (None, false));
        let of = |id: &str, text: &str| {
            let content = json!({ "text": text });
            json!({ "sessionUpdate": "agent_message_chunk", "messageId": id, "content": content })
        };
        assert_eq!(answer(&[of("a", "1"), of("b", "2"), of("b", "3")]).0.as_deref(), Some("23"));
        let long = "é".repeat(LONGEST_ANSWER);
        let (text, is_cut) = answer(&[chunk(&long), chunk("more")]);
        assert!(is_cut && text.unwrap().len() == LONGEST_ANSWER);
    }
}
