//! Checks answers against the description.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use agentd_api::Route;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::harness::paths;

/// Returns the path of the description in the repository.
pub(super) fn file() -> PathBuf {
    paths::checkout().join("docs/reference/openapi.json")
}

/// The description, with the validators that were used so far.
pub(super) struct Description {
    pub(super) document: Value,
    validators: RefCell<BTreeMap<String, Validator>>,
}

impl Description {
    pub(super) fn read() -> Self {
        let text = std::fs::read(file()).expect("the description is in the repository");
        Self {
            document: serde_json::from_slice(&text).expect("the description is JSON"),
            validators: RefCell::default(),
        }
    }

    fn operation(&self, route: Route) -> &Value {
        &self.document["paths"][route.path()][route.method().as_str().to_ascii_lowercase()]
    }

    /// Checks an answer of a route: its status, its media type and its body.
    pub(super) fn check(&self, route: Route, status: u16, kind: &str, body: &[u8]) -> Result<(), String> {
        let answer = &self.operation(route)["responses"][status.to_string()];
        let target = answer["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        let answer = target.map_or(answer, |target| self.document.pointer(target).expect("the target exists"));
        if answer.is_null() {
            return Err(format!("the status {status} is not described"));
        }
        let Some(content) = answer["content"].as_object() else {
            return if body.is_empty() { Ok(()) } else { Err("a body is not described".to_owned()) };
        };
        let media = content.get(kind).ok_or_else(|| format!("the media type {kind:?} is not described"))?;
        let body = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        self.validate(&media["schema"], &body)
    }

    /// Checks a document of a stream.
    pub(super) fn check_item(&self, route: Route, line: &str) -> Result<(), String> {
        let content = &self.operation(route)["responses"][route.status().to_string()]["content"];
        let item = serde_json::from_str(line).map_err(|error| error.to_string())?;
        self.validate(&content["application/x-ndjson"]["x-item-schema"], &item)
    }

    fn validate(&self, schema: &Value, body: &Value) -> Result<(), String> {
        let mut validators = self.validators.borrow_mut();
        let validator = validators.entry(schema.to_string()).or_insert_with(|| {
            let root = json!({ "allOf": [schema], "components": self.document["components"] });
            jsonschema::draft202012::new(&root).expect("the schema is valid")
        });
        let wrong: Vec<String> =
            validator.iter_errors(body).map(|error| format!("{error} at {}", error.instance_path())).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }
}
