//! Defines the commands for places.

use agentd_api::quantity::Time;
use clap::Subcommand;

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum PlaceCommand {
    /// List the places of the configuration with the number of sessions on each
    #[command(visible_alias = "list")]
    Ls,
    /// Reach a place, start agentd-keeper there, and show each step with its duration
    ///
    /// No agent is started. The exit status is 1 if a step failed.
    Check {
        /// Name of the place
        #[arg(value_name = "NAME")]
        place: String,
        /// Time limit of the place for its answer, at most 10m; a launch can wait longer in the queue of its engine
        #[arg(long, value_name = "TIME", default_value = "1m")]
        timeout: Time,
    },
}
