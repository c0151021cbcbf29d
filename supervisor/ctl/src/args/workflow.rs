//! Defines the options and commands for the workflows of sessions.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  agentctl workflow use k3m https://github.com/o/flows#v2 --path triage   switch to a workflow of a repository
  agentctl workflow use k3m ~/flows/review                                a workflow in a local directory
  agentctl workflow show k3m                                              its description and its state
  agentctl workflow allow k3m                                             approve it after you have read it
  agentctl workflow clear k3m                                             go back to the session's own directory";

/// The workflow of a new session.
#[derive(Debug, Default, Args)]
pub(crate) struct WorkflowArgs {
    /// Workflow that the agent follows: URL or URL#BRANCH of a git repository, or a local directory
    #[arg(long, value_name = "URL|DIR")]
    pub(crate) workflow: Option<String>,
    /// Path of the workflow in its repository or directory
    #[arg(long, value_name = "PATH", requires = "workflow")]
    pub(crate) workflow_path: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum WorkflowCommand {
    /// Switch a session to a workflow: at once if no turn runs, else after the running turn
    ///
    /// The agent is started again in the workflow's directory with its conversation, and receives the workflow's
    /// startup prompt. A workflow that you have not approved changes nothing until you approve it.
    Use(UseArgs),
    /// Go back to the session's own directory, without a workflow
    Clear {
        session: String,
        /// Do not wait until it is done
        #[arg(long)]
        no_wait: bool,
    },
    /// Show a session's workflow: its description, its directory, and its state
    Show { session: String },
    /// Show the files of a session's workflow that are not approved, and approve them
    Allow {
        session: String,
        /// Approve without a question
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct UseArgs {
    pub(crate) session: String,
    /// URL or URL#BRANCH of a git repository, or a local directory
    #[arg(value_name = "URL|DIR")]
    pub(crate) source: String,
    /// Path of the workflow in its repository or directory
    #[arg(long)]
    pub(crate) path: Option<PathBuf>,
    /// Named secret with the password or token: [secrets.NAME] of the configuration
    #[arg(long, value_name = "NAME")]
    pub(crate) secret: Option<String>,
    /// Do not wait until it is done
    #[arg(long)]
    pub(crate) no_wait: bool,
}
