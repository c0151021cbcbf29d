//! The command line.

pub(crate) mod config;
pub(crate) mod plugin;
pub(crate) mod service;

use std::path::PathBuf;
use std::time::Duration;

use agentd_api::environment::Moment;
use agentd_api::session::CpuWeight;
use agentd_api::{AgentName, PermissionId, SessionName};
use clap::{Args, Parser, Subcommand, ValueEnum};

const STATUSES: &str = "\
Exit status:
  0    done; of run and prompt: the agent ended the turn itself
  1    failed: the daemon reported an error, the turn or the session failed
  2    the command line is wrong
  3    the daemon cannot be reached or started
  4    refused as things are: the session's phase does not allow it, a name
       is taken, a question is answered already
  130  the turn was cancelled, or Ctrl-C left it running
  141  the reader of the output went away

Environment:
  AGENTD_SOCKET  the daemon's socket, as --socket
  AGENTD_URL, AGENTD_TOKEN_FILE
                 its address over TCP and the token's file, as --url and
                 --token-file
  NO_COLOR       no colours on a terminal either";

const EXAMPLES: &str = "\
Examples:
  agentctl run                             talk to the default agent, here
  agentctl run --agent claude --dir ~/src  talk to another one elsewhere
  agentctl run --prompt \"what is this?\"    ask one thing; stdout is the answer
  agentctl ls -a                           what there is
  agentctl attach k3m                      come back; part of an id is enough
  agentctl env k3m                         who put what into its environment";

/// Run AI coding agents in sessions of their own, each in its own clean environment.
///
/// A session is one conversation with one agent in one directory. It outlives the terminal that began it, and the daemon.
/// SESSION is a session's id, the beginning of an id that no other has, or a name.
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
    /// The daemon's socket; no daemon is started for one that is given
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// The daemon's address over TCP, as `http://127.0.0.1:7345`, in place of its socket
    #[arg(long, global = true, value_name = "URL", conflicts_with = "socket")]
    pub(crate) url: Option<String>,
    /// The file with the token that the daemon asks for over TCP
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Do not start the daemon when none answers
    #[arg(long, global = true)]
    pub(crate) no_start: bool,
    /// Print the documents of the daemon's interface as they are; streams as one record a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Show what is usually left out: launch steps, the agent's stderr
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a session and talk to its agent
    ///
    /// With --prompt it ends when that turn has ended, and the session stays. Without, each line of standard input is a turn;
    /// the end of input (Ctrl-D) leaves. Ctrl-C cancels the running turn; a second one within 2 s, or one with nothing
    /// running, leaves. What the agent says goes to standard output, all else to standard error.
    Run(RunArgs),
    /// Create a session and print its id
    New(NewArgs),
    /// List sessions; without --all those that are stopped are left out
    #[command(visible_alias = "list")]
    Ls {
        /// Stopped ones too
        #[arg(short, long)]
        all: bool,
    },
    /// Show a session's spec, status and conditions
    Show { session: String },
    /// Come back to a session: what was said last, then what is said, and prompts as with run
    Attach {
        session: String,
        /// Begin with the session's first event
        #[arg(long, conflicts_with = "last")]
        from_start: bool,
        /// Begin this many events before now
        #[arg(long, value_name = "N", default_value_t = 200)]
        last: u64,
    },
    /// Prompt a session and show that turn until it ends
    ///
    /// Where a turn is running, the prompt waits for its end.
    Prompt {
        session: String,
        /// The prompt; its words are joined by spaces, and `-` reads it from standard input
        #[arg(required = true)]
        text: Vec<String>,
        /// Print the turn's id and do not wait for it
        #[arg(long)]
        no_wait: bool,
    },
    /// Cancel a session's running turn
    Cancel { session: String },
    /// End sessions' agents, with every process they started; they can be resumed
    Stop {
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<String>,
        /// Do not wait for the end
        #[arg(long)]
        no_wait: bool,
    },
    /// Start a stopped or failed session's agent again and continue its conversation
    Resume {
        session: String,
        /// Do not wait until it is ready
        #[arg(long)]
        no_wait: bool,
        /// Begin a new conversation where the agent lost the old one
        #[arg(long)]
        new_conversation: bool,
        #[command(flatten)]
        terms: TermsArgs,
    },
    /// Delete sessions with all that is stored of them
    Rm {
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<String>,
        /// Stop those that are active first
        #[arg(short, long)]
        force: bool,
    },
    /// Check now what sessions need of the world, and say what is missing; exit status 1 where something is
    Check(CheckArgs),
    /// Say what looks wrong in a session's environment, before it is launched again; exit status 1 where something does
    Validate { session: String },
    /// Show a session's environment and who set each variable; approve scripts of directories
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Env(EnvArgs),
    /// Show the named secrets of the configuration: where each is taken from and who gets it, and never what it is
    Secret {
        #[command(subcommand)]
        command: SecretCommand,
    },
    /// Answer an agent's question
    Answer {
        session: String,
        /// The question's id, as `show` lists it
        permission: PermissionId,
        /// The id of one of its options, or allow or deny for the mildest of that kind
        #[arg(value_name = "OPTION|allow|deny")]
        answer: String,
    },
    /// Print a session's events, one JSON object a line, and those that come
    Events {
        session: String,
        /// Begin after the event with this number
        #[arg(long, value_name = "SEQ", conflicts_with = "last")]
        after: Option<u64>,
        /// Begin this many events before the end
        #[arg(long, value_name = "N")]
        last: Option<u64>,
        /// End with the last event there is
        #[arg(long)]
        no_follow: bool,
    },
    /// What sessions' environments begin with: the login shell's environment, which is taken once and used while it is true
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Plugins: begin one, look at it, test it; list those that are in use
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
    /// Stop every session in order, and launch none until it is undone or the daemon starts anew; never starts one
    Drain {
        /// Let sessions be launched again; those that were stopped stay so
        #[arg(long, conflicts_with = "no_wait")]
        undo: bool,
        /// Do not wait until every session is stopped
        #[arg(long)]
        no_wait: bool,
    },
    /// agentd as a service of systemd or launchd: install or upgrade it, look at it, read its log, remove it
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Check agentd and its installation, and say what to do about each thing that is wrong; exit status 1 where something fails
    Doctor,
    /// List the agents that are configured
    Agents,
    /// Print the versions of this program and of the daemon; never starts one
    Version,
    /// Say whether another build of agentd can take over from the one that runs
    UpgradeCheck {
        /// The new agentd; without it, the one beside this agentctl
        #[arg(value_name = "AGENTD")]
        program: Option<PathBuf>,
    },
    /// Be an agent: speak the Agent Client Protocol on standard input and output
    #[command(hide = true)]
    DemoAgent,
}

