//! Checks an answer against a schema. This runs only in the child process `agentd check-answer`.
//!
//! The child reads one request from stdin and writes one result to stdout. Before it reads anything, it limits its own
//! memory and processor time. A schema resolves no reference outside of itself: the crate `jsonschema` is built without
//! access to files and the network.

use std::io::{self, Read as _, Write as _};

use agentd_api::completion::SchemaError;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::document;

/// Maximum memory of the child in bytes.
const MEMORY: u64 = 512 << 20;
/// Maximum processor time of the child in seconds.
pub(crate) const SECONDS: u64 = 5;
/// Maximum number of errors in a result, and of characters of each.
const ERRORS: usize = 20;
const MESSAGE: usize = 400;

/// The request to the child.
#[derive(Debug, Serialize, Deserialize)]
pub struct CheckRequest {
    pub schema: Value,
    /// The answer, or `None` to check only the schema.
    pub answer: Option<String>,
}

/// The child's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckResult {
    /// The schema is valid, and so is the answer, if there is one.
    Valid,
    /// The schema is not valid.
    InvalidSchema(SchemaError),
    /// The answer violates the schema.
    InvalidAnswer(Vec<SchemaError>),
}

/// Reads a request from stdin and writes its result to stdout. Lowers the limits of the whole process.
///
/// # Errors
///
/// The limits cannot be set, or stdin or stdout cannot be used.
pub fn serve() -> io::Result<()> {
    limit(Resource::RLIMIT_AS, MEMORY)?;
    limit(Resource::RLIMIT_CPU, SECONDS)?;
    limit(Resource::RLIMIT_CORE, 0)?;
    let mut request = Vec::new();
    io::stdin().lock().read_to_end(&mut request)?;
    let request: CheckRequest = serde_json::from_slice(&request)?;
    let result = serde_json::to_vec(&check(&request))?;
    let mut out = io::stdout().lock();
    out.write_all(&result)?;
    out.flush()
}

/// Lowers a limit. macOS knows no limit of the address space, and the parent's deadline remains.
fn limit(resource: Resource, at_most: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(resource)?;
    match setrlimit(resource, at_most.min(hard), at_most.min(hard)) {
        Err(nix::Error::EINVAL) if resource == Resource::RLIMIT_AS => Ok(()),
        result => result.map_err(io::Error::from),
    }
}

fn check(request: &CheckRequest) -> CheckResult {
    if let Err(error) = jsonschema::meta::validate(&request.schema) {
        return CheckResult::InvalidSchema(described(error.instance_path().as_str(), &error.to_string()));
    }
    let validator = match jsonschema::validator_for(&request.schema) {
        Ok(validator) => validator,
        Err(error) => return CheckResult::InvalidSchema(described(error.schema_path().as_str(), &error.to_string())),
    };
    let Some(answer) = &request.answer else { return CheckResult::Valid };
    let document = match document(answer) {
        Ok(document) => document,
        Err(message) => return CheckResult::InvalidAnswer(vec![described("", &message)]),
    };
    let errors = validator.iter_errors(&document).take(ERRORS);
    let errors: Vec<_> = errors.map(|error| described(error.instance_path().as_str(), &error.to_string())).collect();
    if errors.is_empty() { CheckResult::Valid } else { CheckResult::InvalidAnswer(errors) }
}

fn described(place: &str, message: &str) -> SchemaError {
    let end = message.char_indices().nth(MESSAGE).map(|(end, _)| end);
    let message = end.map_or(message.to_owned(), |end| format!("{}…", &message[..end]));
    SchemaError { place: place.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(schema: Value, answer: Option<&str>) -> CheckResult {
        check(&CheckRequest { schema, answer: answer.map(str::to_owned) })
    }

    #[test]
    fn an_answer_is_valid_or_its_errors_have_their_places() {
        let schema = json!({
            "type": "object", "required": ["ok"], "properties": { "ok": { "type": "boolean" } },
        });
        assert_eq!(result(schema.clone(), None), CheckResult::Valid);
        assert_eq!(result(schema.clone(), Some("```json\n{\"ok\":true}\n```")), CheckResult::Valid);
        let CheckResult::InvalidAnswer(errors) = result(schema.clone(), Some("{\"ok\":1}")) else { panic!() };
        assert_eq!(errors.iter().map(|error| error.place.as_str()).collect::<Vec<_>>(), ["/ok"]);
        assert!(matches!(result(schema, Some("done")), CheckResult::InvalidAnswer(_)));
    }

    #[test]
    fn a_mistake_in_a_schema_has_its_place_and_no_reference_leads_outside() {
        let CheckResult::InvalidSchema(error) = result(json!({ "properties": { "a": { "type": "colour" } } }), None)
        else {
            panic!()
        };
        assert_eq!(error.place, "/properties/a/type");
        for outside in ["https://example.invalid/schema.json", "file:///etc/passwd", "#/$defs/none"] {
            let found = result(json!({ "$ref": outside }), None);
            assert!(matches!(found, CheckResult::InvalidSchema(_)), "{outside}: {found:?}");
        }
        assert!(matches!(result(json!({ "pattern": "(" }), None), CheckResult::InvalidSchema(_)));
    }
}
