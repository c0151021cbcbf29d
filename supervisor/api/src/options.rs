//! Options of an agent, such as its mode and its model, as clients see them.

use serde::{Deserialize, Serialize};

/// Checks a text for an option: a value, or an option's id.
///
/// # Errors
///
/// The text is empty, too long, or has control characters. The error ends a sentence that begins with the field.
pub fn check(text: &str) -> Result<(), &'static str> {
    /// Maximum length in bytes.
    const LONGEST: usize = 200;
    if text.trim().is_empty() {
        return Err("is empty");
    }
    if text.len() > LONGEST {
        return Err("is longer than 200 bytes");
    }
    if text.contains(char::is_control) { Err("has a control character") } else { Ok(()) }
}

/// The response of `GET /v1/sessions/{session}/options`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OptionsView {
    /// The options that the running agent offers, in its order. Empty if no conversation is open.
    pub options: Vec<OptionView>,
}

/// An option that an agent offers (ACP `configOptions`, `modes` or `models`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OptionView {
    /// The agent's id of the option. `mode` and `model` for the modes and models of agents that have no options for
    /// them.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Category: `mode`, `model`, `model_config`, `thought_level`, or another text of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The current value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The values that the agent accepts. Empty if the agent does not list them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<ValueView>,
}

/// A value of an option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ValueView {
    /// The value as requests have it.
    pub value: String,
    /// Name for people.
    pub name: String,
}

impl OptionView {
    /// Reports whether this is the option for the agent's mode or model.
    pub fn is_for(&self, category: &str) -> bool {
        self.category.as_deref() == Some(category) || (self.category.is_none() && self.id == category)
    }
}
