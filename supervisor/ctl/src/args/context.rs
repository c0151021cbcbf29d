//! Defines the commands for what a session remembers: context, hint and title.

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  agentctl context k3m                         show the context
  agentctl context k3m files notes.md src/     add files; paths become absolute
  agentctl context k3m ports 8080 --replace    replace the items of a set
  agentctl context k3m files --replace         empty a set
  agentctl context k3m applet wave zoom=2 --url http://localhost:8000/wave";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ContextArgs {
    pub(crate) session: String,
    /// Name of a set: files, applet, endpoints, ports, or another name
    pub(crate) set: Option<String>,
    /// Items of the set, at most 10; paths of files become absolute
    #[arg(value_name = "ITEM", requires = "set")]
    pub(crate) items: Vec<String>,
    /// Replace the items of the set instead of adding to them; without items, empty the set
    #[arg(long, requires = "set")]
    pub(crate) replace: bool,
    /// URL that opens the applet
    #[arg(long, value_name = "URL", requires = "set")]
    pub(crate) url: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct HintArgs {
    pub(crate) session: String,
    /// The hint; words are joined by spaces, and `-` reads it from standard input
    #[arg(value_name = "TEXT")]
    pub(crate) text: Vec<String>,
    /// Remove the hint
    #[arg(long, conflicts_with = "text")]
    pub(crate) remove: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TitleArgs {
    pub(crate) session: String,
    /// The title; words are joined by spaces
    #[arg(value_name = "TEXT")]
    pub(crate) text: Vec<String>,
    /// Remove the title that was set; the agent's title or the first prompt is shown again
    #[arg(long, conflicts_with = "text")]
    pub(crate) remove: bool,
}
