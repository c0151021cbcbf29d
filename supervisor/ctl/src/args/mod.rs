//! Defines the command line of `agentctl`.

pub(crate) mod acp;
pub(crate) mod agent;
pub(crate) mod called;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod environment;
pub(crate) mod events;
pub(crate) mod files;
mod help;
pub(crate) mod hooks;
pub(crate) mod host;
pub(crate) mod life;
pub(crate) mod list;
mod machine;
pub(crate) mod names;
pub(crate) mod place;
pub(crate) mod plugin;
pub(crate) mod prune;
pub(crate) mod repository;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod service;
pub(crate) mod spec;
pub(crate) mod top;
pub(crate) mod ui;
pub(crate) mod wait;
pub(crate) mod workflow;

use std::path::PathBuf;

use agentd_api::quantity::{Size, Time};
use agentd_api::session::CpuWeight;
use agentd_api::{AgentName, SessionName};
use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use environment::{Against, EnvArgs, Range, ScriptCommand};
use help::{EXAMPLES, STATUSES};
use life::{AttachArgs, ResumeArgs, RmArgs, SessionArgs, StopArgs};
use repository::WorkspaceArgs;
use run::{AnswerArgs, BatchArgs, OptionArgs};
pub(crate) use run::{NewArgs, RunArgs};
pub(crate) use spec::SelectorArgs;

use crate::document::DocumentForm;

/// Run AI coding agents in sessions, each in its own clean environment.
///
/// A session is one conversation with one agent in one directory. It outlives the terminal that began it, and
/// the daemon.
/// SESSION is a session's id, its name, or an unambiguous beginning of its id.
#[derive(Debug, Parser)]
#[command(name = "agentctl", version, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{STATUSES}"))]
#[command(disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Default, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Global {
    /// The daemon of another machine, through ssh: a name of `agentctl host ls`, `[USER@]MACHINE` or
    /// `ssh://[USER@]MACHINE[:PORT]`
    #[arg(long, global = true, value_name = "MACHINE", conflicts_with = "url")]
    pub(crate) host: Option<String>,
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
    /// Print the daemon's documents as YAML
    #[arg(long, global = true, conflicts_with = "json")]
    pub(crate) yaml: bool,
    /// Show more: the steps of a launch, the agent's stderr as it comes
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

