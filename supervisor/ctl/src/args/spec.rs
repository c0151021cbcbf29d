//! Defines the commands that change a session's specification.

use agentd_api::label::{self, InvalidLabel, Selector};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  agentctl set k3m name=build restart=never      two fields at once
  agentctl set k3m limits.memory=4G              with the next launch
  agentctl set k3m tags=lab,nightly              a list; JSON works too
  agentctl set k3m labels.team=web labels.old=   set a label, remove another
  agentctl set k3m limits.turn_seconds=          back to the configured value
  agentctl set k3m env_setup=@setup.sh           the content of a file";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetArgs {
    pub(crate) session: String,
    /// A field and its new value; without a value, the field gets its default
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub(crate) fields: Vec<String>,
    /// Change nothing if the specification has another generation than N
    #[arg(long, value_name = "N")]
    pub(crate) generation: Option<u64>,
}

/// Sessions that a command chooses by their labels.
#[derive(Debug, Default, Args)]
pub(crate) struct SelectorArgs {
    /// Only sessions with these labels: KEY=VALUE, KEY!=VALUE, KEY, !KEY, or several with commas between
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector)]
    pub(crate) selector: Option<Selector>,
}

fn selector(text: &str) -> Result<Selector, String> {
    text.parse().map_err(|error| explained(&error))
}

/// Parses a label of the command line.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    label::parse(text).map_err(|error| explained(&error))
}

fn explained(error: &InvalidLabel) -> String {
    format!("{error}; {}", error.hint())
}
