//! Defines `agentctl run` and `agentctl new`.

use std::path::PathBuf;

use agentd_api::PermissionId;
use agentd_api::completion::CostLimit;
use agentd_api::quantity::Time;
use clap::{Args, ValueEnum};

use super::{SpecArgs, TermsArgs};

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  agentctl run                                 talk to the default agent
  agentctl run \"explain main.rs\" > answer.md   one turn; the answer in a file
  git diff | agentctl run --prompt -           the prompt from standard input
  agentctl run --agent claude --dir ~/src      another agent, another directory
  agentctl run --batch --schema s.json \"list the bugs\" > bugs.json
  agentctl run -- npx my-agent --acp           any program that speaks ACP";

/// Arguments about the completion of a session.
#[derive(Debug, Args)]
pub(crate) struct BatchArgs {
    /// Complete the session when its prompts are done; it is interactive only after a resume
    #[arg(long)]
    pub(crate) batch: bool,
    /// A file with a JSON Schema that the last block of the first answer must satisfy
    #[arg(long, value_name = "FILE")]
    pub(crate) schema: Option<PathBuf>,
    /// End the session after it was active for this long, as 2h; time without a turn does not count, and 0 is never
    #[arg(long, value_name = "TIME")]
    pub(crate) session_limit: Option<Time>,
    /// End the session when its agent reports a higher cost, as 5USD
    #[arg(long, value_name = "COST")]
    pub(crate) cost_limit: Option<CostLimit>,
}

/// Arguments about the options of the agent.
#[derive(Debug, Args)]
pub(crate) struct OptionArgs {
    /// Mode in which the agent works, as plan; a part of its name will do
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// Model of the agent; a part of its name will do
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Value of another option of the agent, as effort=high; `agentctl options` lists them
    #[arg(long = "option", value_name = "ID=VALUE", value_parser = option)]
    pub(crate) options: Vec<(String, String)>,
    /// An MCP server of the configuration that the agent gets too; may be repeated
    #[arg(long = "mcp", value_name = "NAME")]
    pub(crate) mcp: Vec<String>,
    /// An MCP server of the configuration that the agent does not get; `agentd` is agentd's own; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) no_mcp: Vec<String>,
}

/// Files and images of a prompt.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FileArgs {
    /// A file for the prompt, or a directory by its address; `-` is standard input; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,
    /// An image for the prompt, in PNG, JPEG, GIF or WebP; `-` is standard input; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Vec<PathBuf>,
}

/// Arguments of `agentctl prompt`.
#[derive(Debug, Args)]
pub(crate) struct PromptArgs {
    pub(crate) session: String,
    /// The prompt; words are joined by spaces, and `-` reads it from standard input
    #[arg(required_unless_present_any = ["file", "image"])]
    pub(crate) text: Vec<String>,
    #[command(flatten)]
    pub(crate) files: FileArgs,
    /// A file with a JSON Schema that the last block of the answer must satisfy
    #[arg(long, value_name = "FILE")]
    pub(crate) schema: Option<PathBuf>,
    /// Print the turn's id and exit
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AnswerArgs {
    pub(crate) session: String,
    /// Id of the question, as `show` lists it
    pub(crate) permission: PermissionId,
    /// Id of an option; or `allow` or `deny`, for the mildest option of that kind
    #[arg(value_name = "OPTION|allow|deny", required_unless_present = "fields", conflicts_with = "fields")]
    pub(crate) answer: Option<String>,
    /// Value of a field of the question's form; can be repeated
    #[arg(long = "field", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub(crate) fields: Vec<(String, String)>,
}

/// Parses NAME=VALUE.
pub(super) fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it is not NAME=VALUE".to_owned()),
    }
}

fn option(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((id, value)) if !id.is_empty() => Ok((id.to_owned(), value.to_owned())),
        _ => Err("an option is ID=VALUE, as effort=high".to_owned()),
    }
}

/// Value of `run --output`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResultFormat {
    /// The agent's last message
    Text,
    /// The whole result as one JSON document
    Json,
    /// The same result as YAML
    Yaml,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// With --batch: what to print at the end
    #[arg(short, long, value_enum, value_name = "FORMAT", requires = "batch")]
    pub(crate) output: Option<ResultFormat>,
    /// Delete the session at the end, unless Ctrl-C left it
    #[arg(long)]
    pub(crate) rm: bool,
    /// Do not print the session's own messages: how to leave it, its final state, the number of dropped variables
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// Wait at most this long until the session is ready, as 30s; exit status 1 if it is not ready by then
    #[arg(long, value_name = "TIME")]
    pub(crate) ready: Option<Time>,
}
