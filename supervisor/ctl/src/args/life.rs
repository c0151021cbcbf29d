//! Defines the arguments of the commands that name sessions and little else.

use clap::Args;

use super::{SelectorArgs, TermsArgs};

#[derive(Debug, Args)]
pub(crate) struct SessionArgs {
    pub(crate) session: String,
}

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// Without it: the session that you looked at or created last, among those that `ls` lists
    pub(crate) session: Option<String>,
    /// Show everything since the session's first event
    #[arg(long, conflicts_with = "last")]
    pub(crate) from_start: bool,
    /// Show this many of the latest events first
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) last: u64,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[arg(required_unless_present = "selector", conflicts_with = "selector", value_name = "SESSION")]
    pub(crate) sessions: Vec<String>,
    #[command(flatten)]
    pub(crate) chosen: SelectorArgs,
    /// Do not wait until they are stopped
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    #[arg(required_unless_present = "selector", conflicts_with = "selector")]
    pub(crate) session: Option<String>,
    #[command(flatten)]
    pub(crate) chosen: SelectorArgs,
    /// Do not wait until the agent is ready
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Begin a new conversation, for an agent that lost the old one
    #[arg(long)]
    pub(crate) new_conversation: bool,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    #[arg(required_unless_present = "selector", conflicts_with = "selector", value_name = "SESSION")]
    pub(crate) sessions: Vec<String>,
    #[command(flatten)]
    pub(crate) chosen: SelectorArgs,
    /// Stop active sessions first
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Let the agent keep its conversation
    #[arg(long)]
    pub(crate) keep_conversation: bool,
}
