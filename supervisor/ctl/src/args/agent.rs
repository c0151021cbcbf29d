//! Defines `agentctl agent`.

use std::path::PathBuf;

use agentd_api::{AgentName, SessionName};
use clap::{Args, Subcommand};

const ADD_EXAMPLES: &str = "\
Examples:
  agentctl agent add claude                     the known agent, under its own name
  agentctl agent add codex --as work --env CODEX_HOME=/home/kim/.codex-work
  agentctl agent add --as mine --command my-agent --acp
  agentctl agent add --from agent.json          an entry of the public registry";

/// Arguments of `agentctl adopt`.
#[derive(Debug, Args)]
pub(crate) struct AdoptArgs {
    /// The agent, as in the configuration
    pub(crate) agent: AgentName,
    /// Id of the conversation, or its beginning; without it the conversations are listed
    pub(crate) conversation: Option<String>,
    /// Directory of the conversations
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,
    /// List the conversations of all directories
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Name of the session
    #[arg(long)]
    pub(crate) name: Option<SessionName>,
    /// Do not wait until the agent is ready
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// List the configured and the known agents: installed, version, login
    Ls,
    /// Show the facts about an agent: its installation, variables, logins and quirks
    Show {
        /// A configured or a known agent
        agent: String,
    },
    /// Add an agent to your agentd.toml, and show the changed lines
    Add(AddArgs),
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

/// Arguments of `agentctl agent add`.
#[derive(Debug, Args)]
#[command(after_help = ADD_EXAMPLES)]
pub(crate) struct AddArgs {
    /// A known agent, see `agentctl agent ls`
    #[arg(required_unless_present_any = ["from", "command"])]
    pub(crate) agent: Option<String>,
    /// Name of the new entry; by default that of the known agent
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) name: Option<AgentName>,
    /// A file with an entry of the public registry of the Agent Client Protocol (agent.json)
    #[arg(long, value_name = "FILE", conflicts_with = "agent")]
    pub(crate) from: Option<PathBuf>,
    /// An argument after those of the agent; may be repeated
    #[arg(long = "arg", value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub(crate) args: Vec<String>,
    /// A variable of the agent; may be repeated. Secrets are refused: declare them as [secrets.NAME]
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::run::name_and_value)]
    pub(crate) env: Vec<(String, String)>,
    /// Make sessions that name no agent run this one
    #[arg(long)]
    pub(crate) default: bool,
    /// Only show the lines, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The program and its arguments: all words that follow
    #[arg(long, value_name = "PROGRAM", num_args = 1.., allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}
