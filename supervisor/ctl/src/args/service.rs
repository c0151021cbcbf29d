//! The command line of `agentctl service`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Install agentd, or the build that this agentctl belongs to in the place of another; sessions go on meanwhile
    ///
    /// The programs that lie beside this agentctl are copied, the units written, and the socket enabled and started: the first
    /// request starts agentd. Each step is told. What fails is undone. Doing it again changes nothing.
    Install(InstallArgs),
    /// Remove what install put there, and nothing else; sessions, state and configuration stay
    Uninstall(UninstallArgs),
    /// Show what is installed and what runs; exit status 0 where agentd runs, 3 where it does not, and it is not started
    Status(WhichArgs),
    /// Show the log of agentd and of its sessions
    Logs(LogsArgs),
}

/// Which service is meant.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WhichArgs {
    /// The service manager; the one that runs where it is not given
    #[arg(long, value_enum)]
    pub(crate) manager: Option<ManagerName>,
    /// For named users of this machine, by its administrator: the template agentd@USER of the system's systemd
    #[arg(long)]
    pub(crate) system: bool,
    /// Of this user
    #[arg(long, value_name = "NAME", requires = "system")]
    pub(crate) user: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ManagerName {
    Systemd,
    Launchd,
}

#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Where the programs go: ~/.local/bin, or /usr/local/bin with --system
    #[arg(long, value_name = "DIR")]
    pub(crate) bin_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) linger: LingerArgs,
    /// Write over files that are not as an install left them
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the steps, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct LingerArgs {
    /// Let sessions outlive your logout; you are asked on a terminal where nothing is said
    #[arg(long, conflicts_with = "no_linger")]
    pub(crate) linger: bool,
    /// Do not, and do not ask
    #[arg(long)]
    pub(crate) no_linger: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Stop the sessions first; without it they go on, and nobody looks after them
    #[arg(long)]
    pub(crate) drain: bool,
    /// Remove files that were changed since they were installed, too
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the steps, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// What concerns this session alone: of agentd, of its keeper and of its agent
    #[arg(long)]
    pub(crate) session: Option<String>,
    /// Go on with what comes
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// The last lines only
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) lines: Option<u32>,
    /// Begin here, as journalctl takes it: `-1h`, `today`, `2026-01-31 12:00`
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) since: Option<String>,
}
