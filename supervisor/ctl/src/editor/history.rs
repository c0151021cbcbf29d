//! Turns records of the journal into updates for the editor.
//!
//! An agent's update is passed on as the agent wrote it; only the conversation's id becomes the session's. `_meta` has
//! the number and the time of its record, and whether it happened without this editor.

use std::collections::BTreeMap;

use agentd_api::Event;
use agentd_api::surrogates::replace_lone_surrogates;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::wire::raw;

/// Key of agentd's entries in `_meta`.
const KEY: &str = "agentd";

/// Entries of `_meta` about an update.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Mark {
    /// Sequence number of the record in the session's journal.
    seq: u64,
    time: String,
    /// Whether the update happened while this editor was away.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    away: bool,
    /// Whether the prompt is from another client.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    other_client: bool,
}

impl Mark {
    pub(super) fn live(event: &Event) -> Self {
        Self { seq: event.seq, time: event.time.to_string(), away: false, other_client: false }
    }

    /// Marks an update of the replay. `seen` is the last record that this editor had.
    pub(super) fn replayed(event: &Event, seen: u64) -> Self {
        Self { away: event.seq > seen, ..Self::live(event) }
    }

    /// Marks the prompt of another client.
    pub(super) fn other_client(mut self) -> Self {
        self.other_client = true;
        self
    }
}

/// Returns the parameters of an agent's notification for the session with this id. Returns `None` for parameters that
/// no editor can read.
pub(super) fn rewritten(params: &RawValue, session: &str, mark: Option<&Mark>) -> Option<Box<RawValue>> {
    let mut params: BTreeMap<String, Box<RawValue>> = serde_json::from_str(params.get())
        .or_else(|_| serde_json::from_str(replace_lone_surrogates(params).get()))
        .ok()?;
    params.insert("sessionId".to_owned(), raw(&session));
    if let Some(mark) = mark {
        let meta = params.get("_meta").and_then(|meta| serde_json::from_str(meta.get()).ok());
        let mut meta: BTreeMap<String, Box<RawValue>> = meta.unwrap_or_default();
        meta.insert(KEY.to_owned(), raw(mark));
        params.insert("_meta".to_owned(), raw(&meta));
    }
    Some(raw(&params))
}

/// Returns the parameters of an agent's notification that may have no session's id. An id becomes that of the session.
pub(super) fn addressed(params: Option<&RawValue>, session: &str) -> Box<RawValue> {
    #[derive(Deserialize)]
    struct OfSession {
        #[serde(rename = "sessionId")]
        _id: IgnoredAny,
    }
    let Some(params) = params else { return raw(&json!({})) };
    let has_id = serde_json::from_str::<OfSession>(params.get()).is_ok();
    has_id.then(|| rewritten(params, session, None)).flatten().unwrap_or_else(|| params.to_owned())
}

/// Returns the parameters of an update that agentd itself sends.
pub(super) fn own(session: &str, update: &Value, mark: &Mark) -> Box<RawValue> {
    raw(&json!({ "sessionId": session, "update": update, "_meta": { KEY: mark } }))
}

/// Returns the update with the prompt of a turn.
pub(super) fn prompt(text: &str) -> Value {
    json!({ "sessionUpdate": "user_message_chunk", "content": { "type": "text", "text": text } })
}

/// Returns the update with words of agentd among those of the agent.
pub(super) fn told(text: &str) -> Value {
    let text = format!("\n\n[agentd: {text}]\n\n");
    json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } })
}

/// Returns the update that ends a tool call whose agent is gone.
pub(super) fn interrupted(tool_call: &str) -> Value {
    json!({ "sessionUpdate": "tool_call_update", "toolCallId": tool_call, "status": "failed" })
}

/// Returns the update with the title of the session.
pub(super) fn title(title: Option<&str>) -> Value {
    json!({ "sessionUpdate": "session_info_update", "title": title })
}

/// Returns the name of an update.
pub(super) fn name(params: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        update: Update,
    }
    #[derive(Deserialize)]
    struct Update {
        #[serde(rename = "sessionUpdate")]
        name: String,
    }
    serde_json::from_str::<Named>(params.get()).ok().map(|named| named.update.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    #[test]
    fn an_update_keeps_every_byte_but_the_conversations_id() {
        let update = r#"{"sessionUpdate":"moon_phase","n":1.50,  "s":"\ud83d","u":"\u0041"}"#;
        let params = text(&format!(r#"{{"sessionId":"c-1","update":{update},"new":[ 1 ]}}"#));
        let rewritten = rewritten(&params, "k3m", None).unwrap();
        assert_eq!(rewritten.get(), format!(r#"{{"new":[ 1 ],"sessionId":"k3m","update":{update}}}"#));
        assert_eq!(name(&params).as_deref(), Some("moon_phase"));
    }

    #[test]
    fn a_replayed_update_is_marked_beside_the_agents_own_meta() {
        let event = |seq| {
            let line = format!(r#"{{"seq":{seq},"time":"2026-01-01T00:00:00Z","kind":"x","data":{{}}}}"#);
            Event::parse(line.as_bytes()).unwrap()
        };
        let params = text(r#"{"sessionId":"c","update":{},"_meta":{"a":1.0}}"#);
        let marked = |seq| rewritten(&params, "k", Some(&Mark::replayed(&event(seq), 7))).unwrap().get().to_owned();
        let begin = r#"{"_meta":{"a":1.0,"agentd":{"seq""#;
        assert_eq!(
            marked(7),
            format!(r#"{begin}:7,"time":"2026-01-01T00:00:00Z"}}}},"sessionId":"k","update":{{}}}}"#)
        );
        assert!(marked(8).contains(r#""away":true"#), "{}", marked(8));
    }

    #[test]
    fn an_extension_keeps_every_byte_and_its_session_is_that_of_agentd() {
        for (params, wanted) in [
            (Some(r#"{"b":1.50,"sessionId":"c-1","a":[ ]}"#), r#"{"a":[ ],"b":1.50,"sessionId":"k3m"}"#),
            (Some(r#"{"b":1.50,  "a":[ ]}"#), r#"{"b":1.50,  "a":[ ]}"#),
            (Some(r#"["sessionId", 1]"#), r#"["sessionId", 1]"#),
            (None, "{}"),
        ] {
            let params = params.map(text);
            assert_eq!(addressed(params.as_deref(), "k3m").get(), wanted);
        }
    }

    #[test]
    fn parameters_that_are_no_object_are_left_out() {
        for params in ["[]", "7", "null"] {
            assert!(rewritten(&text(params), "k", None).is_none(), "{params}");
        }
    }
}