#[derive(Debug, Args)]
pub(crate) struct SpecArgs {
    /// An agent of the configuration, see `agentctl agents`; `demo` is built in
    #[arg(long, value_name = "NAME", conflicts_with = "command")]
    pub(crate) agent: Option<AgentName>,
    /// A name for the session
    #[arg(long)]
    pub(crate) name: Option<SessionName>,
    /// The session's directory; the current one where it is not given
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The first prompt; `-` reads it from standard input
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Who answers when the agent asks for permission
    #[arg(long, value_enum, default_value_t)]
    pub(crate) permissions: Permissions,
    /// A script that is sourced last when the session's environment is built
    #[arg(long, value_name = "FILE")]
    pub(crate) env_setup: Option<PathBuf>,
    /// What the environment begins with; as configured where it is not given
    #[arg(long, value_enum, value_name = "SOURCE")]
    pub(crate) env_from: Option<EnvFrom>,
    /// What later launches do with the environment of the one before; as configured where it is not given
    #[arg(long, value_enum)]
    pub(crate) refresh: Option<RefreshPolicy>,
    /// What the agent is told in front of the first prompt after a resume; as configured where it is not given
    #[arg(long, value_enum)]
    pub(crate) resume_note: Option<Note>,
    /// Whether an agent that crashed is started again; as configured where it is not given
    #[arg(long, value_enum)]
    pub(crate) restart: Option<Restart>,
    /// Bytes of memory of the agent and everything it starts
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory: Option<u64>,
    /// Processes and threads of the same
    #[arg(long, value_name = "N")]
    pub(crate) tasks: Option<u64>,
    /// Its share of the processors beside the other sessions, 1 to 10000; 100 is usual. Under systemd only
    #[arg(long, value_name = "WEIGHT")]
    pub(crate) cpu_weight: Option<CpuWeight>,
    /// Stop the session after so long without a turn; 0 is never
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle: Option<u64>,
    /// Cancel a turn that takes longer; 0 is never
    #[arg(long, value_name = "SECONDS")]
    pub(crate) turn_limit: Option<u64>,
    /// Reject what the agent asks and nobody answers for so long; 0 is never
    #[arg(long, value_name = "SECONDS")]
    pub(crate) permission_limit: Option<u64>,
    /// A prerequisite of the configuration that it needs, see `agentctl check`; can be given again
    #[arg(long, value_name = "NAME")]
    pub(crate) require: Vec<String>,
    /// A word that the configuration's prerequisites may be required by; can be given again
    #[arg(long)]
    pub(crate) tag: Vec<String>,
    /// A program that speaks the Agent Client Protocol, instead of a configured agent
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// How a launch takes it that something is missing which the session needs.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct TermsArgs {
    /// Wait for what it needs and is missing, for so long at most, as `10m` or `8h`; an hour where no limit is given
    #[arg(
        long,
        value_name = "LIMIT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1h",
        conflicts_with = "force"
    )]
    pub(crate) wait: Option<Limit>,
    /// Start it without what is missing; its journal says who asked for that
    #[arg(long)]
    pub(crate) force: bool,
}

