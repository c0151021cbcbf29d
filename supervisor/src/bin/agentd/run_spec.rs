//! The command line of `agentd run-spec`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use agentd_api::quantity::Time;
use agentd_runner::RunOptions;
use clap::Args;

/// The exit statuses, as `docs/guide/containers.md` documents them.
pub(crate) const STATUSES: &str = "\
Exit status:
  0    the session completed
  1    the agent or a turn failed
  2    the command line, the specification or the prompt is wrong
  3    agentd could not be started, or was lost
  4    refused in the present state: a name is taken
  5    the session reached one of its limits
  6    the answer does not satisfy its schema
  7    the launch failed, and no prompt reached the agent
  8    the results could not be delivered to --artifacts
  130  SIGINT or a client stopped the session
  143  SIGTERM stopped the session

Environment:
  AGENTD_PROMPT  the first prompt
  AGENTD_STATE   as --state
  AGENTD_LOG     the messages in the log of agentd, as in `agentd serve`

The session's environment begins with the variables of this process, unless
the specification names another source. The whitelist drops those that the
specification and the configuration do not allow.";

/// Arguments of `agentd run-spec`.
#[derive(Debug, Args)]
#[command(after_help = STATUSES)]
pub(crate) struct RunSpec {
    /// The specification in YAML, TOML or JSON; `-` is standard input
    file: PathBuf,
    /// File with the first prompt; `-` is standard input. By default, the specification or the environment has it
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Directory that receives result.json, the journal and the artifacts
    #[arg(long, value_name = "DIR")]
    artifacts: Option<PathBuf>,
    /// Directory below which agentd keeps its files; by default a temporary directory
    #[arg(long, value_name = "DIR", env = "AGENTD_STATE", hide_env = true)]
    state: Option<PathBuf>,
    /// Directory of the sockets; by default `run` below the state
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Read this file instead of the user's agentd.toml. The system's configuration is still read first
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of the user's configuration and scripts
    #[arg(long, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// Directory of the administrator's configuration, instead of /etc/agentd. Root must own it
    #[arg(long, value_name = "DIR")]
    system_config_dir: Option<PathBuf>,
    /// Time limit of an orderly stop after SIGTERM or SIGINT
    #[arg(long, value_name = "TIME", default_value = "8s")]
    grace: Time,
    /// Print each event on standard output, one JSON object a line, and the result last
    #[arg(long)]
    json: bool,
}

/// Runs the session, and returns its exit status.
pub(crate) fn run(arguments: RunSpec) -> ExitCode {
    let RunSpec {
        file,
        prompt_file,
        artifacts,
        state,
        runtime_dir,
        config,
        config_dir,
        system_config_dir,
        grace,
        json,
    } = arguments;
    let options = RunOptions {
        file,
        prompt_file,
        prompt: std::env::var("AGENTD_PROMPT").ok(),
        state,
        runtime_dir,
        artifacts,
        config_file: config,
        config_dir,
        system_config_dir,
        grace: grace.0.min(LONGEST_GRACE),
        json,
    };
    ExitCode::from(agentd_runner::run(&options))
}

/// Longest grace, so that its sum with the present time does not overflow.
const LONGEST_GRACE: Duration = Duration::from_hours(24);
