//! Defines the options and commands for the git repositories of sessions.

use std::num::NonZeroU32;
use std::path::PathBuf;

use agentd_api::SessionName;
use clap::{Args, Subcommand};

use super::workflow::WorkflowArgs;

const EXAMPLES: &str = "\
Examples:
  agentctl repo add k3m https://github.com/o/web         clone it into the session's directory
  agentctl repo add k3m git@github.com:o/web --branch v2 a branch
  agentctl repo add k3m ~/src/app --worktree --branch x  a worktree of a local repository
  agentctl repo rm k3m web                               remove it, unless it has unsaved work";

/// Options that a new session's workspace and repositories come from.
#[derive(Debug, Args)]
pub(crate) struct WorkspaceArgs {
    /// Give the session a new directory of its own; --dir is then relative to it
    #[arg(long)]
    pub(crate) workspace: bool,
    /// A git repository to clone below the session's directory, as URL or URL#BRANCH; may be repeated
    #[arg(long, value_name = "URL")]
    pub(crate) repo: Vec<String>,
    /// Run in a new worktree of a local repository, by default that of the current directory; as DIR or DIR#BRANCH.
    /// Implies --workspace
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(crate) worktree: Option<String>,
    #[command(flatten)]
    pub(crate) workflow: WorkflowArgs,
    /// Continue the conversation of another session, with its agent, directory, environment and repositories
    #[arg(long, value_name = "SESSION", conflicts_with_all = ["agent", "command", "dir", "workspace", "worktree"])]
    pub(crate) parent: Option<SessionName>,
}

#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum RepositoryCommand {
    /// Add a repository: at once if no turn runs, else after the running turn
    Add(AddArgs),
    /// Remove a repository and its files: at once if no turn runs, else after the running turn
    ///
    /// A repository with uncommitted changes or commits that are not pushed stays, unless the removal is forced.
    Rm {
        session: String,
        name: String,
        /// Remove it with its unsaved work
        #[arg(short, long)]
        force: bool,
        #[command(flatten)]
        moment: MomentArgs,
    },
    /// List the repositories of a session with what is checked out now
    Ls { session: String },
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    pub(crate) session: String,
    /// URL or absolute path to clone; with --worktree the local repository
    #[arg(value_name = "URL|DIR")]
    pub(crate) source: String,
    /// Branch; by default the remote's default branch, or a new branch of a worktree
    #[arg(long)]
    pub(crate) branch: Option<String>,
    /// Name in the session; by default the last part of the source
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Directory of the clone, relative to the session's directory; by default the name
    #[arg(long, value_name = "DIR", conflicts_with = "worktree")]
    pub(crate) path: Option<PathBuf>,
    /// Clone only this many commits of the history
    #[arg(long, value_name = "N", conflicts_with = "worktree")]
    pub(crate) depth: Option<NonZeroU32>,
    /// Named secret with the password or token: [secrets.NAME] of the configuration
    #[arg(long, value_name = "NAME", conflicts_with = "worktree")]
    pub(crate) secret: Option<String>,
    /// Add a worktree of a local repository
    #[arg(long)]
    pub(crate) worktree: bool,
    #[command(flatten)]
    pub(crate) moment: MomentArgs,
}

/// Time of a change, and whether to wait for it.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct MomentArgs {
    /// Also while a turn runs
    #[arg(long)]
    pub(crate) now: bool,
    /// Do not wait until it is done
    #[arg(long)]
    pub(crate) no_wait: bool,
}
