//! Checks every command that a page shows: in a block of commands, or in the running text between backticks.
//!
//! `agentctl` lines are parsed with its own definition. Options of `agentd` must be in its help. Paths of the control
//! endpoint must be in the table of routes. Packages, test modules, benches, recipes and scripts must exist. Other
//! tests run whole blocks: `units.rs`, `symptoms.rs`, `recipes.rs` and `main_job.rs`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

use crate::harness::paths;

/// Programs of the system that a block of a page may run.
const OF_THE_SYSTEM: &[&str] = &[
    "cat",
    "cd",
    "chmod",
    "echo",
    "grep",
    "groupadd",
    "install",
    "kill",
    "kubectl",
    "launchctl",
    "loginctl",
    "ls",
    "mkdir",
    "nomad",
    "pkill",
    "podman",
    "promtool",
    "sed",
    "sleep",
    "systemctl",
];

fn root() -> PathBuf {
    paths::checkout().to_owned()
}

/// Returns the pages of the project: at the top, in the book, and beside the code that they describe.
fn pages() -> Vec<PathBuf> {
    fn below(directory: &Path, pages: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                // Builds, dot directories, and pages of a frozen release or of recorded homes.
                let is_left_out = name.starts_with('.') || ["target", "fixtures", "node_modules"].contains(&&*name);
                if !is_left_out {
                    below(&path, pages);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") && name != "CHANGELOG.md" {
                pages.push(path);
            }
        }
    }
    let mut pages = Vec::new();
    below(&root(), &mut pages);
    pages.sort();
    pages
}

/// One command of a page.
#[derive(Debug)]
struct Shown {
    page: PathBuf,
    words: Vec<String>,
    /// Whether the command is a line of a block, and not a part of the running text.
    in_block: bool,
}

/// Splits a line into its commands, without assignments, redirections and comments.
fn commands(line: &str) -> Vec<Vec<String>> {
    // The output of another command is one word.
    let mut line = line.to_owned();
    while let Some((before, rest)) = line.split_once("$(") {
        let (inner, after) = rest.split_once(')').unwrap_or((rest, ""));
        line = format!("{before}OUTPUT_{}{after}", inner.len());
    }
    let Some(words) = shlex::split(&line) else { return Vec::new() };
    let mut commands = vec![Vec::new()];
    for word in words {
        if ["&&", "||", "|", "&", ";"].contains(&&*word) {
            commands.push(Vec::new());
            continue;
        }
        let (plain, ends) = word.strip_suffix(';').map_or((word.as_str(), false), |plain| (plain, true));
        let command = commands.last_mut().unwrap();
        let is_assignment =
            command.is_empty() && plain.split_once('=').is_some_and(|(name, _)| !name.contains(['-', '/']));
        if !is_assignment && plain != "sudo" && plain != "$" {
            command.push(plain.to_owned());
        }
        if ends {
            commands.push(Vec::new());
        }
    }
    for command in &mut commands {
        if let Some(at) = command.iter().position(|word| word.starts_with('>') || word.starts_with("2>") || word == "<")
        {
            command.truncate(at);
        }
    }
    commands.retain(|command| !command.is_empty());
    commands
}

/// Returns the commands of a page. In a block of a terminal, only lines after `$ ` are commands.
fn shown(page: &Path) -> Vec<Shown> {
    let text = fs::read_to_string(page).unwrap();
    let mut found = Vec::new();
    let mut block: Option<String> = None;
    let mut add = |line: &str, in_block| {
        found.extend(commands(line).into_iter().map(|words| Shown { page: page.to_owned(), words, in_block }));
    };
    for event in Parser::new_ext(&text, pulldown_cmark::Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => block = Some(language.to_string()),
            Event::End(TagEnd::CodeBlock) => block = None,
            Event::Text(lines) => {
                // A continued line is one command.
                let lines = lines.replace("\\\n", " ");
                for line in lines.lines() {
                    match block.as_deref() {
                        Some("sh" | "bash") => add(line, true),
                        Some("console") => {
                            if let Some(line) = line.trim_start().strip_prefix("$ ") {
                                add(line, true);
                            }
                        }
                        _ => {}
                    }
                }
            }
            Event::Code(code) => add(&code, false),
            _ => {}
        }
    }
    found
}

