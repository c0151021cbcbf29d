//! The command line.

pub(crate) mod config;
pub(crate) mod plugin;
pub(crate) mod service;

use std::path::PathBuf;

use agentd_api::environment::Moment;
use agentd_api::quantity::{Size, Time};
use agentd_api::session::CpuWeight;
use agentd_api::{AgentName, PermissionId, SessionName};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands::KeepArgs;

const STATUSES: &str = "\
Exit status:
  0    success; run and prompt: the agent ended the turn itself
  1    failure: the daemon reported an error, or the session, the launch or
       the turn failed; check, validate, config check: something was found;
       doctor: a check failed (a warning is status 0)
  2    the command line is wrong
  3    the daemon cannot be reached or started
  4    refused in the present state: the session's phase does not allow it, a
       name is taken, a queue is full, a question is answered already
  130  the turn was cancelled, or Ctrl-C left it running
  141  the reader of the output closed it

Environment:
  AGENTD_SOCKET  the daemon's socket, as --socket
  AGENTD_URL, AGENTD_TOKEN_FILE
                 the daemon's address over TCP and the file with its token,
                 as --url and --token-file
  NO_COLOR       if set and not empty: no colours, on a terminal either";

const EXAMPLES: &str = "\
Examples:
  agentctl run                             talk to the default agent, here
  agentctl run --agent claude --dir ~/src  talk to another agent, elsewhere
  agentctl run \"what is this?\"             ask one thing; stdout is the answer
  agentctl ls -a                           list all sessions
  agentctl attach k3m                      come back; part of an id is enough
  agentctl stop k3m                        end its agent; resume continues it
  agentctl env k3m                         show its environment, with sources
  agentctl doctor                          find out what is wrong, and the remedy";

const RUN_EXAMPLES: &str = "\
Examples:
  agentctl run                                 talk to the default agent
  agentctl run \"explain main.rs\" > answer.md   one turn; the answer in a file
  git diff | agentctl run --prompt -           the prompt from standard input
  agentctl run --agent claude --dir ~/src      another agent, another directory
  agentctl run -- npx my-agent --acp           any program that speaks ACP";

