//! Defines the arguments of `agentctl top`.

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  agentctl top                     all sessions
  agentctl top team=web idle       those with this label and this word
  agentctl --host lab top          the sessions of another machine";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Show only sessions with each of these words; a word with `=` is a label, as team=web or team!=web
    pub(crate) filter: Vec<String>,
}
