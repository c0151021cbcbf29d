//! `agentd`: the supervisor, and the short-lived child that compiles plugins for it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use agentd_daemon::{ConfigTool, Options, Places, PluginTool};
use clap::{Args, Parser, Subcommand};

/// Supervises sessions of AI coding agents.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the supervisor until SIGTERM; sessions live on without it. As process 1 of a container it is the container's init, and SIGTERM ends both.
    Serve(Serve),
    /// As `agentd ARGUMENTS`, with the socket that is on stdin; process 1 of a container runs this itself.
    #[command(hide = true)]
    HandedOver {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Compile a plugin's component, from stdin to stdout; the supervisor runs this itself.
    #[command(hide = true)]
    Compile {
        /// What to: native, or interpreted where the system forbids native code.
        #[arg(long, default_value = "native")]
        code: agentd_plugins::Code,
        /// Read this file and write that one instead, as supervisors of older releases ask for.
        #[arg(num_args = 2, value_names = ["IN", "OUT"])]
        files: Vec<PathBuf>,
    },
    /// List the points at which a test can make agentd fail; there are none in a release.
    #[command(hide = true)]
    FaultPoints,
    /// Say which formats and protocols this build knows, as JSON; `agentctl upgrade-check` asks a new build.
    #[command(hide = true)]
    Compatibility,
    /// Look at a plugin and try it, in the box that it runs in; `agentctl plugin` runs this itself, and reads the JSON.
    #[command(hide = true, subcommand)]
    PluginTool(Tool),
    /// Look at the configuration; `agentctl config` runs this itself, and reads the JSON.
    #[command(hide = true)]
    ConfigTool(ConfigToolArguments),
}

#[derive(Debug, Args)]
struct ConfigToolArguments {
    /// Read this file in place of the user's agentd.toml.
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Where the user's configuration is.
    #[arg(long, value_name = "DIR", global = true)]
    config_dir: Option<PathBuf>,
    /// Where the administrator's configuration is, in place of /etc/agentd.
    #[arg(long, value_name = "DIR", global = true)]
    system_config_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// What is wrong with it.
    Check {
        /// Read each of these in the place of the user's file.
        files: Vec<PathBuf>,
        /// They are an administrator's files.
        #[arg(long)]
        system: bool,
    },
    /// Every value with its place.
    Show,
    /// Where its files are looked for.
    Path,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// What a component is.
    Inspect { file: PathBuf },
    /// How it stands beside the configuration.
    Check {
        file: PathBuf,
        #[arg(long)]
        name: Option<String>,
        /// Cases that show which variables a provider gives.
        #[arg(long = "case")]
        cases: Vec<PathBuf>,
    },
    /// Whether it does what cases expect.
    Test {
        file: PathBuf,
        #[arg(required = true)]
        cases: Vec<PathBuf>,
        /// Write what it does as what they expect.
        #[arg(long)]
        update: bool,
    },
}

impl From<Tool> for PluginTool {
    fn from(tool: Tool) -> Self {
        match tool {
            Tool::Inspect { file } => Self::Inspect { file },
            Tool::Check { file, name, cases } => Self::Check { file, name, cases },
            Tool::Test { file, cases, update } => Self::Test { file, cases, update },
        }
    }
}

#[derive(Debug, Args)]
struct Serve {
    /// Read this file in place of the user's agentd.toml; the system's configuration is read before it all the same.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the control socket and the keepers' sockets are.
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Where sessions are kept.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Where compiled plugins are kept.
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Where the user's configuration and scripts are.
    #[arg(long, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// Where the administrator's configuration is, in place of /etc/agentd; it must be root's.
    #[arg(long, value_name = "DIR")]
    system_config_dir: Option<PathBuf>,
    /// Leave the terminal, and write the log to agentd.log in the state directory.
    #[arg(long)]
    background: bool,
}

#[allow(clippy::print_stdout, reason = "what it is asked to list goes there")]
fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Serve(serve) => agentd_daemon::serve(&Options {
            config_file: serve.config,
            places: Places {
                runtime: serve.runtime_dir,
                state: serve.state_dir,
                cache: serve.cache_dir,
                config: serve.config_dir,
                system_config: serve.system_config_dir,
            },
            background: serve.background,
        })
        .map_err(anyhow::Error::from),
        Command::HandedOver { arguments } => {
            agentd_daemon::hand_over(&arguments).map(|never| match never {}).map_err(anyhow::Error::from)
        }
        Command::FaultPoints => {
            for point in agentd_fault::Point::ALL.iter().filter(|_| agentd_fault::COMPILED_IN) {
                println!("{}", point.name());
            }
            Ok(())
        }
        Command::Compatibility => {
            let known = serde_json::to_string(&agentd_daemon::compatibility());
            known.map(|known| println!("{known}")).map_err(anyhow::Error::from)
        }
        Command::PluginTool(tool) => {
            let answer = agentd_daemon::plugin_tool(&tool.into(), &Places::default());
            answer.map(|answer| println!("{answer}")).map_err(anyhow::Error::from)
        }
        Command::ConfigTool(ConfigToolArguments { config, config_dir, system_config_dir, command }) => {
            let tool = match command {
                ConfigCommand::Check { files, system } => ConfigTool::Check { files, system },
                ConfigCommand::Show => ConfigTool::Show,
                ConfigCommand::Path => ConfigTool::Path,
            };
            let places = Places { config: config_dir, system_config: system_config_dir, ..Places::default() };
            let answer = agentd_daemon::config_tool(&tool, &places, config);
            answer.map(|answer| println!("{answer}")).map_err(anyhow::Error::from)
        }
        Command::Compile { code, files } => return compile(code, files),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agentd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Ends with a status that says whether the component is at fault.
fn compile(code: agentd_plugins::Code, files: Vec<PathBuf>) -> ExitCode {
    let way = match <[PathBuf; 2]>::try_from(files) {
        Ok([input, output]) => agentd_plugins::CompileFiles::Named { input, output },
        Err(_) => agentd_plugins::CompileFiles::Standard,
    };
    match agentd_plugins::compile(&way, code) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let status = error.status();
            eprintln!("agentd: {:#}", anyhow::Error::from(error));
            ExitCode::from(status)
        }
    }
}
