//! Adds names of the daemon to the generated completion scripts: of agents, machines, places and sessions.
//!
//! The generator knows only fixed values. Where an argument is a name, this module replaces the generated action by a
//! call of `agentctl names`. The tests of this module fail if a new generator writes other text.

use std::collections::BTreeMap;

use clap::{Arg, Command};

use crate::args::Shell;
use crate::args::names::NameKind;

/// Function of bash that prints names. The line is split at blanks only: `COMP_WORDS` is split at `=` and `:` too.
const BASH: &str = r#"_agentctl_names() {
    local words
    read -a words <<< "${COMP_LINE:0:COMP_POINT}"
    command agentctl names "$1" -- "${words[@]}" 2>/dev/null </dev/null
}

"#;

/// Function of zsh that offers names. `words` lacks the words before a subcommand, and `LBUFFER` has them.
const ZSH: &str = r#"(( $+functions[_agentctl_names] )) ||
_agentctl_names() {
    local -a names
    names=(${(f)"$(command agentctl names $1 -- ${(Q)${(z)LBUFFER}} 2>/dev/null </dev/null)"})
    shift
    compadd "$@" -a names
}
"#;

/// Positional argument that is a name.
#[derive(Debug, Clone, Copy)]
struct Positional {
    kind: NameKind,
    /// Number of words before the argument, if other arguments follow it.
    only_after: Option<usize>,
}

/// Completes the script of a shell.
pub(crate) fn with_names(shell: Shell, script: &str, definition: &Command) -> String {
    match shell {
        Shell::Bash => bash(script, definition),
        Shell::Fish => fish(script, definition),
        Shell::Zsh => zsh(script),
        Shell::Elvish | Shell::Nushell => script.to_owned(),
    }
}

/// Returns the kind of the names that an option takes.
fn of_option(option: &str) -> Option<NameKind> {
    Some(match option {
        "agent" => NameKind::Agents,
        "host" => NameKind::Hosts,
        "place" => NameKind::Places,
        "session" | "parent" => NameKind::Sessions,
        _ => return None,
    })
}

/// Returns the kind of the names that a positional argument takes.
fn of_positional(id: &str) -> Option<NameKind> {
    match id {
        "place" => Some(NameKind::Places),
        "session" | "sessions" => Some(NameKind::Sessions),
        _ => None,
    }
}

/// Finds the commands whose first positional argument is a name, each with the words that call it.
fn positionals(definition: &Command) -> BTreeMap<Vec<String>, Positional> {
    fn collect(command: &Command, path: &[String], found: &mut BTreeMap<Vec<String>, Positional>) {
        for below in command.get_subcommands() {
            let path = [path, &[below.get_name().to_owned()]].concat();
            let all: Vec<&Arg> = below.get_positionals().collect();
            if let Some(kind) = all.first().and_then(|first| of_positional(first.get_id().as_str())) {
                let only_after = (all.len() > 1).then_some(path.len() + 1);
                found.insert(path.clone(), Positional { kind, only_after });
            }
            collect(below, &path, found);
        }
    }
    let mut found = BTreeMap::new();
    collect(definition, &[], &mut found);
    found
}

