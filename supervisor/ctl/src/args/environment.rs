//! Defines the command line of `agentctl env`.

use std::path::PathBuf;

use agentd_api::AgentName;
use agentd_api::environment::Moment;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    #[command(subcommand)]
    pub(crate) scripts: Option<ScriptCommand>,
    #[arg(required = true)]
    pub(crate) session: Option<String>,
    /// Show values too, except those of secrets
    #[arg(long)]
    pub(crate) values: bool,
    /// Show the removed variables instead, with the provider and its reason
    #[arg(long, conflicts_with = "values")]
    pub(crate) dropped: bool,
    /// Show the sourced scripts instead, with their status and standard error
    #[arg(long = "scripts", conflicts_with_all = ["values", "dropped", "explain", "diff"])]
    pub(crate) ran: bool,
    /// Environment of the first launch, of the last launch (the default), or of a launch now
    #[arg(long, value_name = "created|last|now", default_value = "last", hide_default_value = true)]
    pub(crate) at: Moment,
    /// Show each step that set or removed this variable, with the replaced value
    #[arg(long, value_name = "NAME", conflicts_with_all = ["values", "dropped"])]
    pub(crate) explain: Option<String>,
    /// Show the differences between two environments, by default between the last launch and now. `terminal`:
    /// show the variables of this terminal that the agent does not have, the step that dropped each, and the
    /// command that keeps it
    #[arg(
        long,
        value_name = "created|last..last|now|terminal",
        num_args = 0..=1,
        default_missing_value = "last..now",
        conflicts_with_all = ["dropped", "at", "explain"]
    )]
    pub(crate) diff: Option<Against>,
}

/// Counterpart of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Against {
    Moments(Range),
    /// Environment of this process.
    Terminal,
}

impl std::str::FromStr for Against {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "terminal" { Ok(Self::Terminal) } else { text.parse().map(Self::Moments) }
    }
}

/// Two environments of one session, as `created..now`. The default of the first is `last`, that of the second
/// `now`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) from: Moment,
    pub(crate) to: Moment,
}

impl std::str::FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let moment = |text: &str, default| match text {
            "" => Ok(default),
            text => text.parse().map_err(|error: agentd_api::environment::InvalidMoment| error.to_string()),
        };
        let (from, to) = text.split_once("..").ok_or("neither `terminal` nor a range like created..now")?;
        let to = moment(to, Moment::Now)?;
        let range = Self { from: moment(from, if to == Moment::Last { Moment::Created } else { Moment::Last })?, to };
        if range.from == range.to { Err("both ends are the same".to_owned()) } else { Ok(range) }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScriptCommand {
    /// Approve the scripts that sessions in a directory source, with their present content
    ///
    /// Each script is shown first: whole, or the changes since its approval. On a terminal you are asked to
    /// confirm. Scripts that it sources in turn are listed, but not covered by the approval.
    Allow {
        /// Directory, or one script
        #[arg(required_unless_present = "session", conflicts_with = "session")]
        directory: Option<PathBuf>,
        /// Approve the script that was proposed for this session
        #[arg(long)]
        session: Option<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Withdraw the approval of scripts; they no longer run
    Deny {
        /// Directory, or one script
        #[arg(required_unless_present = "session", conflicts_with = "session")]
        directory: Option<PathBuf>,
        /// Deny the script that was proposed for this session
        #[arg(long)]
        session: Option<String>,
    },
    /// Make the whitelist keep variables: write their names into your agentd.toml, and show the changed lines
    ///
    /// The next launch of each session has the variables. Without --agent and --directory this applies to every
    /// session.
    Keep(KeepArgs),
    /// Encrypt the stored environments of all sessions with another key
    ///
    /// A key that agentd created is replaced by a new key. Change a key from a file or from systemd at its
    /// source first, and name the previous key under environment.encryption.previous in the configuration. This
    /// command then takes the new key into use.
    RotateKey,
    /// List the scripts that sessions in a directory source, with their approval and the scripts that they
    /// source in turn
    #[command(name = "scripts")]
    List {
        #[arg(default_value = ".", conflicts_with = "session")]
        directory: PathBuf,
        /// List the script that was proposed for this session
        #[arg(long)]
        session: Option<String>,
    },
}

/// Arguments of `agentctl env keep`.
#[derive(Debug, Args)]
pub(crate) struct KeepArgs {
    /// Names of variables, or patterns of names like `ROS_*`
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// For the sessions of this agent only
    #[arg(long, value_name = "AGENT", conflicts_with = "directory")]
    pub(crate) agent: Option<AgentName>,
    /// For the sessions in and below this directory only
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Print the changes without writing them
    #[arg(long)]
    pub(crate) dry_run: bool,
}