/// Run AI coding agents in sessions of their own, each in its own clean environment.
///
/// A session is one conversation with one agent in one directory. It outlives the terminal that began it, and the daemon.
/// SESSION is a session's id, its name, or the beginning of its id if no other id begins so.
#[derive(Debug, Parser)]
#[command(name = "agentctl", version, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{STATUSES}"))]
#[command(disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// The daemon's socket. With it, agentctl never starts a daemon
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// The daemon's address over TCP, like `http://127.0.0.1:7345`, instead of its socket
    #[arg(long, global = true, value_name = "URL", conflicts_with = "socket")]
    pub(crate) url: Option<String>,
    /// The file with the token that the daemon requires over TCP
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Do not start a daemon if none answers
    #[arg(long, global = true)]
    pub(crate) no_start: bool,
    /// Print the daemon's JSON documents unchanged; streams print one JSON object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Show more: the steps of a launch, the agent's stderr as it comes
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a session and talk to its agent
    ///
    /// With a prompt, it runs that turn and exits; the session stays. Without one, each line of standard input is a turn, and the end
    /// of the input (Ctrl-D) leaves. Ctrl-C cancels the running turn. A second Ctrl-C within 2 s, or one while no turn runs, leaves.
    ///
    /// The agent's answer goes to standard output and ends with a newline. Everything else goes to standard error. If the input is a
    /// file or a pipe, the exit status is that of the first turn that did not end well.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Create a session and print its id
    New(NewArgs),
    /// List sessions that are not stopped; with --all, every session
    #[command(visible_alias = "list")]
    Ls {
        /// List stopped sessions too
        #[arg(short, long)]
        all: bool,
    },
    /// Show a session's spec, status and conditions
    Show { session: String },
    /// Come back to a session: show its last events, then follow it and send prompts as with run
    Attach {
        session: String,
        /// Show everything since the session's first event
        #[arg(long, conflicts_with = "last")]
        from_start: bool,
        /// Show this many of the latest events first
        #[arg(long, value_name = "N", default_value_t = 200)]
        last: u64,
    },
    /// Prompt a session and show that turn until it ends
    ///
    /// If a turn is running already, the prompt waits for its end.
    Prompt {
        session: String,
        /// The prompt; words are joined by spaces, and `-` reads it from standard input
        #[arg(required = true)]
        text: Vec<String>,
        /// Print the turn's id and exit
        #[arg(long)]
        no_wait: bool,
    },
    /// Cancel a session's running turn
    Cancel { session: String },
    /// Stop sessions: end their agents with every process these started
    ///
    /// A stopped session keeps its conversation; `agentctl resume` continues it. Stopping a session that is stopped is no error.
    Stop {
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<String>,
        /// Do not wait until they are stopped
        #[arg(long)]
        no_wait: bool,
    },
    /// Start the agent of a stopped or failed session again and continue the conversation
    Resume {
        session: String,
        /// Do not wait until the agent is ready
        #[arg(long)]
        no_wait: bool,
        /// Begin a new conversation, for an agent that lost the old one
        #[arg(long)]
        new_conversation: bool,
        #[command(flatten)]
        terms: TermsArgs,
    },
    /// Delete sessions and everything that is stored of them
    Rm {
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<String>,
        /// Stop active sessions first
        #[arg(short, long)]
        force: bool,
    },
    /// Check the prerequisites of sessions now; exit status 1 if one is missing
    Check(CheckArgs),
    /// Look for mistakes in a session's environment before its next launch; exit status 1 if there are any
    Validate { session: String },
    /// Show a session's environment and who set each variable; approve scripts of directories
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Env(EnvArgs),
    /// List the secrets of the configuration: where each comes from and who gets it, never its value
    Secret {
        #[command(subcommand)]
        command: SecretCommand,
    },
    /// Answer an agent's question
    Answer {
        session: String,
        /// The question's id, as `show` lists it
        permission: PermissionId,
        /// The id of one of its options; or `allow` or `deny`, for the mildest option of that kind
        #[arg(value_name = "OPTION|allow|deny")]
        answer: String,
    },
    /// Print a session's events, one JSON object a line, and follow it
    Events {
        session: String,
        /// Begin after the event with this number
        #[arg(long, value_name = "SEQ", conflicts_with = "last")]
        after: Option<u64>,
        /// Begin with the last N events
        #[arg(long, value_name = "N")]
        last: Option<u64>,
        /// Print the present events and exit
        #[arg(long)]
        no_follow: bool,
    },
    /// Show or refresh the login shell's environment, with which sessions' environments begin
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// List plugins, and create, inspect, check and test one
    #[command(subcommand)]
    Plugin(plugin::PluginCommand),
    /// Have the daemon read its configuration and plugins again; never starts one
    ///
    /// What cannot be used is left out or stays as it was, and is printed with its file and line; the exit status is then 1.
    Reload {
        /// Say what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Look at the configuration: check it, show it, say where it is; needs no daemon
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Stop every session, and launch none until the drain is undone or the daemon is started again
    Drain {
        /// Allow launches again; stopped sessions stay stopped
        #[arg(long, conflicts_with = "no_wait")]
        undo: bool,
        /// Do not wait until every session is stopped
        #[arg(long)]
        no_wait: bool,
    },
    /// Install, upgrade, inspect or remove agentd as a service of systemd or launchd
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Show the calls that changed or revealed something, with their callers and outcomes
    Audit(AuditArgs),
    /// Check agentd and its installation, with a remedy for each problem; exit status 1 if a check fails
    Doctor(DoctorArgs),
    /// List the configured agents
    Agents,
    /// Print the versions of agentctl and of the running daemon
    Version,
    /// Check whether another build of agentd can replace the one that runs
    UpgradeCheck {
        /// The new agentd; by default the one beside this agentctl
        #[arg(value_name = "AGENTD")]
        program: Option<PathBuf>,
    },
    /// Be an agent: speak the Agent Client Protocol on standard input and output
    #[command(hide = true)]
    DemoAgent,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Calls that concern this session or come from inside it; also one that was removed, by its id
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// Calls since then: a timestamp, or a length of time before now, as 15m
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// The newest N calls
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct SpecArgs {
    /// A configured agent, see `agentctl agents`; `demo` is built in
    #[arg(long, value_name = "NAME", conflicts_with = "command")]
    pub(crate) agent: Option<AgentName>,
    /// A name for the session
    #[arg(long)]
    pub(crate) name: Option<SessionName>,
    /// The session's directory; by default the current one
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The first prompt; `-` reads it from standard input
    #[arg(long, value_name = "TEXT", conflicts_with = "text")]
    pub(crate) prompt: Option<String>,
    /// The first prompt, as --prompt; its words are joined by spaces
    #[arg(value_name = "PROMPT")]
    pub(crate) text: Vec<String>,
    /// Who answers when the agent asks for permission
    #[arg(long, value_enum, default_value_t)]
    pub(crate) permissions: Permissions,
    /// A script to source last when the session's environment is built
    #[arg(long, value_name = "FILE")]
    pub(crate) env_setup: Option<PathBuf>,
    /// What the environment begins with; by default as configured
    #[arg(long, value_enum, value_name = "SOURCE")]
    pub(crate) env_from: Option<EnvFrom>,
    /// A variable of the agent's environment; may be repeated. Secrets are refused: declare them as [secrets.NAME]
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// A variable that the whitelist keeps besides, by name or pattern; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) allow: Vec<String>,
    /// A variable that is dropped, by name or pattern; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) drop: Vec<String>,
    /// What later launches do with the environment of the previous one; by default as configured
    #[arg(long, value_enum)]
    pub(crate) refresh: Option<RefreshPolicy>,
    /// How much the agent is told before the first prompt after a resume; by default as configured
    #[arg(long, value_enum)]
    pub(crate) resume_note: Option<Note>,
    /// Whether an agent that crashed is started again; by default as configured
    #[arg(long, value_enum)]
    pub(crate) restart: Option<Restart>,
    /// What the agent is kept from; by default as its agent is configured, and never less than that
    #[arg(long, value_enum)]
    pub(crate) isolation: Option<Level>,
    /// Memory of the agent and everything it starts, as 2G or a number of bytes
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// Processes and threads of the same
    #[arg(long, value_name = "N")]
    pub(crate) tasks: Option<u64>,
    /// Its share of the processors beside the other sessions, 1 to 10000; 100 is usual. Under systemd only
    #[arg(long, value_name = "WEIGHT")]
    pub(crate) cpu_weight: Option<CpuWeight>,
    /// Stop the session after this long without a turn, as 10m or a number of seconds; 0 is never
    #[arg(long, value_name = "TIME")]
    pub(crate) idle: Option<Time>,
    /// Cancel a turn that takes longer, as 1h30m; 0 is never
    #[arg(long, value_name = "TIME")]
    pub(crate) turn_limit: Option<Time>,
    /// Reject a permission request that has waited this long for an answer, as 5m; 0 is never
    #[arg(long, value_name = "TIME")]
    pub(crate) permission_limit: Option<Time>,
    /// A configured prerequisite that the session needs, see `agentctl check`; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) require: Vec<String>,
    /// A tag of the session, by which configured prerequisites apply to it; may be repeated
    #[arg(long)]
    pub(crate) tag: Vec<String>,
    /// A program that speaks the Agent Client Protocol on stdin and stdout, instead of a configured agent
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// What a launch does if a prerequisite of the session is missing.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct TermsArgs {
    /// Wait for missing prerequisites, at most this long, like `10m` or `8h`; without a limit, one hour
    #[arg(
        long,
        value_name = "LIMIT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1h",
        conflicts_with = "force"
    )]
    pub(crate) wait: Option<Time>,
    /// Start without missing prerequisites; the journal records who asked for it
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Check this prerequisite only
    pub(crate) name: Option<String>,
    /// Check what this session needs, including prerequisites that look at its environment
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// Check again every 2 s, until Ctrl-C
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// As [`agentd_api::environment::SnapshotSource`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnvFrom {
    /// The environment of your login shell at each launch
    LoginShell,
    /// The environment of this terminal
    Terminal,
    /// The environment of your login shell now, for later launches too
    Stored,
}

