//! The pages of `docs/reference/`, each generated from the definition that the programs use.
//!
//! A test compares each page with the repository's file. With `AGENTD_TEST_REWRITE` set it writes the file instead.

mod commands;
mod interface;
mod routes;

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Compares a generated page with its file, or writes the file.
#[track_caller]
fn compare(name: &str, text: &str) {
    let rewrite = "AGENTD_TEST_REWRITE=1 cargo test -p agentd --test it -- reference::";
    let text = format!("<!-- Generated. Change the code, then run {rewrite} -->\n\n{text}");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(name);
    if std::env::var_os("AGENTD_TEST_REWRITE").is_some() {
        std::fs::write(&path, text).expect("the page is writable");
        return;
    }
    let file = std::fs::read_to_string(&path).expect("the page is in the repository");
    let different = text.lines().zip(file.lines()).find(|(wanted, found)| wanted != found);
    assert!(text == file, "docs/reference/{name} is not what the code says; run {rewrite}\n{different:#?}");
}

/// Returns the help of `agentd serve`. Its definition is in the program and in no library.
fn serve_help() -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_agentd"))
        .args(["serve", "--help"])
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .expect("agentd runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("the help is UTF-8")
}

#[test]
fn the_page_of_commands_is_what_the_command_lines_define() {
    compare("commands.md", &commands::page(agentctl::command_line(), &serve_help()));
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
fn the_page_of_conditions_has_each_type_and_the_listed_reasons() {
    compare("conditions.md", &interface::conditions());
}

#[test]
fn the_page_of_routes_has_each_route_with_its_callers() {
    compare("routes.md", &routes::page());
}
