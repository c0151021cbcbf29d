//! Modes and options of the conversation, as far as the agent's own messages name them.

use agentd_api::surrogates::replace_lone_surrogates;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::wire::{METHOD_NOT_FOUND, Message, Refusal};

/// Requests to an agent that open a conversation; their answers have the modes and options.
const OPENING: [&str; 4] = ["session/new", "session/load", "session/resume", "session/fork"];
/// Fields of these answers that an editor gets too.
const PASSED_ON: [&str; 3] = ["modes", "configOptions", "models"];

/// The modes and options of a session.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Id of the last request that opened the conversation.
    request: Option<String>,
    known: Map<String, Value>,
}

#[derive(Deserialize)]
struct Changed {
    update: Value,
}

impl Settings {
    /// Takes in a message to the agent.
    pub(super) fn sent(&mut self, message: &RawValue) {
        let Ok(message) = serde_json::from_str::<Message<'_>>(message.get()) else { return };
        if message.method.is_some_and(|method| OPENING.contains(&method.as_str())) {
            self.request = message.id.map(|id| id.get().to_owned());
        }
    }

    /// Takes in an answer of the agent.
    pub(super) fn answered(&mut self, id: &RawValue, result: &RawValue) {
        if self.request.as_deref() != Some(id.get()) {
            return;
        }
        self.request = None;
        let Ok(Value::Object(mut answer)) = serde_json::from_str(replace_lone_surrogates(result).get()) else { return };
        for name in PASSED_ON {
            // An agent that resumes a conversation may leave out its modes and options.
            if let Some(value) = answer.remove(name).filter(|value| !value.is_null()) {
                self.known.insert(name.to_owned(), value);
            }
        }
    }

    /// Takes in an update of the agent with this name.
    pub(super) fn updated(&mut self, name: &str, params: &RawValue) {
        if !matches!(name, "current_mode_update" | "config_option_update") {
            return;
        }
        let Ok(Changed { mut update }) = serde_json::from_str(replace_lone_surrogates(params).get()) else { return };
        match name {
            "current_mode_update" => {
                if let Some(modes) = self.known.get_mut("modes").filter(|modes| modes.is_object()) {
                    modes["currentModeId"] = update["currentModeId"].take();
                }
            }
            _ => {
                if update["configOptions"].is_array() {
                    self.known.insert("configOptions".to_owned(), update["configOptions"].take());
                }
            }
        }
    }

    /// Returns the result of a request that opened the session, with the modes and options.
    pub(super) fn result(&self, session: Option<&str>) -> Value {
        let mut result = Value::Object(self.known.clone());
        if let Some(session) = session {
            result["sessionId"] = json!(session);
        }
        result
    }
}

/// Changes a mode or an option of a session. The daemon has no call for it yet.
pub(super) fn change(method: &str) -> Result<Value, Refusal> {
    let message = format!("agentd cannot change modes and options of a running session yet ({method:?})");
    Err(Refusal::new(METHOD_NOT_FOUND, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(value: &Value) -> Box<RawValue> {
        super::super::wire::raw(value)
    }

    #[test]
    fn modes_and_options_are_those_of_the_agents_last_message() {
        let mut settings = Settings::default();
        settings.sent(&raw(&json!({ "id": 2, "method": "session/new", "params": {} })));
        let modes = json!({ "currentModeId": "ask", "availableModes": [] });
        settings.answered(&raw(&json!(1)), &raw(&json!({ "modes": 7 })));
        settings.answered(&raw(&json!(2)), &raw(&json!({ "sessionId": "c", "modes": modes, "models": null })));
        assert_eq!(settings.result(Some("k3m")), json!({ "sessionId": "k3m", "modes": modes }));

        let update = json!({ "update": { "sessionUpdate": "current_mode_update", "currentModeId": "code" } });
        settings.updated("current_mode_update", &raw(&update));
        let update = json!({ "update": { "configOptions": [{ "id": "o" }] } });
        settings.updated("config_option_update", &raw(&update));
        settings.sent(&raw(&json!({ "id": 9, "method": "session/resume" })));
        settings.answered(&raw(&json!(9)), &raw(&json!({})));
        let result = settings.result(None);
        assert_eq!(
            (&result["modes"]["currentModeId"], &result["configOptions"][0]["id"]),
            (&json!("code"), &json!("o"))
        );
    }
}