#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Show the stored environments, their age, and which files are watched
    Status,
    /// Run the login shell now
    Refresh,
    /// Forget the stored environment and the results of scripts; the next launch runs both anew
    Invalidate,
}

/// As [`agentd_api::isolation::Isolation`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Level {
    /// Nothing
    None,
    /// agentd's files, and every process outside of the session
    Guard,
}

/// As [`agentd_api::session::RestartPolicy`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Restart {
    Never,
    OnFailure,
}

/// As [`agentd_api::environment::Refresh`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum RefreshPolicy {
    /// Build it anew
    Fresh,
    /// Use the stored one unchanged
    Stored,
    /// Use the stored one, and warn if a fresh one would differ
    Warn,
}

/// As [`agentd_api::session::ResumeNote`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Note {
    Off,
    /// What it lost and what has changed, if anything
    Brief,
    /// The same in full, after every new start of its process
    Full,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// Delete the session at the end, unless Ctrl-C left it
    #[arg(long)]
    pub(crate) rm: bool,
    /// Say nothing of the session itself: how to leave it, what becomes of it, how many variables were dropped
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// Wait until the session is ready, at most this long, as 30s; exit status 1 if it is not ready by then
    #[arg(long, value_name = "TIME")]
    pub(crate) ready: Option<Time>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Permissions {
    /// You are asked
    #[default]
    Ask,
    Allow,
    Deny,
}

