//! Conversations of the scripted agent, one file each, and the options that it offers with them.

use std::fs;
use std::path::PathBuf;

use nix::unistd::getpid;
use serde_json::{Value, json};

use crate::{Agent, Conversation, fail, send};

impl Agent {
    /// Returns the file of a conversation.
    fn file(&self, conversation: &str) -> Option<PathBuf> {
        Some(self.flags.store.as_ref()?.join(format!("{conversation}.json")))
    }

    /// Answers with a new conversation that begins with these turns.
    pub(crate) fn begin(&mut self, id: &Value, turns: Vec<Value>) {
        let conversation = format!("conversation-{}-{}", getpid(), self.requests);
        self.requests += 1;
        self.conversation = Some(Conversation { id: conversation.clone(), turns });
        self.store();
        if let Some(file) = self.file(&conversation).filter(|_| self.flags.bound) {
            fs::write(file.with_extension("cwd"), self.opened["cwd"].to_string()).expect("the store is writable");
        }
        let mut answer = self.offer();
        answer["sessionId"] = json!(conversation);
        self.answer(id, &answer);
    }

    pub(crate) fn load(&mut self, id: &Value, method: &str, conversation: &str) {
        let stored = self.file(conversation).and_then(|file| fs::read(file).ok());
        let created = self.file(conversation).and_then(|file| fs::read_to_string(file.with_extension("cwd")).ok());
        let asked = self.opened["cwd"].to_string();
        let is_here = created.is_none_or(|created| created == asked);
        let Some(stored) = stored.filter(|_| is_here && !self.flags.load_fails) else {
            let message = format!("no conversation {conversation}");
            return send(&json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32002, "message": message } }));
        };
        let turns: Vec<Value> = serde_json::from_slice(&stored).expect("the store holds what was written to it");
        self.conversation = Some(Conversation { id: conversation.to_owned(), turns: turns.clone() });
        if method == "session/resume" {
            return self.answer(id, &self.offer());
        }
        if self.flags.replay_after_response {
            self.answer(id, &Value::Null);
        }
        for turn in &turns {
            let kind = if turn["role"] == "user" { "user_message_chunk" } else { "agent_message_chunk" };
            self.update(&json!({ "sessionUpdate": kind, "content": { "type": "text", "text": turn["text"] } }));
        }
        if !self.flags.replay_after_response {
            std::thread::sleep(self.flags.slow_load);
            self.answer(id, &self.offer());
        }
    }

    /// Copies a stored conversation.
    pub(crate) fn copy(&mut self, id: &Value, conversation: &str) {
        match self.file(conversation).and_then(|file| fs::read(file).ok()) {
            Some(stored) => {
                self.begin(id, serde_json::from_slice(&stored).expect("the store holds what was written to it"));
            }
            None => fail(id, -32002, "no such conversation"),
        }
    }

    /// Lists the stored conversations, one on each page. The file with the end `.where` has the directory of each.
    pub(crate) fn list(&self, id: &Value, params: &Value) {
        let store = self.flags.store.as_ref().expect("a store");
        let files = fs::read_dir(store).expect("it can be listed").map(|entry| entry.expect("an entry").path());
        let mut found: Vec<Value> = files
            .filter(|file| file.extension().is_some_and(|end| end == "where"))
            .map(|file| {
                let cwd = fs::read_to_string(&file).expect("it can be read");
                let id = file.file_stem().and_then(|stem| stem.to_str());
                json!({ "sessionId": id, "cwd": cwd, "title": "A \u{1b}[1mtalk" })
            })
            .filter(|one| params["cwd"].is_null() || one["cwd"] == params["cwd"])
            .collect();
        found.sort_by_key(|one| one["sessionId"].to_string());
        let at: usize = params["cursor"].as_str().map_or(0, |cursor| cursor.parse().expect("a number"));
        let mut page = json!({ "sessions": found.get(at..=at).unwrap_or_default() });
        if at + 1 < found.len() {
            page["nextCursor"] = json!((at + 1).to_string());
        }
        self.answer(id, &page);
    }

    /// Deletes a stored conversation.
    pub(crate) fn delete(&self, id: &Value, conversation: &str) {
        match self.file(conversation).map(fs::remove_file) {
            Some(Ok(())) => self.answer(id, &json!({})),
            _ => fail(id, -32002, "no such conversation"),
        }
    }

    /// Stores the conversation from its creation on, so that it can be loaded before its first message.
    pub(crate) fn store(&self) {
        let Some(conversation) = &self.conversation else { return };
        let Some(file) = self.file(&conversation.id) else { return };
        let (new, turns) = (file.with_extension("new"), json!(conversation.turns));
        fs::write(&new, turns.to_string()).and_then(|()| fs::rename(new, file)).expect("the store is writable");
    }

    /// Returns the options as an answer that opens a conversation. A process begins with the first value of each.
    pub(crate) fn offer(&self) -> Value {
        if self.flags.modes {
            let current = |id: &str, first: &str| self.options.get(id).cloned().unwrap_or_else(|| first.to_owned());
            let named = |key: &str, ids: &[&str]| {
                ids.iter().map(|id| json!({ key: id, "name": format!("The {id}") })).collect::<Vec<_>>()
            };
            return json!({
                "modes": {
                    "currentModeId": current("mode", "ask"), "availableModes": named("id", &["ask", "plan", "code"]),
                },
                "models": {
                    "currentModelId": current("model", "small"),
                    "availableModels": named("modelId", &["small", "large"]),
                },
            });
        }
        if !self.flags.options {
            return json!({});
        }
        let values = |values: &[&str]| values.iter().map(|&id| json!({ "value": id, "name": id })).collect::<Vec<_>>();
        let current = |id: &str, first: &str| self.options.get(id).cloned().unwrap_or_else(|| first.to_owned());
        let mut offered = json!({ "configOptions": [
            { "id": "llm", "name": "Model", "category": "model", "type": "select",
              "currentValue": current("llm", "small-1"), "options": values(&["small-1", "large-2", "deaf-3"]) },
            { "id": "temperature", "name": "Temperature", "type": "select",
              "currentValue": current("temperature", "0.2"), "options": values(&["0.2", "0.7"]) },
        ] });
        if self.takes_switches {
            let quiet = self.options.get("quiet").is_some_and(|value| value == "true");
            let switch = json!({ "id": "quiet", "name": "Quiet", "type": "boolean", "currentValue": quiet });
            offered["configOptions"].as_array_mut().expect("a list").push(switch);
        }
        offered
    }

    /// Sets an option. The temperature 0.7 is refused, and the model deaf-3 gets no answer.
    pub(crate) fn set_option(&mut self, id: &Value, params: &Value) {
        let text = |key: &str| params[key].as_str().unwrap_or_default().to_owned();
        for (key, option) in [("modeId", "mode"), ("modelId", "model")] {
            if !params[key].is_null() {
                self.options.insert(option.to_owned(), text(key));
                return self.answer(id, &json!({}));
            }
        }
        if let (Some(value), "boolean") = (params["value"].as_bool(), text("type").as_str()) {
            self.options.insert(text("configId"), value.to_string());
            return self.answer(id, &self.offer());
        }
        if text("value") == "deaf-3" {
            return;
        }
        if text("value") == "0.7" {
            return fail(id, -32602, "too hot");
        }
        self.options.insert(text("configId"), text("value"));
        self.answer(id, &self.offer());
    }

    /// Returns the user's messages before this turn as a JSON list.
    pub(crate) fn recollection(&self) -> String {
        let turns = self.conversation.as_ref().map(|conversation| &conversation.turns[..]).unwrap_or_default();
        let before = turns.split_last().map(|(_, before)| before).unwrap_or_default();
        let user: Vec<&Value> = before.iter().filter(|turn| turn["role"] == "user").map(|turn| &turn["text"]).collect();
        json!(user).to_string()
    }

    /// `limit TIMES ERROR`: returns the error, given as JSON, for the first prompts with the present text.
    pub(crate) fn limit(&self, rest: &str) -> Option<Value> {
        let (times, error) = rest.split_once(' ').expect("a number and an error");
        let turns = self.conversation.as_ref().map(|conversation| &conversation.turns[..]).unwrap_or_default();
        let present = turns.last()?;
        let sent = turns.iter().filter(|turn| turn["role"] == "user" && turn["text"] == present["text"]).count();
        let is_limited = sent <= times.parse().expect("a number");
        is_limited.then(|| serde_json::from_str(error).expect("an error as JSON"))
    }
}
