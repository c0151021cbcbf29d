//! Options of the agent: its mode, its model and others. Pure.
//!
//! The wanted value of an option comes from the first source that has one. These are the specification, a variable of
//! the Kubernetes runner, and the agent's configuration. The record `environment.built` has the values of the variables
//! and of the configuration.
//!
//! Many agents forget their options with their process. So a value that a request or the agent itself has changed in
//! this conversation is remembered, and set again in each later launch. A changed wish replaces it.

use std::collections::BTreeMap;

use agentd_api::contract::{LLM_MAX_TOKENS, LLM_MODEL, LLM_TEMPERATURE};
use agentd_api::options::OptionView;
use agentd_api::reason;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, SessionSpec};
use agentd_api::spec::SpecChanged;
use serde::{Deserialize, Serialize};

use crate::acp::{self, OfferedOption, OptionUpdate, RpcError};
use crate::batch::Batch;
use crate::next::{Facts, condition};
use crate::state::{Opening, Pending, Run, Running, State};

/// Names of the wishes for the mode, the model, and, with the option's id behind it, any other option.
pub const MODE: &str = "mode";
pub const MODEL: &str = "model";
pub const OTHER: &str = "options.";

const KIND: ConditionType = ConditionType::OptionsApplied;
/// The error of a request without an answer.
const UNANSWERED: &str = "it did not answer in time";

/// The options that the running agent offers, and what became of those that were set in this launch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentOptions {
    pub(crate) offered: Vec<OfferedOption>,
    /// The last request for each option: its value, and the agent's error.
    #[serde(default)]
    requested: BTreeMap<String, (String, Option<String>)>,
}

impl AgentOptions {
    fn find(&self, wish: &str) -> Option<&OfferedOption> {
        let exact = wish.strip_prefix(OTHER).and_then(|id| self.offered.iter().find(|option| option.id == id));
        exact.or_else(|| self.offered.iter().find(|option| is_meant(wish, option)))
    }

    /// Returns the current value of the agent's mode or model.
    pub fn current(&self, wish: &str) -> Option<&str> {
        self.find(wish)?.current.as_deref()
    }

    /// Describes the options for clients.
    pub fn view(&self) -> Vec<OptionView> {
        self.offered.iter().map(OfferedOption::view).collect()
    }
}

/// Reports whether a wish means this option.
fn is_meant(wish: &str, option: &OfferedOption) -> bool {
    let is_of = |category: &str| option.category.as_deref() == Some(category) || option.id == category;
    let named = |names: &[&str]| names.contains(&plain(&option.id).as_str());
    match wish {
        MODE => is_of("mode"),
        MODEL | LLM_MODEL => is_of("model"),
        LLM_TEMPERATURE => named(&["temperature"]),
        LLM_MAX_TOKENS => named(&["maxtokens", "maxoutputtokens"]),
        other => other.strip_prefix(OTHER).is_some_and(|id| {
            option.id == id
                || plain(&option.id) == plain(id)
                || option.name.eq_ignore_ascii_case(id)
                || option.category.as_deref() == Some(id)
        }),
    }
}

fn plain(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
}

/// The values of options that were changed in the conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedOptions(Vec<OfferedOption>);

impl ChangedOptions {
    fn note(&mut self, option: &OfferedOption) {
        let bare = OfferedOption { values: Vec::new(), ..option.clone() };
        match self.0.iter_mut().find(|known| known.id == option.id) {
            Some(known) => *known = bare,
            None => self.0.push(bare),
        }
    }

    fn value(&self, option: &OfferedOption) -> Option<&str> {
        self.0.iter().find(|known| known.id == option.id)?.current.as_deref()
    }

    fn forget(&mut self, wish: &str) {
        self.0.retain(|known| !is_meant(wish, known));
    }

    /// Returns the value of the agent's mode or model, for a session whose agent does not run.
    pub fn of(&self, wish: &str) -> Option<&str> {
        self.0.iter().find(|known| is_meant(wish, known))?.current.as_deref()
    }
}

impl State {
    /// Takes over the options that the agent offers with its conversation.
    pub(crate) fn options_offered(&mut self, offered: Vec<OfferedOption>) {
        if let Run::Running(running) = &mut self.run {
            running.options.offered = offered;
        }
    }

