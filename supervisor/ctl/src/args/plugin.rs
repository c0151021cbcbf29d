//! The command line of `agentctl plugin`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// A subcommand that asks a daemon says so in [`PluginCommand::asks_the_daemon`].
#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// List the plugins of the daemon's configuration; exit status 1 where one is not in use
    Ls,
    /// Show what a plugin is and may do, and how it does
    Show {
        /// Its name in the configuration
        name: String,
    },
    /// Begin a plugin: a directory with its source, a test, and a build of one command
    New(NewPluginArgs),
    /// Say what a component is: its name and version, what it imports and wants, its settings, size and hash
    Inspect {
        /// The component, a .wasm file
        file: PathBuf,
    },
    /// Say how a component stands beside the configuration: what it would be refused, what is granted for nothing, and the pin
    ///
    /// The configuration is read as agentd reads it; no daemon is needed. The lines that would grant what is missing are printed. Exit
    /// status 1 where it would not be loaded, or something that it wants is refused.
    Check(CheckArgs),
    /// Run a component on cases, in the box that agentd runs it in and against the answers in the case, and compare
    ///
    /// Nothing of this machine is looked at, and no daemon is needed. Exit status 1 where a case fails.
    Test(TestArgs),
    /// Print a case for test from a session: its facts and the environment of its last launch, without secrets
    Case {
        session: String,
        /// What this plugin of the configuration was given, with its settings
        #[arg(long, value_name = "NAME")]
        plugin: Option<String>,
    },
}

impl PluginCommand {
    /// Whether it needs a daemon that runs; the author's tools do without.
    pub(crate) fn asks_the_daemon(&self) -> bool {
        match self {
            Self::Ls | Self::Show { .. } | Self::Case { .. } => true,
            Self::New(_) | Self::Inspect { .. } | Self::Check(_) | Self::Test(_) => false,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct NewPluginArgs {
    /// The plugin's name: 1 to 64 of `a-z 0-9 -`, beginning with a letter
    pub(crate) name: String,
    #[arg(long, value_enum)]
    pub(crate) lang: Language,
    /// What it is for: `provider` contributes to sessions' environments, `prerequisite` checks what they need
    #[arg(long, value_enum, default_value_t)]
    pub(crate) world: World,
    /// Where; a directory of its name here where it is not given
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The component, a .wasm file
    pub(crate) file: PathBuf,
    /// Its name in the configuration; without it, that of the plugin that has this file, or the component's own
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Cases of a provider, which show the variables that it gives: they are compared with those that it is granted
    #[arg(long = "case", value_name = "CASE", num_args = 1..)]
    pub(crate) cases: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// The component, a .wasm file
    pub(crate) file: PathBuf,
    /// The cases: a session, an environment, settings, answers of the host, and what is expected
    #[arg(long = "case", value_name = "CASE", required = true, num_args = 1..)]
    pub(crate) cases: Vec<PathBuf>,
    /// Write what the component gives as what is expected, where it is something else
    #[arg(long)]
    pub(crate) update: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    Rust,
    Python,
    #[value(name = "javascript", alias = "js")]
    JavaScript,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum World {
    #[default]
    Provider,
    Prerequisite,
}