impl Global {
    /// Returns the form of documents for programs; `None` for output for people.
    pub(crate) fn form(&self) -> Option<DocumentForm> {
        if self.yaml { Some(DocumentForm::Yaml) } else { self.json.then_some(DocumentForm::Json) }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a session and talk to its agent
    ///
    /// With a prompt, agentctl runs that turn and exits; the session stays. Without a prompt, each line of
    /// standard input is a turn, and the end of the input (Ctrl-D) leaves. Ctrl-C cancels the running turn. A
    /// second Ctrl-C within 2 s, or Ctrl-C while no turn runs, leaves.
    ///
    /// The agent's answer goes to standard output and ends with a newline. Everything else goes to standard
    /// error. If the input is a file or a pipe, the exit status is that of the first turn that did not end
    /// well.
    ///
    /// With --batch, the session completes when its prompt is done. agentctl prints the agent's last message only, and
    /// Ctrl-C stops the session.
    #[command(after_help = run::RUN_EXAMPLES)]
    Run(RunArgs),
    /// Create a session and print its id
    New(NewArgs),
    /// List sessions that are not stopped; with --all, every session
    #[command(visible_alias = "list")]
    Ls(list::LsArgs),
    /// Watch all sessions at a terminal, with the conversation of the selected one
    ///
    /// The sessions are grouped: those that need you come first. Keys answer a question, cancel a turn, stop, resume
    /// and attach; `?` lists them. The view stays over a restart of agentd.
    Top(top::TopArgs),
    /// Show a session's spec, status and conditions
    Show(SessionArgs),
    /// Show the last events of a session, then follow it and send prompts as with run
    ///
    /// At a terminal, the answer's Markdown is rendered. A line at the bottom shows the elapsed time, the model, the
    /// mode, tokens, the queue and the title. A question is answered by one key. Tab completes a command after `/` and
    /// a path after `@`. Alt-Enter begins a new line, Up recalls a prompt, and Ctrl-R searches the conversation
    /// backwards. Ctrl-C cancels the turn, and Ctrl-D leaves.
    Attach(AttachArgs),
    /// Prompt a session and show that turn until it ends
    ///
    /// If a turn is running already, the prompt waits for its end.
    Prompt(run::PromptArgs),
    /// Change fields of a session's specification
    ///
    /// The answer says for each field whether the change takes effect at once, with the next turn or with the next
    /// launch. `agentctl show --json` has the present specification.
    Set(spec::SetArgs),
    /// Edit a session's specification as TOML, with the editor of VISUAL or EDITOR
    Edit(SessionArgs),
    /// Print sessions as a file for `agentctl apply`, as JSON, or single values
    Get(files::GetArgs),
    /// Create and change sessions as files of specifications request them
    ///
    /// A file in TOML or YAML has the whole specification of one session, or `sessions` with many. A missing field
    /// gets its default. Sessions that no file has stay unchanged.
    Apply(files::ApplyArgs),
    /// Show the differences between sessions and files of specifications
    Diff(files::DiffArgs),
    /// List, add or remove the git repositories of a session
    #[command(subcommand)]
    Repo(repository::RepositoryCommand),
    /// Show, switch, approve or clear the workflow of a session
    #[command(subcommand)]
    Workflow(workflow::WorkflowCommand),
    /// Add, list, run or remove schedules: sessions and prompts at a time or on a calendar
    #[command(subcommand)]
    Schedule(schedule::ScheduleCommand),
    /// List the hooks of the configuration, or send a test event to one
    Hooks {
        #[command(subcommand)]
        command: Option<hooks::HooksCommand>,
    },
    /// List the options that a session's agent offers: mode, model and others, with their values
    Options(SessionArgs),
    /// Show or change the context of a session: files, applet, endpoints, ports
    ///
    /// The context survives stops and resumes. The agent gets its existing items in the note after a resume.
    Context(context::ContextArgs),
    /// Show, set or remove a session's environment hint: what the session needs to work
    Hint(context::HintArgs),
    /// Show, set or remove a session's title
    Title(context::TitleArgs),
    /// Wait until sessions have a condition or a phase, or are deleted
    Wait(wait::WaitArgs),
    /// Cancel a session's running turn, or the turn that waits for the end of a rate limit
    Cancel(SessionArgs),
    /// Stop sessions: end their agents and all processes that these started
    ///
    /// A stopped session keeps its conversation; `agentctl resume` continues it. Stopping a stopped session is
    /// no error.
    Stop(StopArgs),
    /// Start the agent of a stopped or failed session again and continue the conversation
    ///
    /// A prompt that waits for the end of a rate limit is sent again at once.
    Resume(ResumeArgs),
    /// Continue a conversation that began elsewhere, for example with the agent in a terminal
    Adopt(agent::AdoptArgs),
    /// Delete sessions with all stored data
    ///
    /// The agent deletes its own copy of the conversation, if it can. Otherwise the place of its files is printed.
    Rm(RmArgs),
    /// Delete sessions at rest that are no longer used; lists them first and asks
    ///
    /// A session must match every given criterion. Active sessions stay, and so do sessions that an active session
    /// created or that created an active session.
    Prune(prune::PruneArgs),
    /// Check the prerequisites of sessions now; exit status 1 if a prerequisite is missing
    Check(CheckArgs),
    /// Find mistakes in a session's environment before its next launch; exit status 1 if there are mistakes
    Validate(SessionArgs),
    /// Show the note that a session's agent gets before the first prompt after a resume or a restart
    #[command(subcommand)]
    Note(NoteCommand),
    /// Show a session's environment and the origin of each variable; approve scripts of directories
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Env(EnvArgs),
    /// List the secrets of the configuration with their sources and receivers, never their values
    Secret {
        #[command(subcommand)]
        command: SecretCommand,
    },
    /// Answer an agent's question
    Answer(AnswerArgs),
    /// Serve the page of all sessions on this machine, and open it in a browser; Ctrl-C ends it
    ///
    /// The page shows every session, its conversation and its questions. The printed address opens the page once,
    /// within five minutes, for your user and outside of sessions. --host shows the agentd of another machine, and all
    /// machines of `agentctl host ls` are beside it.
    Ui(ui::UiArgs),
    /// Print the events of a session or of all sessions, one JSON object a line, and follow them
    Events(events::EventsArgs),
    /// Show or refresh the environment of the login shell, with which sessions' environments begin
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// List the places on which agents can run, or check whether an agent can run on one
    #[command(subcommand)]
    Place(place::PlaceCommand),
    /// List plugins; create, inspect, check and test a plugin
    #[command(subcommand)]
    Plugin(plugin::PluginCommand),
    /// Make the daemon read its configuration and plugins again; never starts a daemon
    ///
    /// An invalid part is left out or stays unchanged, and is printed with its file and line; the exit status
    /// is then 1.
    Reload {
        /// Print the changes without making them
        #[arg(long)]
        dry_run: bool,
    },
    /// Check the configuration, show its values, or list its files; needs no daemon
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Stop every session, and launch none until the drain is undone or the daemon is restarted
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
    /// Show the calls that changed or revealed data, with their callers and outcomes
    Audit(AuditArgs),
    /// Check agentd and its installation, with a remedy for each problem; exit status 1 if a check fails
    Doctor(DoctorArgs),
    /// Serve the Agent Client Protocol on standard input and output, for an editor
    ///
    /// An editor starts this command in place of an agent. Its sessions are those of agentd, and continue without the
    /// editor. The guide has the configuration of each editor: docs/guide/editors.md.
    Acp(acp::AcpArgs),
    /// Serve MCP on standard input and output, for the agent of a session
    ///
    /// An agent starts this server by itself: agentd names it when it opens the conversation. Its tools record what
    /// the session needs after a resume, and show its environment and prerequisites.
    Mcp,
    /// List the configured agents
    Agents,
    /// Log in to an agent
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Print the versions of agentctl and of the running daemon
    Version,
    /// Check whether another build of agentd can replace the running build
    UpgradeCheck {
        /// Program of the new agentd; by default the agentd in the directory of this agentctl
        #[arg(value_name = "AGENTD")]
        program: Option<PathBuf>,
    },
    /// Print the completion script of a shell
    ///
    /// `agentctl service install` installs those of bash, zsh and fish. Otherwise, write the output to a file
    /// that your shell reads:
    ///
    /// - bash: ~/.local/share/bash-completion/completions/agentctl
    /// - fish: ~/.config/fish/completions/agentctl.fish
    /// - zsh: _agentctl in a directory of $fpath
    /// - nushell: a file that config.nu sources
    /// - elvish: put `eval (agentctl completions elvish | slurp)` into rc.elv
    #[command(verbatim_doc_comment)]
    Completions {
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the man page agentctl(1), or write the page of every command into a directory
    Man {
        /// Write agentctl.1 and a page for each subcommand into this directory, which is created if missing
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// List, add or remove machines for --host
    #[command(subcommand)]
    Host(host::HostCommand),
    /// Connect standard input and output with the daemon's socket: the end of `--host` on the daemon's machine
    #[command(hide = true)]
    Dial,
    /// Print names for the completion of a command line, one a line; nothing if no daemon answers
    #[command(hide = true)]
    Names(names::NamesArgs),
    /// Run the demo agent: speak the Agent Client Protocol on standard input and output
    #[command(hide = true)]
    DemoAgent,
}

/// A shell that has a completion script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Elvish,
    Fish,
    Nushell,
    Zsh,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Only calls that concern this session or come from inside it; a removed session by its id
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// Only calls since a timestamp, or within a length of time, as 15m
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Only the newest N calls
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
    /// A label of the session, by which `agentctl ls -l` chooses sessions; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = spec::label)]
    pub(crate) label: Vec<(String, String)>,
    /// The session's directory; by default the current one
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// An additional directory that the agent works in; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) add_dir: Vec<PathBuf>,
    /// The first prompt; `-` reads it from standard input
    #[arg(long, value_name = "TEXT", conflicts_with = "text")]
    pub(crate) prompt: Option<String>,
    /// The first prompt, as --prompt; words are joined by spaces
    #[arg(value_name = "PROMPT")]
    pub(crate) text: Vec<String>,
    /// Reply to the agent's permission requests
    #[arg(long, value_enum, default_value_t)]
    pub(crate) permissions: Permissions,
    /// A script to source last when the session's environment is built
    #[arg(long, value_name = "FILE")]
    pub(crate) env_setup: Option<PathBuf>,
    /// Initial environment; by default as configured
    #[arg(long, value_enum, value_name = "SOURCE")]
    pub(crate) env_from: Option<EnvFrom>,
    /// A variable of the agent's environment; may be repeated. Secrets are refused: declare them as [secrets.NAME]
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// An additional variable that the whitelist keeps, by name or pattern; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) allow: Vec<String>,
    /// A variable to drop, by name or pattern; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) drop: Vec<String>,
    /// How later launches reuse the previous environment; by default as configured
    #[arg(long, value_enum)]
    pub(crate) refresh: Option<RefreshPolicy>,
    /// Note to the agent before the first prompt after a resume; by default as configured
    #[arg(long, value_enum)]
    pub(crate) resume_note: Option<Note>,
    /// Whether to restart a crashed agent; by default as configured
    #[arg(long, value_enum)]
    pub(crate) restart: Option<Restart>,
    /// Isolation of the agent; by default as its agent is configured, and never less than that
    #[arg(long, value_enum)]
    pub(crate) isolation: Option<IsolationArg>,
    /// Place on which the agent runs, see `agentctl place ls`, or `here` for this machine; by default as configured
    #[arg(long, value_name = "NAME")]
    pub(crate) place: Option<String>,
    /// Memory limit of the agent and its child processes, as 2G or a number of bytes
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// Limit of the agent's processes and threads
    #[arg(long, value_name = "N")]
    pub(crate) tasks: Option<u64>,
    /// Share of the processors beside the other sessions, 1 to 10000; 100 is usual. Under systemd only
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
    #[command(flatten)]
    pub(crate) files: run::FileArgs,
    #[command(flatten)]
    pub(crate) options: OptionArgs,
    #[command(flatten)]
    pub(crate) batch: BatchArgs,
    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,
    /// A program that speaks the Agent Client Protocol on stdin and stdout, instead of a configured agent
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Behaviour of a launch if a prerequisite is missing or a part of the session cannot be provided.
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
    /// Start without missing prerequisites; the journal records the caller
    #[arg(long)]
    pub(crate) force: bool,
    /// Start without the providers, scripts, secrets and prerequisites that fail, and report them
    #[arg(long)]
    pub(crate) degraded: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Check this prerequisite only
    pub(crate) name: Option<String>,
    /// Check the prerequisites of this session, including those that need its environment
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// Check again every 2 s, until Ctrl-C
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// Value of `--env-from`: mirrors [`agentd_api::environment::SnapshotSource`].
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
    /// Delete the stored environment and the results of scripts; the next launch runs both again
    Invalidate,
}

/// Value of `--isolation`: mirrors [`agentd_api::isolation::Isolation`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum IsolationArg {
    /// No isolation
    None,
    /// No access to agentd's files, or to processes outside of the session
    Guard,
}

/// Value of `--restart`: mirrors [`agentd_api::session::RestartPolicy`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Restart {
    Never,
    OnFailure,
}

