//! The tools of the MCP server, as a model sees them: name, description and schema of the arguments.

use std::sync::Arc;

use agentd_api::context::{ALL_ITEMS, KNOWN_SETS, SET_ITEMS};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

pub(super) const SET_CONTEXT: &str = "set_relevant_context";
pub(super) const GET_CONTEXT: &str = "get_relevant_context";
pub(super) const SET_HINT: &str = "set_environment_hint";
pub(super) const GET_ENVIRONMENT: &str = "get_environment";
pub(super) const CHECK: &str = "check_prerequisites";
pub(super) const PROPOSE: &str = "propose_environment_script";
pub(super) const SET_TITLE: &str = "set_title";
pub(super) const REPORT_PROGRESS: &str = "report_progress";

/// Names of all tools.
pub(super) const NAMES: [&str; 8] =
    [SET_CONTEXT, GET_CONTEXT, SET_HINT, GET_ENVIRONMENT, CHECK, PROPOSE, SET_TITLE, REPORT_PROGRESS];

/// Returns the definitions of all tools.
pub(super) fn all() -> Vec<Tool> {
    NAMES.iter().map(|name| of(name)).collect()
}

fn of(name: &'static str) -> Tool {
    let is_reading = [GET_CONTEXT, GET_ENVIRONMENT, CHECK].contains(&name);
    let annotations = ToolAnnotations::new().read_only(is_reading).destructive(false).open_world(false);
    Tool::new(name, description(name), Arc::new(schema(name))).with_annotations(annotations)
}

fn description(name: &str) -> String {
    match name {
        SET_CONTEXT => format!(
            "Record what matters for the work in this session, so that it is known again when the session is resumed \
             days later. A set is a named list of at most {SET_ITEMS} items, and all sets together have at most \
             {ALL_ITEMS}. Known sets: `files` (absolute paths), `endpoints` (URLs), `ports` (TCP port numbers) and \
             `applet` (what is open beside the conversation: a slug, then its parameters as `key=value`). Other names \
             are accepted for items of any other kind. `merge` (the default) adds items; `replace` replaces the whole \
             set, and with an empty list removes the set. Record only what is needed to continue."
        ),
        GET_CONTEXT => "Show the recorded context of this session: each set with its items. An item with `missing` is \
                        a file that no longer exists."
            .to_owned(),
        SET_HINT => "Record in one or two sentences what the environment of this session needs to work, such as a VPN \
                     that must be connected or a login that expires. The hint is shown to the user, and to you after a \
                     resume. It replaces the former hint; null removes the hint. Never put a secret into the hint."
            .to_owned(),
        GET_ENVIRONMENT => "Show the environment variables that this session was started with: each name with the \
                            provider that set it and the file that it came from. Give `names` to see the values of \
                            some variables, and why a variable is missing. Values of secrets are never shown."
            .to_owned(),
        CHECK => "Check now whether the prerequisites of this session hold, such as a VPN, a licence server or a \
                  mount. Use this when commands fail for reasons outside of the project. Each result has a summary, \
                  and a remedy if there is one."
            .to_owned(),
        PROPOSE => "Propose a shell script (bash, unless its first line names another shell) that prepares the \
                    environment of this session, such as `module load gcc/13` or `export CC=clang`. It is sourced at \
                    the next launches of this session, after the user has read and approved exactly this text. It does \
                    not change the running environment. A new proposal replaces the former one, and needs a new \
                    approval. Explain why the session needs the script."
            .to_owned(),
        SET_TITLE => {
            "Give this session a short title, one line, by which the user recognises the work in a list.".to_owned()
        }
        REPORT_PROGRESS => "Report what you work on now, one line, and optionally how much of it is done. The user \
                            sees the last report without opening the conversation."
            .to_owned(),
        _ => String::new(),
    }
}

/// Returns the schema of a tool's arguments.
fn schema(name: &str) -> JsonObject {
    let text = |description: &str| json!({ "type": "string", "description": description });
    let (properties, required): (Value, &[&str]) = match name {
        SET_CONTEXT => (
            json!({
                "set": text(&format!("Name of the set: {}, or another name", KNOWN_SETS.join(", "))),
                "items": {
                    "type": "array", "maxItems": SET_ITEMS, "items": { "type": "string" },
                    "description": "Items: absolute paths, URLs or port numbers, as the set requires",
                },
                "mode": { "type": "string", "enum": ["merge", "replace"], "description": "merge by default" },
                "applet_url": text("URL that opens the applet. Only with the set applet"),
            }),
            &["set", "items"],
        ),
        GET_CONTEXT => (json!({ "set": text("Only this set") }), &[]),
        SET_HINT => (
            json!({ "hint": { "type": ["string", "null"], "description": "The hint, or null to remove it" } }),
            &["hint"],
        ),
        GET_ENVIRONMENT => {
            let names = json!({
                "type": "array", "items": { "type": "string" },
                "description": "Only these variables, with their values",
            });
            (json!({ "names": names }), &[])
        }
        PROPOSE => (
            json!({
                "script": text("Whole text of the script"),
                "explanation": text("Why the session needs the script, for the user who decides"),
            }),
            &["script", "explanation"],
        ),
        SET_TITLE => (json!({ "title": text("The title, one line") }), &["title"]),
        REPORT_PROGRESS => (
            json!({
                "message": text("What you work on, one line"),
                "percent": { "type": "integer", "minimum": 0, "maximum": 100, "description": "Completed share" },
            }),
            &["message"],
        ),
        _ => (json!({}), &[]),
    };
    let mut schema = JsonObject::new();
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), properties);
    schema.insert("required".to_owned(), json!(required));
    schema.insert("additionalProperties".to_owned(), json!(false));
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_is_described_and_its_arguments_have_descriptions() {
        for tool in all() {
            assert!(tool.description.as_ref().is_some_and(|text| text.len() > 40), "{}", tool.name);
            let properties = tool.input_schema["properties"].as_object().unwrap();
            for required in tool.input_schema["required"].as_array().unwrap() {
                assert!(properties.contains_key(required.as_str().unwrap()), "{}: {required}", tool.name);
            }
            for (argument, schema) in properties {
                assert!(schema["description"].is_string(), "{}: {argument}", tool.name);
            }
        }
    }

    #[test]
    fn the_limits_and_the_known_sets_are_in_the_description() {
        let text = description(SET_CONTEXT);
        for part in KNOWN_SETS.iter().copied().chain(["10 items", "50", "absolute"]) {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