/// Reports whether a value of a page represents another one: `NAME`, `<id>`, `…`.
fn is_placeholder(value: &str) -> bool {
    let letters = value.trim_start_matches(['<', '[']).trim_end_matches(['>', ']']);
    value.contains('|')
        || value.contains('…')
        || value.contains("...")
        || letters.chars().all(|c| c.is_ascii_uppercase() || "_-.:0123456789".contains(c))
}

/// Parses a command line of agentctl. In the running text, a command may lack its arguments, and a value may be a
/// placeholder.
fn agentctl(words: &[String], in_block: bool) -> Result<(), String> {
    // The optional parts of a synopsis are in brackets.
    let words = words.iter().map(|word| word.trim_start_matches('[').trim_end_matches(']'));
    let words = words.filter(|word| !["…", "..."].contains(word));
    let Err(error) = agentctl::command_line().try_get_matches_from(words) else { return Ok(()) };
    let is_accepted = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => !in_block,
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => match error.get(ContextKind::InvalidValue) {
            Some(ContextValue::String(value)) => is_placeholder(value) || (value.is_empty() && !in_block),
            _ => false,
        },
        _ => false,
    };
    if is_accepted { Ok(()) } else { Err(error.to_string()) }
}

/// Checks that agentd knows the subcommand, and each option.
fn agentd(words: &[String]) -> Result<(), String> {
    let subcommand = words.get(1).filter(|word| !word.starts_with('-'));
    let output = Command::new(paths::agentd())
        .args(subcommand)
        .arg("--help")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .expect("agentd runs");
    let help = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("agentd has no subcommand {subcommand:?}"));
    }
    let options = words.iter().filter(|word| word.starts_with("--")).map(|word| word.split('=').next().unwrap());
    match options.into_iter().find(|option| !help.contains(*option)) {
        Some(option) => Err(format!("the help does not have {option}")),
        None => Ok(()),
    }
}

/// Checks that the package, the test, its module, the bench and the features' owner exist.
fn cargo(words: &[String]) -> Result<(), String> {
    let workspace: toml::Table = fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let packages = workspace["workspace"]["dependencies"].as_table().unwrap();
    let after = |names: &[&str]| {
        words
            .windows(2)
            .find(|pair| names.contains(&&*pair[0]))
            .map(|pair| pair[1].as_str())
            .filter(|name| !name.contains(|c: char| c.is_ascii_uppercase()))
    };
    let package = after(&["-p", "--package"]);
    if let Some(package) = package.filter(|package| *package != "agentd" && !packages.contains_key(*package)) {
        return Err(format!("there is no package {package}"));
    }
    for (option, table) in [("--test", "test"), ("--bench", "bench")] {
        let program: toml::Table = fs::read_to_string(root().join("supervisor/Cargo.toml")).unwrap().parse().unwrap();
        let named =
            |name: &str| program[table].as_array().unwrap().iter().any(|entry| entry["name"].as_str() == Some(name));
        if let Some(name) = after(&[option]).filter(|name| package == Some("agentd") && !named(name)) {
            return Err(format!("agentd has no {table} {name}"));
        }
    }
    let Some(at) = words.iter().position(|word| word == "--") else { return Ok(()) };
    if after(&["--test"]) != Some("it") {
        return Ok(());
    }
    let modules = words[at + 1..].iter().filter_map(|word| word.split_once("::")).map(|(module, _)| module);
    let main = fs::read_to_string(root().join("tests/it/main.rs")).unwrap();
    match modules.into_iter().find(|module| !is_placeholder(module) && !main.contains(&format!("mod {module};"))) {
        Some(module) => Err(format!("tests/it has no module {module}")),
        None => Ok(()),
    }
}

/// Checks that the method and the path are in the table of routes.
fn route(method: &str, address: &str) -> Result<(), String> {
    let path = address.split('?').next().unwrap();
    match agentd_api::route::find(method, path) {
        Some(_) => Ok(()),
        None => Err(format!("the table of routes has no {method} {path}")),
    }
}

