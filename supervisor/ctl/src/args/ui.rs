//! Defines `agentctl ui`.

use agentd_api::quantity::Time;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  agentctl ui                         open the page in your browser
  agentctl ui --read-only --for 1h    look for an hour, and change nothing
  agentctl --host lab ui              the page of another machine
  agentctl ui --no-open --port 7400   print the address, for a browser behind
                                      ssh -L 7400:127.0.0.1:7400";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UiArgs {
    /// Refuse everything that changes something
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Port of the loopback; by default yours for this agentd, or any free one while it is in use
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,
    /// Print the address only, and open no browser
    #[arg(long)]
    pub(crate) no_open: bool,
    /// Time from the sign-in until the browser is signed out
    #[arg(long = "for", value_name = "TIME", default_value = "12h")]
    pub(crate) life: Time,
    /// Editor that opens files: vscode, cursor, zed, idea or another known name, or a URL with {path} and {line}
    #[arg(long, value_name = "EDITOR")]
    pub(crate) editor: Option<String>,
}
