//! `agentd`: the supervisor, and its short-lived child process that compiles plugins.

mod acp;
mod run_spec;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use agentd_daemon::{ConfigTool, DirectoryOptions, Options, PluginTool};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_mangen::Man;

/// Supervises sessions of AI coding agents.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the supervisor until SIGTERM. Agents keep running without it. As process 1 of a container it is the
    /// container's init, and SIGTERM ends both.
    Serve(Serve),
    /// Run one session from a specification to its result, also as process 1 of a container
    ///
    /// agentd keeps its files in a directory of its own, and no other agentd is used. The session is not interactive.
    /// Progress goes to standard error, and the agent's last message to standard output. The first SIGTERM or SIGINT
    /// stops the session in order, the second kills the agent.
    RunSpec(Box<run_spec::RunSpec>),
    /// Run `agentd ARGUMENTS` with the socket on stdin. Process 1 of a container runs this itself.
    #[command(hide = true)]
    HandedOver {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Compile a plugin's component from stdin to stdout. The supervisor runs this itself.
    #[command(hide = true)]
    Compile {
        /// Kind of code: native, or interpreted where the system forbids native code.
        #[arg(long, default_value = "native")]
        code: agentd_plugin_host::Code,
        /// Read and write these files instead. Supervisors of older releases use this.
        #[arg(num_args = 2, value_names = ["IN", "OUT"])]
        files: Vec<PathBuf>,
    },
    /// Check an answer against a JSON Schema. The supervisor runs this itself, with the request on stdin.
    #[command(hide = true)]
    CheckAnswer,
    /// List the points at which a test can make agentd fail. Empty in a release build.
    #[command(hide = true)]
    FaultPoints,
    /// Print the formats and protocols that this build supports, as JSON. `agentctl upgrade-check` runs this
    /// with a new build.
    #[command(hide = true)]
    Compatibility,
    /// Print the man page agentd(8). `agentctl service install` runs this itself.
    #[command(hide = true)]
    Man,
    /// Inspect and test a plugin in its sandbox. `agentctl plugin` runs this itself and reads the JSON.
    #[command(hide = true, subcommand)]
    PluginTool(Tool),
    /// Inspect the configuration. `agentctl config` runs this itself and reads the JSON.
    #[command(hide = true)]
    ConfigTool(ConfigToolArguments),
}

#[derive(Debug, Args)]
struct ConfigToolArguments {
    /// Read this file instead of the user's agentd.toml.
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Directory of the user's configuration.
    #[arg(long, value_name = "DIR", global = true)]
    config_dir: Option<PathBuf>,
    /// Directory of the administrator's configuration, instead of /etc/agentd.
    #[arg(long, value_name = "DIR", global = true)]
    system_config_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// List mistakes in the configuration.
    Check {
        /// Read each of these files instead of the user's file.
        files: Vec<PathBuf>,
        /// Treat the files as an administrator's.
        #[arg(long)]
        system: bool,
    },
    /// List every value with the file and line that sets it.
    Show,
    /// List the places of configuration files.
    Path,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// Describe a component.
    Inspect { file: PathBuf },
    /// Compare a component with the configuration.
    Check {
        file: PathBuf,
        #[arg(long)]
        name: Option<String>,
        /// Test cases that show which variables a provider sets.
        #[arg(long = "case")]
        cases: Vec<PathBuf>,
    },
    /// Run test cases and compare the results.
    Test {
        file: PathBuf,
        #[arg(required = true)]
        cases: Vec<PathBuf>,
        /// Write the actual results into the cases as expected results.
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
    /// Read this file instead of the user's agentd.toml. The system's configuration is still read first.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of the control socket and the keepers' sockets.
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Directory of the sessions.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Directory of compiled plugins.
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Directory of the user's configuration and scripts.
    #[arg(long, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// Directory of the administrator's configuration, instead of /etc/agentd. Root must own it.
    #[arg(long, value_name = "DIR")]
    system_config_dir: Option<PathBuf>,
    /// Detach from the terminal, and write the log to agentd.log in the state directory.
    #[arg(long)]
    background: bool,
}

#[allow(clippy::print_stdout, reason = "these commands print their result")]
fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Serve(serve) => {
            let options = Options {
                config_file: serve.config,
                places: DirectoryOptions {
                    runtime: serve.runtime_dir,
                    state: serve.state_dir,
                    cache: serve.cache_dir,
                    config: serve.config_dir,
                    system_config: serve.system_config_dir,
                },
                background: serve.background,
            };
            agentd_daemon::serve(&options, Arc::new(acp::Acp)).map_err(anyhow::Error::from)
        }
        Command::RunSpec(arguments) => return run_spec::run(*arguments),
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
        Command::CheckAnswer => agentd_answer::check::serve().map_err(anyhow::Error::from),
        Command::Man => man(&mut std::io::stdout()).map_err(anyhow::Error::from),
        Command::PluginTool(tool) => {
            let answer = agentd_daemon::plugin_tool(&tool.into(), &DirectoryOptions::default());
            answer.map(|answer| println!("{answer}")).map_err(anyhow::Error::from)
        }
        Command::ConfigTool(ConfigToolArguments { config, config_dir, system_config_dir, command }) => {
            let tool = match command {
                ConfigCommand::Check { files, system } => ConfigTool::Check { files, system },
                ConfigCommand::Show => ConfigTool::Show,
                ConfigCommand::Path => ConfigTool::Path,
            };
            let places = DirectoryOptions {
                config: config_dir,
                system_config: system_config_dir,
                ..DirectoryOptions::default()
            };
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

/// Writes agentd(8): what agentd is, and the options of its commands for people, `agentd serve` and `agentd run-spec`.
fn man(out: &mut dyn Write) -> io::Result<()> {
    let mut agentd = Arguments::command();
    agentd.build();
    let page = |name: &str| Man::new(agentd.find_subcommand(name).expect("agentd has this command").clone());
    let (serve, run_spec) = (page("serve"), page("run-spec"));
    let agentd = Man::new(agentd.clone()).section("8").manual("agentd Manual");
    agentd.render_title(out)?;
    agentd.render_name_section(out)?;
    serve.render_synopsis_section(out)?;
    serve.render_description_section(out)?;
    serve.render_options_section(out)?;
    run_spec.render_synopsis_section(out)?;
    run_spec.render_description_section(out)?;
    run_spec.render_options_section(out)?;
    run_spec.render_extra_section(out)?;
    agentd.render_version_section(out)
}

/// Compiles a component. The exit status tells whether the component is at fault.
fn compile(code: agentd_plugin_host::Code, files: Vec<PathBuf>) -> ExitCode {
    let way = match <[PathBuf; 2]>::try_from(files) {
        Ok([input, output]) => agentd_plugin_host::CompileFiles::Named { input, output },
        Err(_) => agentd_plugin_host::CompileFiles::Standard,
    };
    match agentd_plugin_host::compile(&way, code) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let status = error.status();
            eprintln!("agentd: {:#}", anyhow::Error::from(error));
            ExitCode::from(status)
        }
    }
}
