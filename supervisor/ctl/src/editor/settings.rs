//! Modes and options of the conversation, as far as the agent's own messages name them.

use std::time::Duration;

use agentd_api::options::OptionView;
use agentd_api::session::{ConditionStatus, ConditionType};
use agentd_api::spec::SpecPatch;
use agentd_api::surrogates::replace_lone_surrogates;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::refusal;
use super::wire::{INTERNAL_ERROR, INVALID_PARAMS, Message, Refusal, params};
use agentd_client::Client;

/// Time limit for an agent to set an option.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Requests to an agent that open a conversation; their answers have the modes and options.
const OPENING: [&str; 4] = ["session/new", "session/load", "session/resume", "session/fork"];
/// Fields of these answers that an editor gets too.
const PASSED_ON: [&str; 3] = ["modes", "configOptions", "models"];

/// The modes and options of a session.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Requests to the agent without an answer.
    requests: Vec<(String, Request)>,
    known: Map<String, Value>,
}

/// Request to the agent whose answer concerns the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Request {
    Open,
    Option,
    /// The mode that the agent is to have.
    Mode(String),
    /// The model that the agent is to have.
    Model(String),
}

#[derive(Deserialize)]
struct Updated {
    update: Value,
}

/// A value that the agent has set.
#[derive(Debug)]
pub(super) struct Changed {
    option: String,
    value: String,
}

impl Settings {
    /// Takes in a message to the agent.
    pub(super) fn sent(&mut self, message: &RawValue) {
        let Ok(Message { id: Some(id), method: Some(method), params, .. }) = serde_json::from_str(message.get()) else {
            return;
        };
        let request = match method.as_str() {
            method if OPENING.contains(&method) => Request::Open,
            "session/set_config_option" => Request::Option,
            "session/set_mode" | "session/set_model" => {
                let wish = params.and_then(|params| serde_json::from_str::<Wish>(params.get()).ok());
                match wish.map(|wish| (wish.mode_id, wish.model_id)) {
                    Some((Some(mode), _)) => Request::Mode(mode),
                    Some((None, Some(model))) => Request::Model(model),
                    _ => return,
                }
            }
            _ => return,
        };
        if request == Request::Open {
            self.requests.clear(); // another process of the agent
        }
        self.requests.push((id.get().to_owned(), request));
    }

    /// Takes in an answer of the agent. Returns the update for editors if the answer changed a mode or an option.
    pub(super) fn answered(&mut self, id: &RawValue, result: &RawValue) -> Option<Value> {
        let at = self.requests.iter().position(|(request, _)| request == id.get())?;
        let (_, request) = self.requests.remove(at);
        let answer = serde_json::from_str(replace_lone_surrogates(result).get());
        match (request, answer) {
            (Request::Open, Ok(Value::Object(mut answer))) => {
                for name in PASSED_ON {
                    // An agent that resumes a conversation may leave out its modes and options.
                    if let Some(value) = answer.remove(name).filter(|value| !value.is_null()) {
                        self.known.insert(name.to_owned(), value);
                    }
                }
                None
            }
            (Request::Option, Ok(Value::Object(mut answer))) => {
                let options = answer.remove("configOptions").filter(Value::is_array)?;
                self.known.insert("configOptions".to_owned(), options.clone());
                Some(json!({ "sessionUpdate": "config_option_update", "configOptions": options }))
            }
            (Request::Mode(mode), Ok(_)) => {
                let modes = self.known.get_mut("modes").filter(|modes| modes.is_object())?;
                modes["currentModeId"] = json!(mode);
                Some(json!({ "sessionUpdate": "current_mode_update", "currentModeId": mode }))
            }
            (Request::Model(model), Ok(_)) => {
                // The protocol has no update about models.
                if let Some(models) = self.known.get_mut("models").filter(|models| models.is_object()) {
                    models["currentModelId"] = json!(model);
                }
                None
            }
            _ => None,
        }
    }

    /// Reports whether the agent has the value.
    pub(super) fn has(&self, Changed { option, value }: &Changed) -> bool {
        let current = |list: &str, field: &str| self.known.get(list).and_then(|list| list.get(field));
        let mut options = self.known.get("configOptions").and_then(Value::as_array).into_iter().flatten();
        let found = match options.find(|one| one["id"] == *option) {
            Some(one) => one.get("currentValue"),
            None if option == "mode" => current("modes", "currentModeId"),
            None if option == "model" => current("models", "currentModelId"),
            None => None,
        };
        found.is_some_and(|found| match found {
            Value::Bool(is_on) => is_on.to_string() == *value,
            found => found == value,
        })
    }