    /// Applies the agent's answer to a request that sets an option. The answer may have the values of all options,
    /// because some depend on others.
    pub(crate) fn option_answered(
        &mut self,
        option: String,
        value: String,
        answer: Result<Option<Vec<OfferedOption>>, RpcError>,
    ) {
        let Run::Running(running) = &mut self.run else { return };
        let options = &mut running.options;
        let error = match answer {
            Ok(all) => {
                match all {
                    Some(all) => options.take_over(all),
                    None => options.set(&option, &value),
                }
                if let Some(set) = options.offered.iter().find(|offered| offered.id == option) {
                    self.changed_options.note(set);
                }
                None
            }
            Err(error) => Some(error.to_string()),
        };
        options.requested.insert(option, (value, error));
    }

    /// Applies a change that the agent reports by itself.
    pub(crate) fn options_updated(&mut self, update: OptionUpdate) {
        let Run::Running(running) = &mut self.run else { return };
        let options = &mut running.options;
        let before = options.offered.clone();
        match update {
            OptionUpdate::Mode(mode) => {
                let Some(id) = options.find(MODE).map(|option| option.id.clone()) else { return };
                options.set(&id, &mode);
            }
            OptionUpdate::All(all) => options.take_over(all),
        }
        // Until the conversation is open, the agent tells its history.
        if running.opening == Opening::Open {
            let known = |option: &OfferedOption| before.iter().find(|before| before.id == option.id);
            for option in &options.offered {
                if known(option).is_some_and(|known| known.current != option.current) {
                    self.changed_options.note(option);
                }
            }
        }
    }