/// A length of time, as the configuration has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Duration);

impl std::str::FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let span: jiff::SignedDuration = text.parse().map_err(|_| "it is no length of time, like 10m".to_owned())?;
        Duration::try_from(span).map(Self).map_err(|_| "a length of time cannot be negative".to_owned())
    }
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// This prerequisite alone
    pub(crate) name: Option<String>,
    /// What this session needs, with what looks at its environment
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// Check again every 2 s, until Ctrl-C
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// As [`agentd_api::environment::SnapshotSource`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnvFrom {
    /// What your login shell gives, as it is at each launch
    LoginShell,
    /// What this terminal has
    Terminal,
    /// What your login shell gives now, at later launches too
    Stored,
}

#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Show what is known, how old it is, and which files are watched
    Status,
    /// Run the login shell now
    Refresh,
    /// Forget what the login shell gave, in memory and on the disk; the next launch runs it
    Invalidate,
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
    /// Give it again as it was
    Stored,
    /// Give it again, and say how a fresh one would differ
    Warn,
}

/// As [`agentd_api::session::ResumeNote`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Note {
    Off,
    /// What it lost and what has changed, where there is something
    Brief,
    /// The same with everything named, and after every new start of its process
    Full,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// Stop and delete the session at the end; one that Ctrl-C left stays
    #[arg(long)]
    pub(crate) rm: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// Wait until the session is ready, at most so many seconds; exit status 1 where it is not by then
    #[arg(long, value_name = "SECONDS")]
    pub(crate) ready: Option<u16>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Permissions {
    /// You are asked
    #[default]
    Ask,
    Allow,
    Deny,
}

#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum SecretCommand {
    /// List them; none of them is looked for
    #[command(visible_alias = "list")]
    Ls,
    /// Take each from where it lives, as a launch does, and say which can be had; the status is 1 where a required one cannot
    Check,
}

