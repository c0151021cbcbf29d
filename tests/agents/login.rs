//! Logins of the scripted agent.

use serde_json::{Value, json};

use crate::{Agent, fail};

impl Agent {
    /// Logs in with the method `key`, or with the method `browser`, which needs no key. With `SILENT_LOGIN`, nothing is
    /// answered.
    pub(crate) fn authenticate(&mut self, id: &Value, params: &Value) {
        let has_key = std::env::var_os("SCRIPTED_API_KEY").is_some();
        if std::env::var_os("SILENT_LOGIN").is_some() {
            return;
        }
        match params["methodId"].as_str() {
            Some("key") if !has_key => return fail(id, -32000, "SCRIPTED_API_KEY is not set"),
            Some("key" | "browser") => self.is_locked = false,
            _ => return fail(id, -32602, "no such method"),
        }
        self.answer(id, &json!({}));
    }

    pub(crate) fn login_methods(&self) -> Value {
        let key = json!({ "id": "key", "name": "Use an API key", "description": "Set SCRIPTED_API_KEY" });
        if !self.flags.locked {
            return json!([key]);
        }
        json!([
            key,
            { "id": "browser", "name": "Log in in the browser" },
            { "id": "terminal", "name": "Log in here",
              "type": "terminal", "args": ["--login"], "env": { "WORD": "hi" } },
            { "id": "variable", "name": "A variable", "type": "env_var", "vars": [{ "name": "SCRIPTED_TOKEN" }] },
        ])
    }
}
