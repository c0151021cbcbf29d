//! Logins of the scripted agent.

use serde_json::{Value, json};

use crate::{Agent, fail};

/// Returns the id of the method for a key: `key`, or `SCRIPTED_KEY_METHOD`.
fn key_method() -> String {
    std::env::var("SCRIPTED_KEY_METHOD").unwrap_or_else(|_| "key".to_owned())
}

impl Agent {
    /// Logs in with the method for a key, or with the method `browser`, which needs no key. With `SILENT_LOGIN`,
    /// answers nothing.
    pub(crate) fn authenticate(&mut self, id: &Value, params: &Value) {
        let is_set = |name| std::env::var_os(name).is_some();
        let has_key = is_set("SCRIPTED_API_KEY") || is_set("OPENAI_API_KEY");
        if std::env::var_os("SILENT_LOGIN").is_some() {
            return;
        }
        let key = key_method();
        match params["methodId"].as_str() {
            Some(method) if method == key && !has_key => return fail(id, -32000, "SCRIPTED_API_KEY is not set"),
            Some(method) if method == key || method == "browser" => self.is_locked = false,
            _ => return fail(id, -32602, "no such method"),
        }
        self.answer(id, &json!({}));
    }

    pub(crate) fn login_methods(&self) -> Value {
        let key = json!({ "id": key_method(), "name": "Use an API key", "description": "Set SCRIPTED_API_KEY" });
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
