//! Defines the command line of `agentctl service`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Install agentd, or replace another build by the build of this agentctl; sessions continue meanwhile
    ///
    /// Copies the programs beside this agentctl, writes the units, completion scripts and man pages, and
    /// enables and starts the socket. The first request starts agentd. Each step is printed; if a step fails,
    /// all steps are undone. Repeating the command changes nothing.
    Install(InstallArgs),
    /// Remove the installed files only; sessions, state and configuration stay
    Uninstall(UninstallArgs),
    /// Show the installed files and running daemons without starting agentd; exit status 0 if agentd runs,
    /// otherwise 3
    Status(WhichArgs),
    /// Show the log of agentd and of its sessions
    Logs(LogsArgs),
}

/// Selection of a service.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WhichArgs {
    /// Service manager; by default the running manager
    #[arg(long, value_enum)]
    pub(crate) manager: Option<ManagerName>,
    /// Act on the template agentd@USER of the system's systemd, as the administrator
    #[arg(long)]
    pub(crate) system: bool,
    /// Act on the template's instance of this user
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
    /// Directory of the programs: ~/.local/bin, or /usr/local/bin with --system
    #[arg(long, value_name = "DIR")]
    pub(crate) bin_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) linger: LingerArgs,
    /// Overwrite files that were changed since the install or have another origin
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the steps without taking them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct LingerArgs {
    /// Let sessions outlive your logout; without --linger and --no-linger, a terminal asks
    #[arg(long, conflicts_with = "no_linger")]
    pub(crate) linger: bool,
    /// Do not let sessions outlive your logout, and do not ask
    #[arg(long)]
    pub(crate) no_linger: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Stop the sessions first; otherwise they continue without supervision
    #[arg(long)]
    pub(crate) drain: bool,
    /// Also remove files that were changed since the install
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the steps without taking them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Only the lines of this session: from agentd, its keeper and its agent
    #[arg(long)]
    pub(crate) session: Option<String>,
    /// Follow the log
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the last N lines
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) lines: Option<u32>,
    /// Begin at a time in journalctl's form: `-1h`, `today`, `2026-01-31 12:00`
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) since: Option<String>,
}
