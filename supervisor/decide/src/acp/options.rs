//! Options of an agent: `configOptions` of the answers that open a conversation, and `models` of earlier agents
//! (<https://agentclientprotocol.com/protocol/session-config-options>).

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::method;

/// Maximum number of options kept, and of values of each. Agents offer some hundred models.
const OPTIONS: usize = 64;
const VALUES: usize = 2000;

/// An option that an agent offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedOption {
    pub id: String,
    pub category: Option<String>,
    pub current: Option<String>,
    /// Empty if the agent does not list the values.
    pub values: Vec<OfferedValue>,
    /// Whether the agent has `session/set_model` instead of an option.
    pub is_model_list: bool,
}

/// A value of an option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedValue {
    pub id: String,
    pub name: String,
}

/// Returns the options from the result of a request that opens a conversation.
pub fn options(result: &RawValue) -> Vec<OfferedOption> {
    let Ok(value) = serde_json::from_str::<Value>(result.get()) else { return Vec::new() };
    let offered = value.get("configOptions").and_then(Value::as_array).into_iter().flatten();
    let mut options: Vec<OfferedOption> = offered.filter_map(option).take(OPTIONS).collect();
    let has_model = options.iter().any(|option| option.category.as_deref() == Some("model"));
    if let Some(models) = value.get("models").filter(|models| models.is_object() && !has_model) {
        let listed = models.get("availableModels").and_then(Value::as_array).into_iter().flatten();
        options.push(OfferedOption {
            id: "model".to_owned(),
            category: Some("model".to_owned()),
            current: text(models, "currentModelId"),
            values: listed.filter_map(|model| named(model, "modelId")).take(VALUES).collect(),
            is_model_list: true,
        });
    }
    options
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

fn named(value: &Value, key: &str) -> Option<OfferedValue> {
    let id = text(value, key)?;
    Some(OfferedValue { name: text(value, "name").unwrap_or_else(|| id.clone()), id })
}

fn option(value: &Value) -> Option<OfferedOption> {
    let listed = value.get("options").and_then(Value::as_array).into_iter().flatten();
    // A group has its values in a list of its own.
    let values = listed.flat_map(|one| match one.get("options").and_then(Value::as_array) {
        Some(group) => group.iter().collect::<Vec<_>>(),
        None => vec![one],
    });
    Some(OfferedOption {
        id: text(value, "id")?,
        category: text(value, "category"),
        current: text(value, "currentValue"),
        values: values.filter_map(|one| named(one, "value")).take(VALUES).collect(),
        is_model_list: false,
    })
}

/// Builds the request that sets an option: `session/set_config_option`, or `session/set_model`.
pub fn set_option(id: u64, conversation: &str, option: &OfferedOption, value: &str) -> Box<RawValue> {
    let (method, params) = if option.is_model_list {
        (method::SET_MODEL, json!({ "sessionId": conversation, "modelId": value }))
    } else {
        (method::SET_OPTION, json!({ "sessionId": conversation, "configId": option.id, "value": value }))
    };
    to_raw_value(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
        .expect("a JSON value can be written")
}

/// Returns the option that a request of agentd sets.
pub fn option_of(params: &RawValue) -> Option<String> {
    let params: Value = serde_json::from_str(params.get()).ok()?;
    text(&params, "configId").or_else(|| params.get("modelId").map(|_| "model".to_owned()))
}
