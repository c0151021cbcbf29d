//! Gathers what the status line, the completion and the history need from a session's events.
//!
//! Pure. Agents report their mode, model, commands and title once, perhaps long before the events that the user sees.
//! [`Facts::precede`] therefore adds the facts of earlier events, which later facts override.

use agentd_api::completion::{Cost, Usage};
use agentd_api::session::SessionStatus;
use agentd_api::surrogates::replace_lone_surrogates;
use agentd_api::{Body, Event, TurnId};
use jiff::Timestamp;
use serde_json::Value;
use serde_json::value::RawValue;

/// Text that a message with a fact contains. Most messages contain no such text, and are not parsed.
const KEYS: [&str; 7] = [
    "\"current_mode_update\"",
    "\"config_option_update\"",
    "\"available_commands_update\"",
    "\"session_info_update\"",
    "\"usage",
    "\"modes\"",
    "\"configOptions\"",
];

/// A command of the agent (ACP `AvailableCommand`), without its slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlashCommand {
    pub(super) name: String,
    pub(super) description: String,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Facts {
    pub(super) mode: Option<String>,
    pub(super) model: Option<String>,
    pub(super) title: Option<String>,
    pub(super) usage: Usage,
    pub(super) cost: Option<Cost>,
    pub(super) commands: Option<Vec<SlashCommand>>,
    /// The running turn, and the time at which it began.
    pub(super) began: Option<(TurnId, Timestamp)>,
    /// Prompts, oldest first.
    pub(super) prompts: Vec<String>,
    /// Modes and models by their ids, with their names.
    pub(super) names: Vec<(String, String)>,
    /// The last request of agentd that sets a mode or a model: its id, the mode and the model. Some agents report the
    /// change by their answer alone.
    pub(super) requested: Option<(u64, Option<String>, Option<String>)>,
}

impl Facts {
    /// Applies one event.
    pub(super) fn apply(&mut self, event: &Event) {
        match &event.body {
            Body::AgentOut(message) => self.message(message),
            Body::AgentIn(message) => self.request(message),
            // Only text can be sent again from the history.
            Body::TurnQueued(queued) => self.prompts.push(queued.prompt.clone()),
            Body::TurnStarted(started) => self.began = Some((started.turn.clone(), event.time)),
            // Another turn ends when it is cancelled in the queue.
            Body::TurnEnded(ended) => drop(self.began.take_if(|(turn, _)| *turn == ended.turn)),
            Body::TurnLimited(_) | Body::LaunchStarted(_) => self.began = None,
            Body::TitleChanged(changed) => self.title.clone_from(&changed.title),
            _ => {}
        }
    }

    /// Takes over the values of the daemon's view.
    pub(super) fn adopt(&mut self, status: &SessionStatus) {
        for (own, reported) in
            [(&mut self.title, &status.title), (&mut self.mode, &status.mode), (&mut self.model, &status.model)]
        {
            if reported.is_some() {
                own.clone_from(reported);
            }
        }
        if status.cost.is_some() {
            self.cost.clone_from(&status.cost);
        }
        self.usage = either(self.usage, status.usage);
        if status.turn.is_none() {
            self.began = None;
        }
    }

    /// Adds the facts of earlier events, which later ones override. Returns their prompts.
    pub(super) fn precede(&mut self, earlier: Self) -> Vec<String> {
        self.mode = self.mode.take().or(earlier.mode);
        self.model = self.model.take().or(earlier.model);
        self.title = self.title.take().or(earlier.title);
        self.cost = self.cost.take().or(earlier.cost);
        self.commands = self.commands.take().or(earlier.commands);
        self.usage = either(self.usage, earlier.usage);
        self.began = self.began.take().or(earlier.began);
        self.names.extend(earlier.names);
        earlier.prompts
    }

    /// Returns the name of the mode.
    pub(super) fn mode_name(&self) -> Option<&str> {
        self.mode.as_deref().map(|id| self.name(id))
    }

    /// Returns the name of the model.
    pub(super) fn model_name(&self) -> Option<&str> {
        self.model.as_deref().map(|id| self.name(id))
    }

    fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.names.iter().find(|(known, _)| known == id).map_or(id, |(_, name)| name)
    }

    fn request(&mut self, message: &RawValue) {
        if !message.get().contains("\"session/set_mode") && !message.get().contains("\"session/set_model") {
            return;
        }
        let Ok(message) = serde_json::from_str::<Value>(message.get()) else { return };
        let (mode, model) = (text(&message["params"]["modeId"]), text(&message["params"]["modelId"]));
        self.requested = message["id"].as_u64().map(|id| (id, mode, model));
    }

    fn message(&mut self, message: &RawValue) {
        if self.requested.is_none() && !KEYS.iter().any(|key| message.get().contains(key)) {
            return;
        }
        let Ok(message) = serde_json::from_str::<Value>(replace_lone_surrogates(message).get()) else { return };
        let is_answer = |(id, ..): &mut (u64, Option<String>, Option<String>)| message["id"].as_u64() == Some(*id);
        if message.get("method").is_none()
            && let Some((_, mode, model)) = self.requested.take_if(is_answer)
            && message.get("error").is_none()
        {
            self.mode = mode.or(self.mode.take());
            self.model = model.or(self.model.take());
        }
        let (result, update) = (&message["result"], &message["params"]["update"]);
        if result.is_object() {
            self.opened(result);
        }
        match update["sessionUpdate"].as_str() {
            Some("current_mode_update") => {
                // Some agents use the name of the request.
                let mode = text(&update["currentModeId"]).or_else(|| text(&update["modeId"]));
                self.mode = mode.or(self.mode.take());
            }
            Some("config_option_update") => self.options(&update["configOptions"]),
            Some("available_commands_update") => {
                let commands = update["availableCommands"].as_array().into_iter().flatten();
                self.commands = Some(commands.filter_map(command).collect());
            }
            Some("session_info_update") => {
                if let Some(title) = text(&update["title"]) {
                    self.title = Some(title);
                }
            }
            Some("usage_update") => {
                self.usage.context_used = update["used"].as_u64().or(self.usage.context_used);
                self.usage.context_size = update["size"].as_u64().or(self.usage.context_size);
                let cost = (update["cost"]["amount"].as_f64(), text(&update["cost"]["currency"]));
                if let (Some(amount), Some(currency)) = cost {
                    self.cost = Some(Cost { amount, currency });
                }
            }
            _ => {}
        }
    }

    /// Reads a response: it opens a conversation, or ends a turn.
    fn opened(&mut self, result: &Value) {
        for (state, list, id) in [("modes", "availableModes", "id"), ("models", "availableModels", "modelId")] {
            for value in result[state][list].as_array().into_iter().flatten() {
                self.names.extend(text(&value[id]).zip(text(&value["name"])));
            }
        }
        self.mode = text(&result["modes"]["currentModeId"]).or(self.mode.take());
        self.model = text(&result["models"]["currentModelId"]).or(self.model.take());
        self.options(&result["configOptions"]);
        self.usage.total_tokens = result["usage"]["totalTokens"].as_u64().or(self.usage.total_tokens);
    }

    /// Reads the agent's options (ACP `SessionConfigOption`). Their categories tell the mode and the model.
    fn options(&mut self, options: &Value) {
        for option in options.as_array().into_iter().flatten() {
            let Some(value) = text(&option["currentValue"]) else { continue };
            for choice in option["options"].as_array().into_iter().flatten() {
                // A choice, or a group of choices.
                let group = choice["options"].as_array().into_iter().flatten();
                let choices = std::iter::once(choice).chain(group);
                self.names.extend(choices.filter_map(|choice| text(&choice["value"]).zip(text(&choice["name"]))));
            }
            match option["category"].as_str().or(option["id"].as_str()) {
                Some("mode") => self.mode = Some(value),
                Some("model") => self.model = Some(value),
                _ => {}
            }
        }
    }
}