    /// Forgets the values of options for which a changed specification wants another value.
    pub(crate) fn options_wanted(&mut self, changed: &SpecChanged) {
        for change in &changed.changes {
            match change.field.as_str() {
                MODE => self.changed_options.forget(MODE),
                MODEL => self.changed_options.forget(MODEL),
                "options" => {
                    let before: BTreeMap<String, String> =
                        serde_json::from_value(change.from.clone()).unwrap_or_default();
                    for id in differing(&before, &changed.spec.options) {
                        self.changed_options.forget(&format!("{OTHER}{id}"));
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes over the values of a launch's environment and configuration.
    pub(crate) fn options_built(&mut self, options: &BTreeMap<String, String>) {
        for wish in differing(&self.options, options) {
            self.changed_options.forget(&wish);
        }
        self.options.clone_from(options);
    }

    /// Applies the condition that says that the agent does not answer: its request is not waited for any more.
    pub(crate) fn option_unanswered(&mut self, said: &Condition) {
        let Run::Running(running) = &mut self.run else { return };
        if said.kind != KIND || said.reason != reason::OPTION_UNANSWERED {
            return;
        }
        let is_option = |pending: &Pending| matches!(pending, Pending::Option { .. });
        for (_, pending) in running.pending.extract_if(.., |_, pending| is_option(pending)) {
            if let Pending::Option { option, value } = pending {
                running.options.requested.insert(option, (value, Some(UNANSWERED.to_owned())));
            }
        }
    }
}

/// Returns the keys whose values differ.
fn differing(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let keys = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
    keys.filter(|key| before.get(*key) != after.get(*key)).cloned().collect()
}

impl AgentOptions {
    fn set(&mut self, id: &str, value: &str) {
        if let Some(option) = self.offered.iter_mut().find(|option| option.id == id) {
            option.current = Some(value.to_owned());
        }
    }

    /// Takes over a complete list of `configOptions`. The lists `modes` and `models` stay.
    fn take_over(&mut self, all: Vec<OfferedOption>) {
        let is_listed =
            |option: &OfferedOption| !matches!(option.kind, acp::OptionKind::Select | acp::OptionKind::Flag);
        let lists = std::mem::take(&mut self.offered).into_iter().filter(is_listed);
        let kept: Vec<OfferedOption> = lists.filter(|list| !all.iter().any(|one| is_meant(&list.id, one))).collect();
        self.offered = [all, kept].concat();
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

/// Returns the session's wishes and their values. The model comes first, because other options can depend on it.
fn wishes<'a>(state: &'a State, spec: &'a SessionSpec) -> Vec<(String, &'a str)> {
    let built = |name: &str| state.options.get(name).map(|text| (name.to_owned(), text.as_str()));
    let of = |name: &str, text: &'a Option<String>| text.as_deref().map(|text| (name.to_owned(), text));
    let mut wishes = Vec::new();
    wishes.extend(of(MODEL, &spec.model).or_else(|| built(LLM_MODEL)).or_else(|| built(MODEL)));
    wishes.extend(of(MODE, &spec.mode).or_else(|| built(MODE)));
    wishes.extend(spec.options.iter().map(|(id, text)| (format!("{OTHER}{id}"), text.as_str())));
    let others = state.options.iter().filter(|(name, _)| match name.strip_prefix(OTHER) {
        Some(id) => !spec.options.contains_key(id),
        None => ![LLM_MODEL, MODEL, MODE].contains(&name.as_str()),
    });
    wishes.extend(others.map(|(name, text)| (name.clone(), text.as_str())));
    wishes
}

/// Reports whether the next turn waits for an answer about an option.
pub(crate) fn holds_turn(running: &Running) -> bool {
    running.pending.values().any(|pending| matches!(pending, Pending::Option { .. }))
}

/// Sets the next option, or records what became of all. An option can be set while a turn runs.
pub(crate) fn step(state: &State, running: &Running, facts: &Facts<'_>) -> Option<Batch> {
    if holds_turn(running) {
        return None;
    }
    let wishes = wishes(state, facts.spec);
    if wishes.is_empty() && state.changed_options.0.is_empty() && state.condition(KIND).is_none() {
        return None;
    }
    let options = &running.options;
    let conversation = state.conversation.as_deref()?;
    let targets = wishes.iter().filter_map(|(wish, text)| {
        let option = options.find(wish)?;
        Some((option, state.changed_options.value(option).unwrap_or(text)))
    });
    let changed = options.offered.iter().filter_map(|option| Some((option, state.changed_options.value(option)?)));
    for (option, text) in targets.chain(changed) {
        let Some(value) = chosen(option, text) else { continue };
        let is_requested = options.requested.get(&option.id).is_some_and(|(requested, _)| requested == value);
        if option.current.as_deref() != Some(value) && !is_requested {
            return Some(Batch::default().send(acp::set_option(state.next_rpc, conversation, option, value)));
        }
    }
    report(state, running, &wishes, facts)
}

/// Returns the record of the condition `OptionsApplied` if the condition is not recorded yet.
fn report(state: &State, running: &Running, wishes: &[(String, &str)], facts: &Facts<'_>) -> Option<Batch> {
    let options = &running.options;
    let (mut set, mut failed) = (Vec::new(), Vec::new());
    let mut judge = |wish: &str, option: &OfferedOption, text: &str| {
        let error = options.requested.get(&option.id).and_then(|(_, error)| error.as_ref());
        match (chosen(option, text), error) {
            (None, _) => {
                failed.push(format!("{wish}: the agent does not offer {text:?} for {}{}", option.id, offer(option)));
            }
            (Some(_), Some(error)) => failed.push(format!("{wish}: the agent did not take {text:?}: {error}")),
            (Some(value), None) => set.push(format!("{} is {value}", option.id)),
        }
    };
    let mut judged = Vec::new();
    let mut unknown = Vec::new();
    for (wish, text) in wishes {
        match options.find(wish) {
            Some(option) => {
                judge(wish, option, state.changed_options.value(option).unwrap_or(text));
                judged.push(&option.id);
            }
            None => unknown.push(format!("{wish}: the agent offers no option for it")),
        }
    }
    for option in options.offered.iter().filter(|option| !judged.contains(&&option.id)) {
        if let Some(value) = state.changed_options.value(option) {
            judge(&option.id, option, value);
        }
    }
    failed.extend(unknown);
    let (status, reason, message) = if !failed.is_empty() {
        (ConditionStatus::False, reason::OPTION_NOT_SET, failed.join("; "))
    } else if !set.is_empty() {
        (ConditionStatus::True, reason::OPTIONS_SET, set.join(", "))
    } else {
        (ConditionStatus::True, reason::OPTIONS_SET, "no value is wanted for an option".to_owned())
    };
    let said = state.condition(KIND);
    let is_said = said.is_some_and(|said| said.status == status && said.message == message);
    let is_silence = said.is_none() && set.is_empty() && failed.is_empty();
    (!is_said && !is_silence).then(|| Batch::of(condition(state, facts, KIND, status, reason, message)))
}

/// Lists the values of an option for a message.
fn offer(option: &OfferedOption) -> String {
    /// Number of values that a message lists.
    const LISTED: usize = 20;
    let values: Vec<&str> = option.values.iter().take(LISTED).map(|value| value.id.as_str()).collect();
    let more = option.values.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(", but {}{more}", values.join(", "))
}

/// Records that the agent does not answer a request that sets an option. The session continues without the option.
pub(crate) fn unanswered(state: &State, rpc: u64, seconds: u64, facts: &Facts<'_>) -> Option<Batch> {
    let Run::Running(running) = &state.run else { return None };
    let Some(Pending::Option { option, value }) = running.pending.get(&rpc) else { return None };
    let message = format!("the agent has not answered within {seconds} s the request to set {option} to {value:?}");
    Some(Batch::of(condition(state, facts, KIND, ConditionStatus::False, reason::OPTION_UNANSWERED, message)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;

    fn offered(text: &str) -> AgentOptions {
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        AgentOptions { offered: acp::options(&raw), ..AgentOptions::default() }
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
        assert_eq!(options.find(LLM_MODEL).unwrap().id, "m");
        assert_eq!(options.find(LLM_MAX_TOKENS).unwrap().values.len(), 2);
        assert!(options.find(LLM_TEMPERATURE).is_none());
        let models = offered(
            r#"{"models":{"currentModelId":"x","availableModels":[{"modelId":"x","name":"X"},{"modelId":"y","name":"Y"}]}}"#,
        );
        let model = models.find(LLM_MODEL).unwrap();
        assert_eq!((model.kind, model.current.as_deref()), (acp::OptionKind::Model, Some("x")));
        assert!(offered("{}").find(LLM_MODEL).is_none() && offered("[]").find(LLM_MODEL).is_none());
    }

    #[test]
    fn a_text_means_a_value_its_name_or_the_only_value_that_contains_it() {
        let options = offered(CONFIG);
        let model = options.find(LLM_MODEL).unwrap();
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

    /// Returns a state whose agent has an open conversation and offers these options.
    fn state(offered: &str) -> State {
        let mut state = State::new(jiff::Timestamp::UNIX_EPOCH);
        let result = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{offered}}}"#);
        for (at, (kind, data)) in [
            ("launch.started", r#"{"launch":1,"reason":"create"}"#),
            ("agent.started", r#"{"launch":1,"pid":7,"start_time":1,"command":["a"]}"#),
            ("agent.in", r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{}}"#),
            ("agent.out", &result),
            ("conversation.opened", r#"{"launch":1,"conversation":"c","by":"new"}"#),
        ]
        .into_iter()
        .enumerate()
        {
            apply(&mut state, at as u64 + 1, kind, data);
        }
        state
    }

    fn apply(state: &mut State, seq: u64, kind: &str, data: &str) {
        let line = format!(r#"{{"seq":{seq},"time":"2026-01-01T00:00:00Z","kind":"{kind}","data":{data}}}"#);
        state.apply(&agentd_api::Event::parse(line.as_bytes()).unwrap());
    }

    fn current<'a>(state: &'a State, id: &str) -> Option<&'a str> {
        let Run::Running(running) = &state.run else { panic!() };
        running.options.offered.iter().find(|option| option.id == id)?.current.as_deref()
    }

    #[test]
    fn an_update_of_all_options_keeps_the_list_of_modes_and_notes_what_the_agent_changed() {
        let modes = r#""modes":{"currentModeId":"ask","availableModes":[{"id":"ask"},{"id":"code"}]}"#;
        let effort = |value: &str| {
            format!(r#""configOptions":[{{"id":"effort","name":"Effort","currentValue":"{value}","options":[]}}]"#)
        };
        let mut state = state(&format!(r#"{{"sessionId":"c",{modes},{}}}"#, effort("low")));
        let update = |update: String| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"c","update":{{{update}}}}}}}"#
            )
        };
        let all = update(format!(r#""sessionUpdate":"config_option_update",{}"#, effort("high")));
        apply(&mut state, 6, "agent.out", &all);
        assert_eq!((current(&state, "effort"), current(&state, "mode")), (Some("high"), Some("ask")));
        assert_eq!((state.changed_options.of("options.effort"), state.changed_options.of(MODE)), (Some("high"), None));
        let mode = update(r#""sessionUpdate":"current_mode_update","currentModeId":"code""#.to_owned());
        apply(&mut state, 7, "agent.out", &mode);
        assert_eq!((current(&state, "mode"), state.changed_options.of(MODE)), (Some("code"), Some("code")));
        // Invalid updates change nothing.
        for strange in
            [r#""sessionUpdate":"config_option_update""#, r#""sessionUpdate":"current_mode_update","modeId":7"#]
        {
            apply(&mut state, 8, "agent.out", &update(strange.to_owned()));
        }
        assert_eq!(current(&state, "mode"), Some("code"));
    }

    #[test]
    fn options_of_unknown_types_and_endless_texts_are_left_out() {
        let long = "x".repeat(2000);
        let options = offered(&format!(
            r#"{{"configOptions":[{{"id":"dial","type":"slider","currentValue":3}},{{"id":"{long}","type":"select"}},
                {{"type":"select"}},7,{{"id":"on","type":"boolean","currentValue":true}}]}}"#
        ));
        let ids: Vec<&str> = options.offered.iter().map(|option| option.id.as_str()).collect();
        assert_eq!(ids, ["on"]);
        assert_eq!(options.current("options.on"), Some("true"));
    }
}
