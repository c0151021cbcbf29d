//! Options of the agent that variables of the environment set. The variables have the names of the Kubernetes runner.
//! The options are those that the agent offers: ACP `configOptions`, or `models` of earlier agents. Pure.
//!
//! The record `environment.built` has the wanted values. The options are set once in each launch, before its first
//! turn, because many agents forget them with their process.

use std::collections::BTreeMap;

use agentd_api::contract::{LLM_MAX_TOKENS, LLM_MODEL, LLM_TEMPERATURE};
use agentd_api::reason;
use agentd_api::session::{ConditionStatus, ConditionType};
use serde::{Deserialize, Serialize};

use crate::acp::{self, OfferedOption, RpcError};
use crate::batch::Batch;
use crate::next::{Facts, condition};
use crate::state::{Pending, Running, State};

/// The options that an agent offers, and those that were set in this launch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentOptions {
    offered: Vec<OfferedOption>,
    /// The agent's answers by option: `None`, or its error.
    answered: BTreeMap<String, Option<String>>,
}

impl AgentOptions {
    /// Takes over the options that the agent offers with its conversation.
    pub(crate) fn offer(&mut self, offered: Vec<OfferedOption>) {
        self.offered = offered;
    }

    /// Applies the agent's answer to a request that sets an option.
    pub(crate) fn answer(&mut self, option: String, error: Option<&RpcError>) {
        self.answered.insert(option, error.map(ToString::to_string));
    }

    fn of(&self, variable: &str) -> Option<&OfferedOption> {
        let is_model = |option: &&OfferedOption| option.category.as_deref() == Some("model") || option.id == "model";
        let named = |names: &[&str]| {
            let plain =
                |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
            self.offered.iter().find(|option| names.contains(&plain(&option.id).as_str()))
        };
        match variable {
            LLM_MODEL => self.offered.iter().find(is_model),
            LLM_TEMPERATURE => named(&["temperature"]),
            LLM_MAX_TOKENS => named(&["maxtokens", "maxoutputtokens"]),
            _ => None,
        }
    }
}

/// Returns the offered value that a text means: the value itself, its name, or the only value that contains the text.
fn chosen<'a>(option: &'a OfferedOption, text: &'a str) -> Option<&'a str> {
    if option.values.is_empty() {
        return Some(text);
    }
    let values = || option.values.iter();
    let exact = values().find(|value| value.id == text).or_else(|| {
        values().find(|value| value.name.eq_ignore_ascii_case(text) || value.id.eq_ignore_ascii_case(text))
    });
    let part = text.to_lowercase();
    let mut containing = values().filter(|value| value.id.to_lowercase().contains(&part));
    let only = containing.next().filter(|_| containing.next().is_none());
    exact.or(only).map(|value| value.id.as_str())
}

/// Reports whether the next turn waits for an answer about an option.
pub(crate) fn holds_turn(running: &Running) -> bool {
    running.pending.values().any(|pending| matches!(pending, Pending::Option(_)))
}

/// Sets the next option, or records what became of all.
pub(crate) fn step(state: &State, running: &Running, facts: &Facts<'_>) -> Option<Batch> {
    if state.options.is_empty() || running.turn.is_some() || holds_turn(running) {
        return None;
    }
    let options = &running.options;
    let conversation = state.conversation.as_deref()?;
    for (variable, text) in &state.options {
        let Some(option) = options.of(variable).filter(|option| !options.answered.contains_key(&option.id)) else {
            continue;
        };
        match chosen(option, text) {
            Some(value) if option.current.as_deref() != Some(value) => {
                return Some(Batch::default().send(acp::set_option(state.next_rpc, conversation, option, value)));
            }
            _ => {}
        }
    }
    report(state, running, facts)
}

/// Returns the record of the condition `OptionsApplied` if the condition is not recorded yet.
fn report(state: &State, running: &Running, facts: &Facts<'_>) -> Option<Batch> {
    /// Number of values that a message lists.
    const LISTED: usize = 20;
    let kind = ConditionType::OptionsApplied;
    let (mut set, mut failed) = (Vec::new(), Vec::new());
    for (variable, text) in &state.options {
        let Some(option) = running.options.of(variable) else {
            failed.push(format!("{variable}: the agent offers no option for it"));
            continue;
        };
        match (chosen(option, text), running.options.answered.get(&option.id)) {
            (None, _) => {
                let values: Vec<&str> = option.values.iter().take(LISTED).map(|value| value.id.as_str()).collect();
                let offer = values.join(", ");
                failed.push(format!("{variable}: the agent does not offer {text:?} for {}, but {offer}", option.id));
            }
            (_, Some(Some(error))) => failed.push(format!("{variable}: the agent refused {text:?}: {error}")),
            (Some(value), _) => set.push(format!("{} is {value}", option.id)),
        }
    }
    let (status, reason, message) = if failed.is_empty() {
        (ConditionStatus::True, reason::OPTIONS_SET, set.join(", "))
    } else {
        (ConditionStatus::False, reason::OPTION_NOT_SET, failed.join("; "))
    };
    let is_said = state.condition(kind).is_some_and(|said| said.status == status && said.message == message);
    (!is_said).then(|| Batch::of(condition(state, facts, kind, status, reason, message)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;

    fn offered(text: &str) -> AgentOptions {
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        let mut options = AgentOptions::default();
        options.offer(acp::options(&raw));
        options
    }

    const CONFIG: &str = r#"{"sessionId":"c","configOptions":[
        {"id":"m","name":"Model","category":"model","type":"select","currentValue":"a/sonnet-4","options":[
            {"value":"a/sonnet-4","name":"Sonnet"},{"value":"a/opus-4","name":"Opus"},
            {"value":"a/opus-5","name":"Opus 5"}]},
        {"id":"max_tokens","name":"Tokens","type":"select","currentValue":"1","options":[
            {"group":"g","name":"G","options":[{"value":"1","name":"1"},{"value":"4000","name":"4000"}]}]}]}"#;

    #[test]
    fn a_variable_finds_the_option_of_its_category_or_name() {
        let options = offered(CONFIG);
        assert_eq!(options.of(LLM_MODEL).unwrap().id, "m");
        assert_eq!(options.of(LLM_MAX_TOKENS).unwrap().values.len(), 2);
        assert!(options.of(LLM_TEMPERATURE).is_none());
        let models = offered(
            r#"{"models":{"currentModelId":"x","availableModels":[{"modelId":"x","name":"X"},{"modelId":"y","name":"Y"}]}}"#,
        );
        let model = models.of(LLM_MODEL).unwrap();
        assert_eq!((model.is_model_list, model.current.as_deref()), (true, Some("x")));
        assert!(offered("{}").of(LLM_MODEL).is_none() && offered("[]").of(LLM_MODEL).is_none());
    }

    #[test]
    fn a_text_means_a_value_its_name_or_the_only_value_that_contains_it() {
        let options = offered(CONFIG);
        let model = options.of(LLM_MODEL).unwrap();
        for (text, value) in [
            ("a/opus-4", Some("a/opus-4")),
            ("opus 5", Some("a/opus-5")),
            ("sonnet", Some("a/sonnet-4")),
            ("OPUS-5", Some("a/opus-5")),
            ("haiku", None),
            ("a/", None),
        ] {
            assert_eq!(chosen(model, text), value, "{text}");
        }
    }
}
