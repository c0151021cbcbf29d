//! Parses the command line with the definition of the called command only.
//!
//! The definition of all commands takes longer than a call of the daemon. It is made for help, for mistakes, and for
//! commands that are not in [`COMMANDS`].

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Args as _, Command as Definition, Error, FromArgMatches as _, Parser as _, Subcommand};

use super::{
    AuditArgs, CheckArgs, Cli, DoctorArgs, EnvArgs, Global, NoteCommand, SnapshotCommand, acp, agent, config, context,
    events, files, host, life, list, names, plugin, prune, repository, run, schedule, service, spec, top, ui, wait,
    workflow,
};

/// Completes the definition of a command.
type Define = fn(Definition) -> Definition;

/// Commands without arguments, and those whose arguments have their own type. For the others, only the whole definition
/// is available.
const COMMANDS: [(&str, Define); 48] = [
    ("acp", acp::AcpArgs::augment_args),
    ("adopt", agent::AdoptArgs::augment_args),
    ("agent", group::<agent::AgentCommand>),
    ("agents", plain),
    ("answer", run::AnswerArgs::augment_args),
    ("apply", files::ApplyArgs::augment_args),
    ("attach", life::AttachArgs::augment_args),
    ("audit", AuditArgs::augment_args),
    ("cancel", life::SessionArgs::augment_args),
    ("check", CheckArgs::augment_args),
    ("config", group::<config::ConfigCommand>),
    ("context", context::ContextArgs::augment_args),
    ("demo-agent", plain),
    ("dial", plain),
    ("diff", files::DiffArgs::augment_args),
    ("doctor", DoctorArgs::augment_args),
    ("edit", life::SessionArgs::augment_args),
    ("env", env),
    ("events", events::EventsArgs::augment_args),
    ("get", files::GetArgs::augment_args),
    ("hint", context::HintArgs::augment_args),
    ("host", group::<host::HostCommand>),
    ("ls", list::LsArgs::augment_args),
    ("mcp", plain),
    ("names", names::NamesArgs::augment_args),
    ("new", run::NewArgs::augment_args),
    ("note", group::<NoteCommand>),
    ("options", life::SessionArgs::augment_args),
    ("plugin", group::<plugin::PluginCommand>),
    ("prompt", run::PromptArgs::augment_args),
    ("prune", prune::PruneArgs::augment_args),
    ("repo", group::<repository::RepositoryCommand>),
    ("resume", life::ResumeArgs::augment_args),
    ("rm", life::RmArgs::augment_args),
    ("run", run::RunArgs::augment_args),
    ("schedule", group::<schedule::ScheduleCommand>),
    ("service", group::<service::ServiceCommand>),
    ("set", spec::SetArgs::augment_args),
    ("show", life::SessionArgs::augment_args),
    ("snapshot", group::<SnapshotCommand>),
    ("stop", life::StopArgs::augment_args),
    ("title", context::TitleArgs::augment_args),
    ("top", top::TopArgs::augment_args),
    ("ui", ui::UiArgs::augment_args),
    ("validate", life::SessionArgs::augment_args),
    ("version", plain),
    ("wait", wait::WaitArgs::augment_args),
    ("workflow", group::<workflow::WorkflowCommand>),
];

/// Parses a command line that begins with the name of the program.
pub(crate) fn parse(words: &[OsString]) -> Result<Cli, Error> {
    match of_called(words) {
        Some(parsed) => parsed,
        None => Cli::try_parse_from(words),
    }
}

/// Returns `None` if only the whole definition can decide.
fn of_called(words: &[OsString]) -> Option<Result<Cli, Error>> {
    let mut definition =
        Global::augment_args(Definition::new("agentctl")).version(env!("CARGO_PKG_VERSION")).subcommand_required(true);
    // A word may also be the value of an option. Then the real command is unknown to this definition.
    let called = words.iter().skip(1).find_map(|word| COMMANDS.iter().find(|(name, _)| word == name));
    if let Some((name, define)) = called {
        definition = definition.subcommand(define(Definition::new(*name)));
    }
    match definition.try_get_matches_from(words) {
        Ok(mut matches) => Cli::from_arg_matches_mut(&mut matches).ok().map(Ok),
        Err(error) if error.kind() == ErrorKind::DisplayVersion => Some(Err(error)),
        Err(_) => None,
    }
}

fn plain(definition: Definition) -> Definition {
    definition
}

fn env(definition: Definition) -> Definition {
    EnvArgs::augment_args(definition.args_conflicts_with_subcommands(true).subcommand_negates_reqs(true))
}

/// Completes the definition of a command with commands of its own.
fn group<T: Subcommand>(definition: Definition) -> Definition {
    T::augment_subcommands(definition.subcommand_required(true).arg_required_else_help(true))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    /// Lists what decides whether a command line is accepted, of a command and of those below it.
    fn accepted(definition: &Definition) -> Vec<String> {
        let mut all = vec![format!(
            "{} {} {} {} {}",
            definition.get_name(),
            definition.is_args_conflicts_with_subcommands_set(),
            definition.is_subcommand_negates_reqs_set(),
            definition.is_subcommand_required_set(),
            definition.is_allow_external_subcommands_set(),
        )];
        all.extend(definition.get_arguments().map(|arg| format!("{arg:?}")));
        all.extend(definition.get_groups().map(|group| format!("{group:?}")));
        all.extend(definition.get_subcommands().flat_map(accepted));
        all
    }

    #[test]
    fn the_definition_of_a_called_command_is_that_of_all_commands() {
        let all = Cli::command();
        for (name, define) in COMMANDS {
            let whole = all.find_subcommand(name).unwrap_or_else(|| panic!("there is no command {name}"));
            assert_eq!(accepted(&define(Definition::new(name))), accepted(whole), "{name}");
        }
    }

    #[test]
    fn a_command_line_is_parsed_without_the_other_commands() {
        for line in [
            "agentctl ls",
            "agentctl --host h ls --all --sort -updated",
            "agentctl ls --json",
            "agentctl run --agent x what is ls",
            "agentctl host ls",
            "agentctl plugin check x.wasm",
            "agentctl mcp",
            "agentctl names places -- agentctl run --place",
        ] {
            let quick = of_called(&words(line)).and_then(Result::ok).unwrap_or_else(|| panic!("{line} is not parsed"));
            let whole = Cli::try_parse_from(words(line)).unwrap();
            assert_eq!(format!("{quick:?}"), format!("{whole:?}"), "{line}");
        }
    }

    #[test]
    fn help_and_mistakes_come_from_the_whole_definition() {
        for line in [
            "agentctl",
            "agentctl -h",
            "agentctl --help",
            "agentctl --version",
            "agentctl -V",
            "agentctl ls --help",
            "agentctl ls -h",
            "agentctl lss",
            "agentctl ls --colour",
            "agentctl --colour ls",
            "agentctl plugin",
            "agentctl plugin chekc",
            "agentctl run --help",
            "agentctl help",
            "agentctl ls --url http://x --socket y",
        ] {
            let (said, whole) = (parse(&words(line)).unwrap_err(), Cli::try_parse_from(words(line)).unwrap_err());
            assert_eq!(said.to_string(), whole.to_string(), "{line}");
            assert_eq!(said.exit_code(), whole.exit_code(), "{line}");
        }
        // A value of an option and a word of a prompt are no commands.
        for line in ["agentctl --host ls show k3m", "agentctl secret ls", "agentctl --socket run hooks test x"] {
            assert!(of_called(&words(line)).is_none(), "{line}");
            assert!(parse(&words(line)).is_ok(), "{line}");
        }
    }
}
