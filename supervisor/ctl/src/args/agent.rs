//! Defines `agentctl agent`.

use std::path::PathBuf;

use agentd_api::AgentName;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Log in to an agent, in the environment that its sessions have
    ///
    /// Starts the agent here, lists the login methods that it offers, and carries out one: the agent's own, which often
    /// opens a browser, or a program at this terminal. For a method that reads a key from a variable, says which
    /// variable is missing.
    Login {
        /// A configured agent
        agent: AgentName,
        /// Id of the login method; needed if the agent offers several
        #[arg(long)]
        method: Option<String>,
        /// Directory in which the agent is started
        #[arg(long, default_value = ".")]
        dir: PathBuf,
    },
}