    /// Takes in an update of the agent with this name.
    pub(super) fn updated(&mut self, name: &str, params: &RawValue) {
        if !matches!(name, "current_mode_update" | "config_option_update") {
            return;
        }
        let Ok(Updated { mut update }) = serde_json::from_str(replace_lone_surrogates(params).get()) else { return };
        match name {
            "current_mode_update" => {
                if let Some(modes) = self.known.get_mut("modes").filter(|modes| modes.is_object()) {
                    // Some agents use the name of the request.
                    let name = if update["currentModeId"].is_null() { "modeId" } else { "currentModeId" };
                    modes["currentModeId"] = update[name].take();
                }
            }
            _ => {
                if update["configOptions"].is_array() {
                    self.known.insert("configOptions".to_owned(), update["configOptions"].take());
                }
            }
        }
    }

    /// Returns the result of a request that changed an option: all options (ACP, "Session Config Options"), or nothing
    /// for a mode and a model.
    pub(super) fn changed(&self) -> Value {
        match self.known.get("configOptions") {
            Some(options) => json!({ "configOptions": options }),
            None => json!({}),
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

/// Change of a mode, a model or an option, as an editor requests it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wish {
    #[serde(default)]
    mode_id: Option<String>,
    #[serde(default)]
    model_id: Option<String>,
    #[serde(default)]
    config_id: Option<String>,
    #[serde(default)]
    value: Value,
}

/// Changes a mode, a model or an option: in the specification, so that a later launch has it too. The agent sets it
/// later.
pub(super) async fn change(client: &Client, id: &str, method: &str, given: &RawValue) -> Result<Changed, Refusal> {
    let wish: Wish = params(given)?;
    let missing = |name: &str| Refusal::new(INVALID_PARAMS, format!("the parameter {name:?} is missing"));
    let offered = client.options(id).await.map_err(|error| refusal::of(&error.into()))?.value.options;
    let (option, value) = match method {
        "session/set_mode" => ("mode".to_owned(), wish.mode_id.ok_or_else(|| missing("modeId"))?),
        "session/set_model" => ("model".to_owned(), wish.model_id.ok_or_else(|| missing("modelId"))?),
        _ => {
            let value = match wish.value {
                Value::String(text) => text,
                Value::Bool(is_on) => is_on.to_string(),
                _ => return Err(missing("value")),
            };
            (wish.config_id.ok_or_else(|| missing("configId"))?, value)
        }
    };
    let is_it = |one: &&OptionView| one.id == option || (method != "session/set_config_option" && one.is_for(&option));
    let Some(known) = offered.iter().find(is_it) else {
        return Err(Refusal::new(INVALID_PARAMS, format!("the agent has no option {option:?}")));
    };
    if !known.values.is_empty() && known.values.iter().all(|one| one.value != value) {
        let text = format!("the agent does not offer {value:?} for {option:?}");
        return Err(Refusal::new(INVALID_PARAMS, text));
    }
    let field = ["mode", "model"].into_iter().find(|category| known.is_for(category));
    let patch = match field {
        Some(field) => json!({ field: value }),
        None => json!({ "options": { known.id.clone(): value } }),
    };
    let Value::Object(patch) = patch else { return Err(Refusal::new(INTERNAL_ERROR, "the change is no object")) };
    client.change_spec(id, &SpecPatch(patch), None).await.map_err(|error| refusal::of(&error.into()))?;
    Ok(Changed { option: known.id.clone(), value })
}

/// Returns why the agent has not set an option in time.
pub(super) async fn unset(client: &Client, id: &str, changed: &Changed) -> Refusal {
    let view = match client.session(id).await {
        Ok(view) => view.value,
        Err(error) => return refusal::of(&error.into()),
    };
    let applied = view.status.conditions.iter().find(|condition| condition.kind == ConditionType::OptionsApplied);
    let why = applied.filter(|condition| condition.status == ConditionStatus::False);
    let text = why.map_or_else(|| format!("the agent has not set {:?} yet", changed.option), |why| why.message.clone());
    Refusal::new(INTERNAL_ERROR, text)
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
        assert_eq!(settings.answered(&raw(&json!(9)), &raw(&json!({}))), None);
        // Another client changes the mode.
        settings.sent(&raw(&json!({ "id": 10, "method": "session/set_mode", "params": { "modeId": "plan" } })));
        let update = settings.answered(&raw(&json!(10)), &raw(&json!({}))).unwrap();
        assert_eq!(update, json!({ "sessionUpdate": "current_mode_update", "currentModeId": "plan" }));
        let result = settings.result(None);
        assert_eq!(
            (&result["modes"]["currentModeId"], &result["configOptions"][0]["id"]),
            (&json!("plan"), &json!("o"))
        );
    }
}