/// Returns the first usage, with the values of the second usage for those that it lacks.
fn either(first: Usage, second: Usage) -> Usage {
    Usage {
        context_used: first.context_used.or(second.context_used),
        context_size: first.context_size.or(second.context_size),
        total_tokens: first.total_tokens.or(second.total_tokens),
        input_tokens: first.input_tokens.or(second.input_tokens),
        output_tokens: first.output_tokens.or(second.output_tokens),
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn command(value: &Value) -> Option<SlashCommand> {
    let name = text(&value["name"])?.trim_start_matches('/').to_owned();
    // A name with spaces or control characters cannot be typed as a command.
    let usable = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control());
    let description = text(&value["description"]).unwrap_or_default();
    usable.then_some(SlashCommand { name, description })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn out(message: &Value) -> Event {
        let line = json!({ "seq": 1, "time": "2026-01-01T00:00:00Z", "kind": "agent.out", "data": message });
        Event::parse(line.to_string().as_bytes()).unwrap()
    }

    fn update(update: &Value) -> Event {
        out(&json!({ "method": "session/update", "params": { "sessionId": "s", "update": update } }))
    }

    #[test]
    fn a_mode_that_the_agent_confirms_by_its_answer_alone_is_known() {
        let sent = |id: u64, method: &str, params: Value| {
            let message = json!({ "id": id, "method": method, "params": params });
            let line = json!({ "seq": 1, "time": "2026-01-01T00:00:00Z", "kind": "agent.in", "data": message });
            Event::parse(line.to_string().as_bytes()).unwrap()
        };
        let mut facts = Facts::default();
        facts.apply(&sent(7, "session/set_mode", json!({ "modeId": "plan" })));
        facts.apply(&out(&json!({ "id": 6, "result": {} })));
        assert_eq!(facts.mode, None);
        facts.apply(&out(&json!({ "id": 7, "result": {} })));
        facts.apply(&sent(8, "session/set_model", json!({ "modelId": "m" })));
        facts.apply(&out(&json!({ "id": 8, "error": { "code": -1, "message": "no" } })));
        assert_eq!((facts.mode.as_deref(), facts.model), (Some("plan"), None));
    }

    #[test]
    fn mode_and_model_are_found_wherever_an_agent_reports_them() {
        let mut facts = Facts::default();
        facts.apply(&out(&json!({ "id": 2, "result": {
            "sessionId": "s",
            "modes": { "currentModeId": "ask", "availableModes": [{ "id": "plan", "name": "Plan first" }] },
            "models": { "currentModelId": "m1", "availableModels": [{ "modelId": "m1", "name": "Model One" }] },
        } })));
        assert_eq!((facts.mode_name(), facts.model_name()), (Some("ask"), Some("Model One")));
        facts.apply(&update(&json!({ "sessionUpdate": "current_mode_update", "currentModeId": "plan" })));
        facts.apply(&update(&json!({ "sessionUpdate": "config_option_update", "configOptions": [
            { "id": "x", "category": "model", "currentValue": "m2",
              "options": [{ "group": "g", "options": [{ "value": "m2", "name": "Model Two" }] }] },
        ] })));
        assert_eq!((facts.mode_name(), facts.model_name()), (Some("Plan first"), Some("Model Two")));
    }

    #[test]
    fn a_turn_that_is_cancelled_in_the_queue_leaves_the_running_one_its_time() {
        let event = |kind: &str, data: Value| {
            let line = json!({ "seq": 1, "time": "2026-01-01T00:00:00Z", "kind": kind, "data": data });
            Event::parse(line.to_string().as_bytes()).unwrap()
        };
        let mut facts = Facts::default();
        facts.apply(&event("turn.started", json!({ "turn": "t1", "rpc": 1 })));
        facts.apply(&event("turn.ended", json!({ "turn": "t2", "stop_reason": "cancelled" })));
        assert!(facts.began.is_some());
        facts.apply(&event("turn.ended", json!({ "turn": "t1", "stop_reason": "end_turn" })));
        assert!(facts.began.is_none());
    }

    #[test]
    fn commands_title_and_tokens_are_kept_and_earlier_facts_do_not_replace_later_ones() {
        let mut earlier = Facts::default();
        earlier.apply(&update(&json!({ "sessionUpdate": "available_commands_update", "availableCommands": [
            { "name": "compact", "description": "Shorten" }, { "name": "bad name" }, { "name": "/init" }, 7,
        ] })));
        earlier.apply(&update(&json!({ "sessionUpdate": "session_info_update", "title": "old" })));
        let mut facts = Facts::default();
        facts.apply(&update(&json!({ "sessionUpdate": "session_info_update", "title": "new" })));
        let usage = json!({ "used": 10, "size": 100, "cost": { "amount": 0.5, "currency": "USD" } });
        let mut usage = usage;
        usage["sessionUpdate"] = "usage_update".into();
        facts.apply(&update(&usage));
        facts.precede(earlier);
        let names: Vec<_> = facts.commands.unwrap().into_iter().map(|command| command.name).collect();
        assert_eq!(names, ["compact", "init"]);
        assert_eq!((facts.title.as_deref(), facts.usage.context_used), (Some("new"), Some(10)));
        assert_eq!(facts.cost.unwrap().to_string(), "0.5 USD");
    }
}