#[derive(Debug, Default, Args)]
pub(crate) struct DoctorArgs {
    /// The agentd that the administrator runs for a user of this machine (agentd@USER); as root
    #[arg(long, requires = "user")]
    pub(crate) system: bool,
    /// Of this user
    #[arg(long, value_name = "NAME", requires = "system")]
    pub(crate) user: Option<String>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum SecretCommand {
    /// List the secrets, without fetching one
    #[command(visible_alias = "list")]
    Ls,
    /// Fetch each secret as a launch does, and say which are available; exit status 1 if a required one is not
    Check,
}

#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    #[command(subcommand)]
    pub(crate) scripts: Option<ScriptCommand>,
    #[arg(required = true)]
    pub(crate) session: Option<String>,
    /// Show values too, except those of secrets
    #[arg(long)]
    pub(crate) values: bool,
    /// Show the variables that were removed instead, with the provider and its reason
    #[arg(long, conflicts_with = "values")]
    pub(crate) dropped: bool,
    /// Show the scripts that were sourced for it instead, with their status and what they printed on standard error
    #[arg(long = "scripts", conflicts_with_all = ["values", "dropped", "explain", "diff"])]
    pub(crate) ran: bool,
    /// The environment of the first launch, of the last launch (the default), or the one a launch would build now
    #[arg(long, value_name = "created|last|now", default_value = "last", hide_default_value = true)]
    pub(crate) at: Moment,
    /// Show each step that set or removed this variable, and what it replaced
    #[arg(long, value_name = "NAME", conflicts_with_all = ["values", "dropped"])]
    pub(crate) explain: Option<String>,
    /// Show the differences between two environments; without a range, between the last launch and now. `terminal`: show what this
    /// terminal has and the agent has not, which step dropped it, and the line that keeps it
    #[arg(
        long,
        value_name = "created|last..last|now|terminal",
        num_args = 0..=1,
        default_missing_value = "last..now",
        conflicts_with_all = ["dropped", "at", "explain"]
    )]
    pub(crate) diff: Option<Against>,
}

/// What an environment is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Against {
    Moments(Range),
    /// The environment of this process.
    Terminal,
}

impl std::str::FromStr for Against {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "terminal" { Ok(Self::Terminal) } else { text.parse().map(Self::Moments) }
    }
}

/// Two environments of one session, as `created..now`. The first is `last` where it is left out, the second `now`.
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
        let (from, to) = text.split_once("..").ok_or("it is no range, like created..now, and not terminal")?;
        let to = moment(to, Moment::Now)?;
        let range = Self { from: moment(from, if to == Moment::Last { Moment::Created } else { Moment::Last })?, to };
        if range.from == range.to { Err("both ends are the same".to_owned()) } else { Ok(range) }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScriptCommand {
    /// Approve the scripts that sessions in a directory source, with their present content
    ///
    /// Each script is shown first: whole, or the difference since it was approved. On a terminal you are asked to confirm. Scripts that
    /// it sources in turn are named, and are not covered by the approval.
    Allow {
        /// The directory, or one script
        directory: PathBuf,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Withdraw the approval of scripts; they are not run any more
    Deny {
        /// The directory, or one script
        directory: PathBuf,
    },
    /// Have the whitelist keep variables: write their names into your agentd.toml, and show the lines that changed
    ///
    /// The next launch of each session has them. Without --agent and --directory it is for every session.
    Keep(KeepArgs),
    /// Encrypt the stored environments of all sessions with another key
    ///
    /// A key that agentd made is replaced by a new one. Change a key from a file or from systemd there first, and name the previous one
    /// under environment.encryption.previous in the configuration; this command then takes the new key into use.
    RotateKey,
    /// List the scripts that sessions in a directory source, with their approval and what they source in turn
    #[command(name = "scripts")]
    List {
        #[arg(default_value = ".")]
        directory: PathBuf,
    },
}

#[cfg(test)]
mod tests;
