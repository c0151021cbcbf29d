//! Defines `agentctl agent`.

use std::path::PathBuf;

use agentd_api::AgentName;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Log in to an agent, in the environment that its sessions have
    ///
    /// Starts the agent here, and carries out one of its login methods. The agent's own method often opens a browser.
    /// Another kind runs a program at this terminal. For a method that reads a key from a variable, names the missing
    /// variable.
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