#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    #[command(subcommand)]
    pub(crate) scripts: Option<ScriptCommand>,
    #[arg(required = true)]
    pub(crate) session: Option<String>,
    /// Show the values too; those of secrets never
    #[arg(long)]
    pub(crate) values: bool,
    /// Show what was taken away instead, by whom and why
    #[arg(long, conflicts_with = "values")]
    pub(crate) dropped: bool,
    /// Which environment: that of the first launch, of the last one, or what a launch would build now
    #[arg(long, value_name = "created|last|now", default_value = "last", hide_default_value = true)]
    pub(crate) at: Moment,
    /// Tell each step that set this variable or took it away, and what it replaced
    #[arg(long, value_name = "NAME", conflicts_with_all = ["values", "dropped"])]
    pub(crate) explain: Option<String>,
    /// Show what differs between two environments; without a range, between the last launch and now
    #[arg(
        long,
        value_name = "created|last..last|now",
        num_args = 0..=1,
        default_missing_value = "last..now",
        conflicts_with_all = ["dropped", "at", "explain"]
    )]
    pub(crate) diff: Option<Range>,
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
        let (from, to) = text.split_once("..").ok_or("it is no range, like created..now")?;
        let to = moment(to, Moment::Now)?;
        let range = Self { from: moment(from, if to == Moment::Last { Moment::Created } else { Moment::Last })?, to };
        if range.from == range.to { Err("both ends are the same".to_owned()) } else { Ok(range) }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScriptCommand {
    /// Approve the scripts that sessions in a directory source, with their present content
    ///
    /// They are shown first: whole, or what has changed since they were approved. On a terminal you are asked then. What a
    /// script sources in turn is named, and is not covered by the approval.
    Allow {
        /// The directory, or one script
        directory: PathBuf,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Take the approval back, and do not run them
    Deny {
        /// The directory, or one script
        directory: PathBuf,
    },
    /// Encrypt what is kept of all sessions' environments with another key
    ///
    /// A key that agentd made is replaced by a new one. One that comes from a file or from systemd is changed there first, with the
    /// one before under environment.encryption.previous in the configuration; this then takes it into use everywhere.
    RotateKey,
    /// List the scripts that sessions in a directory source: state, digest, approved when, and what they source in turn
    #[command(name = "scripts")]
    List {
        #[arg(default_value = ".")]
        directory: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn env_takes_a_session_or_a_directory_to_approve() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(|cli| cli.command);
        assert!(matches!(
            parse("agentctl env k3m --values"),
            Ok(Command::Env(EnvArgs { session: Some(_), values: true, scripts: None, .. }))
        ));
        assert!(matches!(
            parse("agentctl env allow /x"),
            Ok(Command::Env(EnvArgs { scripts: Some(ScriptCommand::Allow { .. }), .. }))
        ));
        let diff = |line: &str| match parse(line).map_err(|error| error.exit_code()) {
            Ok(Command::Env(EnvArgs { diff: Some(Range { from, to }), .. })) => Ok((from, to)),
            other => Err(other.err()),
        };
        assert_eq!(diff("agentctl env k3m --diff"), Ok((Moment::Last, Moment::Now)));
        assert_eq!(diff("agentctl env k3m --diff created.."), Ok((Moment::Created, Moment::Now)));
        assert_eq!(diff("agentctl env k3m --diff ..last"), Ok((Moment::Created, Moment::Last)));
        for wrong in ["now..now", "then..now", "created"] {
            assert_eq!(diff(&format!("agentctl env k3m --diff {wrong}")), Err(Some(2)), "{wrong}");
        }
        assert_eq!(parse("agentctl env").unwrap_err().exit_code(), 2);
    }

    #[test]
    fn a_name_that_cannot_be_one_is_a_usage_error() {
        for line in ["agentctl new --name ../x", "agentctl new --agent A", "agentctl answer s P1 allow"] {
            assert_eq!(Cli::try_parse_from(line.split(' ')).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn a_launch_waits_for_an_hour_where_no_limit_is_given_and_does_not_wait_and_go_on_without() {
        let terms = |flags: &str| match Cli::try_parse_from(format!("agentctl resume k3m {flags}").trim().split(' ')) {
            Ok(Cli { command: Command::Resume { session, terms, .. }, .. }) => {
                assert_eq!(session, "k3m");
                Ok((terms.wait.map(|limit| limit.0.as_secs()), terms.force))
            }
            other => Err(other.map(|_| 0).map_err(|error| error.exit_code())),
        };
        assert_eq!(terms(""), Ok((None, false)));
        assert_eq!(terms("--wait"), Ok((Some(3600), false)));
        assert_eq!(terms("--wait=1m30s"), Ok((Some(90), false)));
        assert_eq!(terms("--force"), Ok((None, true)));
        for wrong in ["--wait --force", "--wait=-3s", "--wait=soon", "--wait 10m"] {
            assert_eq!(terms(wrong), Err(Err(2)), "{wrong}");
        }
    }

    #[test]
    fn a_command_of_ones_own_keeps_its_flags() {
        let cli = Cli::try_parse_from("agentctl run --json -- my-agent --json -v".split(' ')).unwrap();
        let Command::Run(run) = cli.command else { panic!() };
        assert_eq!(run.spec.command, ["my-agent", "--json", "-v"]);
        assert!(Cli::try_parse_from("agentctl run --agent x -- y".split(' ')).is_err());
    }
}
