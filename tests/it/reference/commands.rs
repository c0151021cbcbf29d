//! The page of commands: agentctl from its definition, and the help of the commands of `agentd`.

use std::fmt::Write as _;

use clap::{Arg, Command};

/// Makes the page from the definition of agentctl and the help texts of `agentd serve` and `agentd run-spec`.
pub(super) fn page(mut agentctl: Command, [serve, run_spec]: [&str; 2]) -> String {
    agentctl.build();
    let mut page = String::from("# Commands and options\n\n## agentctl\n\n");
    page += &description(&agentctl);
    page += "These options are valid for every command:\n\n";
    page += &table(agentctl.get_arguments().filter(|arg| arg.is_global_set() && !arg.is_hide_set()));
    page += &after(&agentctl);
    sections(&agentctl, 3, &mut page);
    write!(page, "\n## agentd serve\n\nThe supervisor itself. A service manager or agentctl starts it.\n\n").unwrap();
    write!(page, "```text\n{}\n```\n", serve.trim_end()).unwrap();
    write!(page, "\n## agentd run-spec\n\n[Containers](../guide/containers.md) describes it.\n\n").unwrap();
    write!(page, "```text\n{}\n```\n", run_spec.trim_end()).unwrap();
    page
}

/// Adds a section for each visible subcommand, and below it those of its own subcommands.
fn sections(command: &Command, level: usize, page: &mut String) {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write!(page, "\n{} {}\n\n", "#".repeat(level), command.get_bin_name().unwrap_or_default()).unwrap();
        *page += &description(command);
        let usage = command.clone().render_usage().to_string();
        writeln!(page, "```text\n{}\n```", usage.trim_start_matches("Usage:").trim()).unwrap();
        let aliases: Vec<String> = command.get_visible_aliases().map(|alias| format!("`{alias}`")).collect();
        if !aliases.is_empty() {
            write!(page, "\nOther name: {}.\n", aliases.join(", ")).unwrap();
        }
        let own = table(command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_hide_set()));
        if !own.is_empty() {
            write!(page, "\n{own}").unwrap();
        }
        *page += &after(command);
        sections(command, level + 1, page);
    }
}

/// Returns the long help of a command, each paragraph with an empty line behind it.
fn description(command: &Command) -> String {
    let text = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let mut paragraphs = String::new();
    for paragraph in text.trim().split("\n\n") {
        let lines: Vec<String> = paragraph.lines().map(|line| line.trim().to_owned()).collect();
        // The definition keeps the lines of lists, and joins those of paragraphs.
        let lines: Vec<String> = if lines.iter().any(|line| line.starts_with("- ")) {
            lines.iter().map(|line| prose(line)).collect()
        } else {
            let mut text = prose(&lines.join(" "));
            if !text.ends_with(['.', ':']) {
                text.push('.');
            }
            vec![text]
        };
        for line in lines {
            paragraphs += &wrapped(&line);
        }
        paragraphs.push('\n');
    }
    paragraphs
}

/// Returns the examples and lists behind a command's help.
fn after(command: &Command) -> String {
    let text = command.get_after_long_help().or(command.get_after_help());
    text.map(|text| format!("\n```text\n{}\n```\n", text.to_string().trim_end())).unwrap_or_default()
}

/// Makes a table of arguments and options. The usage alone shows arguments without a help text.
fn table<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let mut rows = String::new();
    for argument in arguments.filter(|argument| !matches!(argument.get_id().as_str(), "help" | "version")) {
        let meaning = meaning(argument);
        if !meaning.is_empty() {
            writeln!(rows, "| {} | {} |", name(argument), meaning.replace('|', "\\|")).unwrap();
        }
    }
    if rows.is_empty() { rows } else { format!("| argument | meaning |\n|---|---|\n{rows}") }
}

/// Returns an argument's name as people type it, with its value: `-a`, `--all`, or `--last N`.
fn name(argument: &Arg) -> String {
    let takes = argument.get_action().takes_values();
    let values: Vec<String> = argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let value = if takes { values.join(" ") } else { String::new() };
    let optional = argument.get_num_args().is_some_and(|range| range.min_values() == 0) && takes;
    let mut forms: Vec<String> = argument.get_short().map(|short| format!("`-{short}`")).into_iter().collect();
    match argument.get_long() {
        Some(long) if optional => forms.push(format!("`--{long}[={value}]`")),
        Some(long) => forms.push(format!("`{}`", format!("--{long} {value}").trim_end())),
        None if argument.is_last_set() => forms.push(format!("`-- {value}`")),
        None => forms.push(format!("`{value}`").replace('|', "\\|")),
    }
    forms.join(", ")
}

/// Returns an argument's help text, its possible values and its default.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut parts: Vec<String> = Vec::new();
    if !help.is_empty() {
        let joined = help.split_whitespace().collect::<Vec<_>>().join(" ");
        parts.push(format!("{}.", prose(joined.trim_end_matches('.'))));
    }
    let possible: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({})", value.get_name(), prose(&help.to_string())),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if argument.get_action().takes_values() && !possible.is_empty() {
        parts.push(format!("Values: {}.", possible.join(", ")));
    }
    let defaults = argument.get_default_values();
    if argument.get_action().takes_values() && !defaults.is_empty() {
        let defaults: Vec<String> = defaults.iter().map(|value| format!("`{}`", value.display())).collect();
        parts.push(format!("Default: {}.", defaults.join(" ")));
    }
    parts.join(" ")
}

/// Makes Markdown of a help text: options become code, and marks that Markdown would interpret are escaped.
fn prose(text: &str) -> String {
    let mut result = String::new();
    for (n, part) in text.split('`').enumerate() {
        if n % 2 == 1 {
            write!(result, "`{part}`").unwrap();
            continue;
        }
        let words: Vec<String> = part
            .split(' ')
            .map(|word| {
                let bare = word.trim_end_matches(['.', ',', ':', ';', ')']);
                if bare.starts_with("--") || bare.starts_with("~/") || bare.contains(['_', '$']) {
                    format!("`{bare}`{}", &word[bare.len()..])
                } else {
                    word.replace('<', "\\<").replace('*', "\\*").replace('[', "\\[")
                }
            })
            .collect();
        result += &words.join(" ");
    }
    result
}

/// Wraps a paragraph at 116 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a line");
        if line.chars().count() + 1 + word.chars().count() > 116 && !line.is_empty() {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}
