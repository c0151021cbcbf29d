//! Defines the commands for schedules.

use agentd_api::ScheduleName;
use agentd_api::quantity::Time;
use clap::{Args, Subcommand, ValueEnum};

use super::SpecArgs;

const EXAMPLES: &str = "\
Examples:
  agentctl schedule add morning --calendar 'Mon..Fri 09:00' \"summarise the new issues\"
  agentctl schedule add report --calendar weekly --session build --prompt \"write the report\"
  agentctl schedule add later --at 2h --captured \"run the long tests\"
  agentctl schedule ls                show the next times and the last runs
  agentctl schedule run morning       run it now";

#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum ScheduleCommand {
    /// Add a schedule: a new session or a prompt, at one time or on a calendar expression
    ///
    /// With --session, each run sends a prompt to that session, and resumes it if it has no agent. Otherwise each run
    /// creates a session from the options of `agentctl run`.
    Add(Box<AddArgs>),
    /// List the schedules with their next time and last run
    #[command(visible_alias = "list")]
    Ls,
    /// Show a schedule with the history of its runs
    Show { schedule: ScheduleName },
    /// Remove schedules with their history; their sessions stay
    Rm {
        #[arg(required = true, value_name = "SCHEDULE")]
        schedules: Vec<String>,
    },
    /// Run a schedule now, and print its session
    Run {
        schedule: ScheduleName,
        /// Only if a time is due, as the timer units of systemd do
        #[arg(long)]
        due: bool,
    },
}

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(group(clap::ArgGroup::new("time").args(["at", "calendar"]).required(true)))]
pub(crate) struct AddArgs {
    /// A name for the schedule
    pub(crate) schedule: ScheduleName,
    /// The time of the only run: 2026-12-24T18:00:00Z, "2026-12-24 18:00", or a length of time from now, as 2h
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<String>,
    /// The times of the runs, as systemd writes them: 'Mon..Fri 09:00', '*-*-01 06:30' or hourly
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) calendar: Option<String>,
    /// Time zone of the times, as Europe/Berlin; by default that of the machine
    #[arg(long, value_name = "ZONE")]
    pub(crate) timezone: Option<String>,
    /// Send the prompt to this session instead of creating one
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// Begin with this terminal's environment, which agentd stores encrypted; otherwise it is built at the start
    #[arg(long, conflicts_with_all = ["session", "env_from"])]
    pub(crate) captured: bool,
    /// Wait for missing prerequisites, at most this long, like `10m`; by default one hour
    #[arg(long, value_name = "LIMIT", conflicts_with = "skip_unmet")]
    pub(crate) wait: Option<Time>,
    /// Skip a run while a prerequisite is missing
    #[arg(long)]
    pub(crate) skip_unmet: bool,
    /// Skip times that pass while the machine sleeps or agentd does not run; otherwise they run once afterwards
    #[arg(long)]
    pub(crate) skip_missed: bool,
    /// Treatment of a run while an earlier run is active
    #[arg(long, value_enum, default_value_t)]
    pub(crate) concurrency: ConcurrencyArg,
    /// Start no run by itself; `agentctl schedule run` does
    #[arg(long)]
    pub(crate) suspended: bool,
    /// Number of runs to remember, from 1 to 200; by default 20
    #[arg(long, value_name = "N")]
    pub(crate) history: Option<u32>,
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
}

/// Value of `--concurrency`: mirrors [`agentd_api::schedule::Concurrency`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConcurrencyArg {
    /// Both are active
    #[default]
    Allow,
    /// The new run is skipped
    Forbid,
    /// The earlier run is ended
    Replace,
}