fn bash(script: &str, definition: &Command) -> String {
    let label = |path: &[String]| {
        let parts: Vec<String> = path.iter().map(|part| format!("__subcmd__{}", part.replace('-', "__"))).collect();
        format!("agentctl{})", parts.concat())
    };
    let positionals: BTreeMap<String, Positional> =
        positionals(definition).iter().map(|(path, positional)| (label(path), *positional)).collect();
    let mut text = BASH.to_owned();
    let (mut option, mut command) = (None, None);
    for line in script.lines() {
        let words = line.trim_start();
        let files = "COMPREPLY=($(compgen -f \"${cur}\"))";
        match option.take() {
            Some(kind) if words == files => {
                let names = format!("compgen -W \"$(_agentctl_names {})\" -- \"${{cur}}\"", NameKind::as_str(kind));
                text.push_str(&line.replace("compgen -f \"${cur}\"", &names));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
        option = words.strip_prefix("--").and_then(|word| of_option(word.strip_suffix(')')?));
        if words.starts_with("opts=\"")
            && let Some(Positional { kind, only_after }) = command.take()
        {
            let is_other = only_after.map(|count| format!(" || ${{COMP_CWORD}} -ne {count}")).unwrap_or_default();
            let names = format!(
                "            if ! [[ ${{cur}} == -*{is_other} ]] ; then\n                \
                 names=\"$(_agentctl_names {})\"\n                opts=\"${{names:-${{opts}}}}\"\n            fi\n",
                NameKind::as_str(kind)
            );
            text.push_str(&names);
        } else {
            command = positionals.get(words).copied();
        }
    }
    text.replacen("    local i cur prev opts cmd\n", "    local i cur prev opts cmd names\n", 1)
}

fn fish(script: &str, definition: &Command) -> String {
    let names = |kind: NameKind| {
        format!("-f -a \"(command agentctl names {} -- (commandline -opc) 2>/dev/null)\"", kind.as_str())
    };
    let mut text = String::new();
    for line in script.lines() {
        text.push_str(line);
        let option = line.split_once("\" -l ").and_then(|(_, after)| after.split(' ').next());
        if let Some(kind) = option.and_then(of_option)
            && line.ends_with("' -r")
        {
            text.push(' ');
            text.push_str(&names(kind));
        }
        text.push('\n');
    }
    for (path, Positional { kind, only_after }) in positionals(definition) {
        let mut condition = match &path[..] {
            [command] => format!("__fish_agentctl_using_subcommand {command}"),
            [group, command] => {
                format!("__fish_agentctl_using_subcommand {group}; and __fish_seen_subcommand_from {command}")
            }
            _ => continue,
        };
        let called = definition.find_subcommand(&path[0]).filter(|_| path.len() == 1);
        let below: Vec<&str> = called
            .into_iter()
            .flat_map(Command::get_subcommands)
            .flat_map(Command::get_name_and_visible_aliases)
            .collect();
        if !below.is_empty() {
            condition = format!("{condition}; and not __fish_seen_subcommand_from {}", below.join(" "));
        }
        if let Some(count) = only_after {
            condition = format!("{condition}; and test (count (commandline -opc)) -eq {count}");
        }
        text.extend(["complete -c agentctl -n \"", &condition, "\" ", &names(kind), "\n"]);
    }
    text
}

fn zsh(script: &str) -> String {
    let mut text = String::new();
    for line in script.lines() {
        let kind = if let Some((option, _)) = line.split_once("=[") {
            option.rsplit_once("--").and_then(|(_, option)| of_option(option))
        } else {
            let word = line.trim_start_matches(['\'', '*', ':']);
            let end = word.find([' ', ':']).unwrap_or(word.len());
            line.starts_with('\'').then(|| of_positional(&word[..end])).flatten()
        };
        match (kind, line.strip_suffix(":_default' \\")) {
            (Some(kind), Some(start)) => text.extend([start, ":_agentctl_", kind.as_str(), "' \\"]),
            _ if line.starts_with("if [ \"$funcstack[1]\"") => {
                text.push_str(ZSH);
                for kind in NameKind::ALL.map(NameKind::as_str) {
                    let own = format!("_agentctl_{kind}() {{ _agentctl_names {kind} \"$@\" }}\n");
                    text.extend(["(( $+functions[_agentctl_", kind, "] )) ||\n", &own]);
                }
                text.push('\n');
                text.push_str(line);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Cli;
    use crate::documents::completions;

    /// Counts the options and the positional arguments of all commands that take names of a kind. Aliases of commands
    /// are not counted.
    fn count(command: &Command, kind: NameKind) -> (usize, usize) {
        let options = command.get_opts().filter(|arg| arg.get_long().and_then(of_option) == Some(kind)).count();
        let begin = (
            options,
            command.get_positionals().filter(|arg| of_positional(arg.get_id().as_str()) == Some(kind)).count(),
        );
        command.get_subcommands().fold(begin, |(options, positionals), below| {
            let (more, others) = count(below, kind);
            (options + more, positionals + others)
        })
    }

    #[test]
    fn every_argument_that_is_a_name_is_completed_in_each_shell() {
        let mut definition = Cli::command();
        definition.build();
        for kind in NameKind::ALL {
            let (options, positionals) = count(&definition, kind);
            let word = kind.as_str();
            for (shell, pattern) in [
                (Shell::Bash, format!("$(_agentctl_names {word})")),
                (Shell::Fish, format!("agentctl names {word} -- ")),
                (Shell::Zsh, format!(":_agentctl_{word}'")),
            ] {
                let script = completions(shell).unwrap();
                // Aliases of commands have arms of their own in some shells.
                let found = script.matches(&pattern).count();
                assert!(
                    options > 0 && found >= options + positionals,
                    "{shell:?} {word}: {found} of {options}, {positionals}"
                );
            }
        }
    }

    #[test]
    fn a_positional_before_others_is_completed_only_at_its_own_place() {
        let found = positionals(&Cli::command());
        let of = |words: &[&str]| found.get(&words.iter().map(ToString::to_string).collect::<Vec<_>>()).copied();
        assert_eq!(of(&["attach"]).map(|it| (it.kind, it.only_after)), Some((NameKind::Sessions, None)));
        assert_eq!(of(&["prompt"]).map(|it| (it.kind, it.only_after)), Some((NameKind::Sessions, Some(2))));
        assert_eq!(of(&["place", "check"]).map(|it| (it.kind, it.only_after)), Some((NameKind::Places, None)));
        assert!(of(&["run"]).is_none());
    }

    #[test]
    fn scripts_of_other_shells_stay() {
        for shell in [Shell::Elvish, Shell::Nushell] {
            assert!(!completions(shell).unwrap().contains("/dev/null"), "{shell:?}");
        }
    }
}
