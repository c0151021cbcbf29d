//! The pages of `docs/reference/`, each generated from the definition that the programs use.
//!
//! A test compares each page with the repository's file. With `AGENTD_TEST_REWRITE` set it writes the file instead.

mod agents;
mod commands;
mod configuration;
mod interface;
mod metrics;
mod routes;

use std::process::{Command, Stdio};

use crate::harness::paths;

/// Compares a generated page with its file, or writes the file.
#[track_caller]
fn compare(name: &str, text: &str) {
    compare_file(name, &format!("<!-- Generated. Change the code, then run {REWRITE} -->\n\n{text}"));
}

/// Command that writes all generated files.
const REWRITE: &str = "AGENTD_TEST_REWRITE=1 cargo test -p agentd --test it -- reference::";

/// Compares a generated text with its file, or writes the file.
#[track_caller]
fn compare_file(name: &str, text: &str) {
    let path = paths::checkout().join("docs/reference").join(name);
    if std::env::var_os("AGENTD_TEST_REWRITE").is_some() {
        std::fs::write(&path, text).expect("the page is writable");
        return;
    }
    let file = std::fs::read_to_string(&path).expect("the page is in the repository");
    let different = text.lines().zip(file.lines()).find(|(wanted, found)| wanted != found);
    assert!(text == file, "docs/reference/{name} is not what the code says; run {REWRITE}\n{different:#?}");
}

/// Compares a generated source file with the repository's, or writes it. `path` begins at the repository.
#[track_caller]
fn compare_source(path: &str, text: &str) {
    let file = paths::checkout().join(path);
    if std::env::var_os("AGENTD_TEST_REWRITE").is_some() {
        std::fs::write(&file, text).expect("the file is writable");
        return;
    }
    let found = std::fs::read_to_string(&file).expect("the file is in the repository");
    assert!(text == found, "{path} is not what the catalogue says; run {REWRITE}, then plugins/rebuild");
}

/// Returns the JSON Schema of a configuration file.
fn schema() -> serde_json::Value {
    agentd_config::schema().to_value()
}

/// Returns the help of a command of `agentd`. Its definition is in the program and in no library.
fn help_of(command: &str) -> String {
    let output = Command::new(paths::agentd())
        .args([command, "--help"])
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .expect("agentd runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("the help is UTF-8")
}

#[test]
fn the_page_of_commands_is_what_the_command_lines_define() {
    compare("commands.md", &commands::page(agentctl::command_line(), [&help_of("serve"), &help_of("run-spec")]));
}

#[test]
fn the_page_of_agents_and_the_table_of_the_whitelist_are_what_the_catalogue_says() {
    compare("agents.md", &agents::page());
    compare_source("plugins/whitelist/src/table.rs", &agents::table());
}

#[test]
fn the_page_of_problems_has_each_code_with_its_status() {
    compare("problems.md", &interface::problems());
}

#[test]
fn the_page_of_events_has_each_kind() {
    compare("events.md", &interface::events());
}

#[test]
fn the_page_of_conditions_has_each_type_and_reason() {
    compare("conditions.md", &interface::conditions());
}

#[test]
fn the_page_of_variables_has_each_variable_of_the_contract() {
    compare("variables.md", &interface::variables());
}

#[test]
fn the_page_of_metrics_has_each_family_and_each_reason_of_readiness() {
    compare("metrics.md", &metrics::page());
}

#[test]
fn the_page_of_routes_has_each_route_with_its_callers() {
    compare("routes.md", &routes::page());
}

#[test]
fn the_description_of_the_endpoint_is_what_the_routes_and_the_types_say() {
    let document = agentd_api::openapi::document(|route| agentd_control::access(route).name());
    compare_file("openapi.json", &agentd_api::openapi::text(&document));
}

#[test]
fn the_schema_and_the_page_of_the_configuration_are_what_the_types_say() {
    compare_file("agentd.schema.json", &format!("{:#}\n", schema()));
    compare("configuration.md", &configuration::page(&schema()));
}

#[test]
fn each_configuration_key_has_a_default_or_is_required_or_may_be_absent() {
    let schema = schema();
    let is_optional = |key: &serde_json::Value| {
        let forms = key["anyOf"].as_array().into_iter().flatten().any(|form| form["type"] == "null");
        forms || key["type"].as_array().is_some_and(|types| types.contains(&"null".into()))
    };
    for (name, table) in schema["$defs"].as_object().unwrap() {
        let required = table["required"].as_array().cloned().unwrap_or_default();
        for (key, value) in table["properties"].as_object().into_iter().flatten() {
            let has_default = value.get("default").is_some() || required.contains(&key.as_str().into());
            // A source of a key or a token is a table of one key.
            let is_choice = matches!(key.as_str(), "credential" | "file");
            assert!(has_default || is_optional(value) || is_choice, "{name}.{key}: {value}");
        }
    }
}

#[test]
fn each_example_names_the_schema_in_its_first_line() {
    let docs = paths::checkout().join("docs");
    let schema = docs.join("reference/agentd.schema.json").canonicalize().expect("the schema is in the repository");
    let mut directories = vec![docs.join("examples")];
    let mut count = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let named =
                text.lines().next().unwrap().strip_prefix("#:schema ").expect("the first line names the schema");
            assert_eq!(path.parent().unwrap().join(named).canonicalize().unwrap(), schema, "{}", path.display());
            count += 1;
        }
    }
    assert!(count >= 5, "{count} examples");
}
