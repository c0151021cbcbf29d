//! Options of an agent: `configOptions` (<https://agentclientprotocol.com/protocol/session-config-options>), `modes`
//! (<https://agentclientprotocol.com/protocol/session-modes>), and `models` of earlier agents.

use agentd_api::options::{OptionView, ValueView};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::method;

/// Maximum number of options kept, and of values of each. Agents offer some hundred models.
const OPTIONS: usize = 64;
const VALUES: usize = 2000;
/// Maximum length of an id, a name or a value in bytes. Anything longer is left out.
const LONGEST: usize = 1024;

/// An option that an agent offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedOption {
    pub id: String,
    #[serde(default)]
    pub name: String,
    pub category: Option<String>,
    pub current: Option<String>,
    /// Empty if the agent does not list the values.
    pub values: Vec<OfferedValue>,
    #[serde(default)]
    pub kind: OptionKind,
}

/// How an option is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OptionKind {
    /// `session/set_config_option` with one of the listed values.
    #[default]
    Select,
    /// `session/set_config_option` with `true` or `false`.
    Flag,
    /// `session/set_mode`.
    Mode,
    /// `session/set_model`.
    Model,
}

/// A value of an option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedValue {
    pub id: String,
    pub name: String,
}

impl OfferedOption {
    /// Describes the option for clients.
    pub fn view(&self) -> OptionView {
        let value = |value: &OfferedValue| ValueView { value: value.id.clone(), name: value.name.clone() };
        OptionView {
            id: self.id.clone(),
            name: self.name.clone(),
            category: self.category.clone(),
            value: self.current.clone(),
            values: self.values.iter().map(value).collect(),
        }
    }
}

/// Returns the options from the result of a request that opens a conversation.
pub fn options(result: &RawValue) -> Vec<OfferedOption> {
    let Ok(value) = serde_json::from_str::<Value>(result.get()) else { return Vec::new() };
    let mut options = config_options(&value).unwrap_or_default();
    let lacks = |options: &[OfferedOption], category: &str| {
        !options.iter().any(|option| option.category.as_deref() == Some(category) || option.id == category)
    };
    if lacks(&options, "mode") {
        options.extend(listed(&value, "mode", OptionKind::Mode));
    }
    if lacks(&options, "model") {
        options.extend(listed(&value, "model", OptionKind::Model));
    }
    options
}

/// Returns the list `configOptions` of a result or an update. `None` without such a list.
pub fn config_options(value: &Value) -> Option<Vec<OfferedOption>> {
    let offered = value.get("configOptions")?.as_array()?;
    Some(offered.iter().filter_map(option).take(OPTIONS).collect())
}

/// Returns the option of `modes` or `models`.
fn listed(value: &Value, word: &str, kind: OptionKind) -> Option<OfferedOption> {
    let (current, available, id, name) = match kind {
        OptionKind::Mode => ("currentModeId", "availableModes", "id", "Mode"),
        _ => ("currentModelId", "availableModels", "modelId", "Model"),
    };
    let state = value.get(format!("{word}s")).filter(|state| state.is_object())?;
    let values = state.get(available).and_then(Value::as_array).into_iter().flatten();
    Some(OfferedOption {
        id: word.to_owned(),
        name: name.to_owned(),
        category: Some(word.to_owned()),
        current: text(state, current),
        values: values.filter_map(|one| named(one, id)).take(VALUES).collect(),
        kind,
    })
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).filter(|text| text.len() <= LONGEST).map(str::to_owned)
}

fn named(value: &Value, key: &str) -> Option<OfferedValue> {
    let id = text(value, key)?;
    Some(OfferedValue { name: text(value, "name").unwrap_or_else(|| id.clone()), id })
}

/// Reads a configuration option. An option of an unknown type is left out, as the protocol says.
fn option(value: &Value) -> Option<OfferedOption> {
    let (id, category) = (text(value, "id")?, text(value, "category"));
    let name = text(value, "name").unwrap_or_else(|| id.clone());
    match value.get("type").and_then(Value::as_str) {
        Some("boolean") => {
            let current = value.get("currentValue").and_then(Value::as_bool).map(|flag| flag.to_string());
            let value = |id: &str| OfferedValue { id: id.to_owned(), name: id.to_owned() };
            let values = vec![value("true"), value("false")];
            Some(OfferedOption { id, name, category, current, values, kind: OptionKind::Flag })
        }
        // Some agents leave the type out.
        Some("select") | None => {
            let listed = value.get("options").and_then(Value::as_array).into_iter().flatten();
            // A group has its values in a list of its own.
            let values = listed.flat_map(|one| match one.get("options").and_then(Value::as_array) {
                Some(group) => group.iter().collect::<Vec<_>>(),
                None => vec![one],
            });
            let values = values.filter_map(|one| named(one, "value")).take(VALUES).collect();
            let current = text(value, "currentValue");
            Some(OfferedOption { id, name, category, current, values, kind: OptionKind::Select })
        }
        Some(_) => None,
    }
}

/// Builds the request that sets an option: `session/set_config_option`, `session/set_mode` or `session/set_model`.
pub fn set_option(id: u64, conversation: &str, option: &OfferedOption, value: &str) -> Box<RawValue> {
    let (method, params) = match option.kind {
        OptionKind::Model => (method::SET_MODEL, json!({ "sessionId": conversation, "modelId": value })),
        OptionKind::Mode => (method::SET_MODE, json!({ "sessionId": conversation, "modeId": value })),
        OptionKind::Select => {
            (method::SET_OPTION, json!({ "sessionId": conversation, "configId": option.id, "value": value }))
        }
        OptionKind::Flag => (
            method::SET_OPTION,
            json!({
                "sessionId": conversation, "configId": option.id, "type": "boolean", "value": value == "true",
            }),
        ),
    };
    to_raw_value(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
        .expect("a JSON value can be written")
}

/// Returns the option that a request of agentd sets, and its value.
pub fn option_of(params: &RawValue) -> Option<(String, String)> {
    let params: Value = serde_json::from_str(params.get()).ok()?;
    if let Some(model) = text(&params, "modelId") {
        return Some(("model".to_owned(), model));
    }
    if let Some(mode) = text(&params, "modeId") {
        return Some(("mode".to_owned(), mode));
    }
    let value = match params.get("value")? {
        Value::Bool(flag) => flag.to_string(),
        value => value.as_str()?.to_owned(),
    };
    Some((text(&params, "configId")?, value))
}

/// An agent's message about its options in a `session/update`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionUpdate {
    /// The mode is now this one.
    Mode(String),
    /// All options with their values.
    All(Vec<OfferedOption>),
}

/// Parses the params of a `session/update` about options.
pub fn option_update(params: &RawValue) -> Option<OptionUpdate> {
    let value: Value = serde_json::from_str(params.get()).ok()?;
    let update = value.get("update")?;
    match update.get("sessionUpdate")?.as_str()? {
        // Some agents name the field like that of the answer.
        "current_mode_update" => {
            text(update, "modeId").or_else(|| text(update, "currentModeId")).map(OptionUpdate::Mode)
        }
        "config_option_update" => config_options(update).map(OptionUpdate::All),
        _ => None,
    }
}