/// Value of `--refresh`: mirrors [`agentd_api::environment::Refresh`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum RefreshPolicy {
    /// Build a new environment
    Fresh,
    /// Use the stored environment unchanged
    Stored,
    /// Use the stored environment, and warn if a new one would differ
    Warn,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum NoteCommand {
    /// Print the note that the agent would get with the next prompt; sends nothing and starts no agent
    ///
    /// For a stopped session, this is the note of a resume now. Its environment is built for the comparison, which
    /// runs the login shell and the scripts.
    Preview { session: String },
}

/// Value of `--resume-note`: mirrors [`agentd_api::session::ResumeNote`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Note {
    Off,
    /// Lost and changed state, if any
    Brief,
    /// Full state, after every start of the agent's process
    Full,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Permissions {
    /// Ask the user
    #[default]
    Ask,
    Allow,
    Deny,
}

#[derive(Debug, Default, Args)]
pub(crate) struct DoctorArgs {
    /// Check the agentd that the administrator runs for a user (agentd@USER); as root
    #[arg(long, requires = "user")]
    pub(crate) system: bool,
    /// User of that agentd
    #[arg(long, value_name = "NAME", requires = "system")]
    pub(crate) user: Option<String>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum SecretCommand {
    /// List the secrets, without fetching one
    #[command(visible_alias = "list")]
    Ls,
    /// Fetch each secret as a launch does, and show which are available; exit status 1 if a required secret is not
    Check,
}

#[cfg(test)]
mod tests;
