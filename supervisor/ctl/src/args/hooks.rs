//! Defines the commands for hooks.

use clap::Subcommand;

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum HooksCommand {
    /// List the hooks with their last delivery and their lag
    #[command(visible_alias = "list")]
    Ls,
    /// Send one test event to a hook, and print the answer
    ///
    /// The exit status is 1 if the delivery failed.
    Test {
        /// Name of the hook
        hook: String,
    },
}
