//! Defines the arguments of `agentctl prune`.

use agentd_api::prune::PruneRequest;
use agentd_api::quantity::Time;
use agentd_api::session::Phase;
use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("criterion")
    .args(["sessions", "older_than", "phase", "stale", "unreadable"]).multiple(true).required(true))]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct PruneArgs {
    /// Only these sessions
    #[arg(value_name = "SESSION")]
    pub(crate) sessions: Vec<String>,
    /// Only sessions without activity for this long, as 30d or 12h
    #[arg(long, value_name = "TIME")]
    pub(crate) older_than: Option<Time>,
    /// Only sessions in this phase; may be repeated
    #[arg(long, value_enum)]
    pub(crate) phase: Vec<RestPhase>,
    /// Only sessions whose directory, repository, scripts or agent changed, or that were not used for long
    #[arg(long)]
    pub(crate) stale: bool,
    /// Also sessions whose stored state cannot be read; alone, only these
    #[arg(long)]
    pub(crate) unreadable: bool,
    /// Print the sessions and remove nothing
    #[arg(short = 'n', long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// Do not ask for a confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// A phase of a session at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RestPhase {
    Stopped,
    Failed,
    Completed,
    Pending,
}

impl PruneArgs {
    /// Returns the request of a dry run.
    pub(crate) fn request(&self) -> PruneRequest {
        PruneRequest {
            names: self.sessions.clone(),
            older_than_seconds: self.older_than.map(Time::seconds),
            phases: self.phase.iter().map(|phase| phase.phase()).collect(),
            stale: self.stale,
            unreadable: self.unreadable,
            dry_run: true,
            confirmed: None,
        }
    }
}

impl RestPhase {
    fn phase(self) -> Phase {
        match self {
            Self::Stopped => Phase::Stopped,
            Self::Failed => Phase::Failed,
            Self::Completed => Phase::Completed,
            Self::Pending => Phase::Pending,
        }
    }
}