/// Checks one command. Returns `None` if the words are no command.
fn check(shown: &Shown) -> Option<Result<(), String>> {
    let (words, in_block) = (&shown.words, shown.in_block);
    let program = words[0].rsplit('/').next().unwrap();
    let is_path = words[0].contains('/');
    Some(match program {
        "agentctl" => agentctl(words, in_block),
        "agentd" if words.len() > 1 => agentd(words),
        // Beside a block, a part of its command line is shown.
        "agentd-keeper" if in_block => {
            let parsed = agentd_keeper::cli::parse(words[1..].iter().map(OsString::from));
            parsed.map(drop).map_err(|error| error.to_string())
        }
        "cargo" => cargo(words),
        "just" if words.len() > 1 => {
            let recipes = fs::read_to_string(root().join("justfile")).unwrap();
            let is_known = recipes.lines().any(|line| line.split([' ', ':']).next() == Some(&*words[1]));
            if is_known { Ok(()) } else { Err(format!("the justfile has no recipe {}", words[1])) }
        }
        "GET" | "POST" | "PUT" | "PATCH" | "DELETE" if words.len() == 2 && words[1].starts_with('/') => {
            route(&words[0], &words[1])
        }
        // A program of PyPI.
        "openapi-python-client" => Ok(()),
        "curl" => {
            let method = words.windows(2).find(|pair| pair[0] == "-X").map_or("GET", |pair| &pair[1]);
            let address = words.iter().find_map(|word| word.split_once("://").map(|(_, rest)| rest));
            match address.and_then(|rest| rest.split_once('/')) {
                Some((_, path)) => route(method, &format!("/{path}")),
                None => Ok(()),
            }
        }
        _ if words[0].starts_with(".ci/") || words[0] == "plugins/rebuild" => {
            if root().join(&words[0]).is_file() {
                Ok(())
            } else {
                Err(format!("there is no {}", words[0]))
            }
        }
        _ if in_block && !is_path && !OF_THE_SYSTEM.contains(&program) => {
            Err(format!("{program} is not a known program"))
        }
        _ if in_block => Ok(()),
        _ => return None,
    })
}

#[test]
fn every_command_that_a_page_shows_exists() {
    let mut wrong = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for page in pages() {
        for shown in shown(&page) {
            let Some(result) = check(&shown) else { continue };
            let kind = if shown.in_block { "in blocks" } else { "in the text" };
            *counts.entry(kind).or_default() += 1;
            if let Err(error) = result {
                let page = shown.page.strip_prefix(root()).unwrap().display();
                wrong.push(format!(
                    "{page}: {}\n    {}",
                    shown.words.join(" "),
                    error.lines().next().unwrap_or_default()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong commands:\n{}", wrong.len(), wrong.join("\n"));
    assert!(counts["in blocks"] > 100 && counts["in the text"] > 200, "{counts:?}");
}

#[test]
fn a_wrong_command_is_found() {
    let page = root().join("README.md");
    let wrong = |line: &str, in_block| {
        let shown = commands(line).into_iter().map(|words| Shown { page: page.clone(), words, in_block });
        shown.filter_map(|shown| check(&shown)).any(|result| result.is_err())
    };
    for line in [
        "agentctl lists",
        "cd x && agentctl ls --sessions",
        "agentctl resume; agentctl stop",
        "agentd serve --port 1",
        "cargo test -p agentd-decider",
        "cargo test -p agentd --test it -- turn::",
        "just everything",
        ".ci/nothing",
        "curl http://localhost/v1/session",
        "sudo reboot",
    ] {
        assert!(wrong(line, true), "{line}");
    }
    for line in ["agentctl stop --sessions", "GET /v1/session", "POST /v1/version"] {
        assert!(wrong(line, false), "{line}");
    }
    for line in ["agentctl stop", "agentctl show SESSION", "agentctl ls", "GET /v1/sessions/ID?wait=1s"] {
        assert!(!wrong(line, false), "{line}");
    }
}
