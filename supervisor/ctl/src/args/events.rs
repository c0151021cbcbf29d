//! Arguments of `agentctl events`.

use clap::Args;

use super::SelectorArgs;

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Session; without it, the events of all sessions and of the daemon
    #[arg(conflicts_with = "selector")]
    pub(crate) session: Option<String>,
    /// Begin after the event with this number; without SESSION, after this cursor
    #[arg(long, value_name = "SEQ", conflicts_with = "last")]
    pub(crate) after: Option<u64>,
    /// Begin with the last N events
    #[arg(long, value_name = "N")]
    pub(crate) last: Option<u64>,
    /// Print the present events and exit
    #[arg(long)]
    pub(crate) no_follow: bool,
    /// Only events of these kinds, as turn.*,session.state; without SESSION
    #[arg(long, value_name = "KINDS", conflicts_with = "session")]
    pub(crate) kind: Option<String>,
    #[command(flatten)]
    pub(crate) chosen: SelectorArgs,
}
