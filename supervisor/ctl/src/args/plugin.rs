//! Defines the command line of `agentctl plugin`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Subcommands of `agentctl plugin`. Those that call a daemon must be listed in [`PluginCommand::asks_the_daemon`].
#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// List the plugins of the daemon's configuration; exit status 1 if a plugin is not in use
    Ls,
    /// Show a plugin's description, grants and state
    Show {
        /// Name in the configuration
        name: String,
    },
    /// Create a plugin: a directory with its source, a test, and a build script
    New(NewPluginArgs),
    /// Describe a component: name and version, imports and requests, settings, size and hash
    Inspect {
        /// Component, a .wasm file
        file: PathBuf,
    },
    /// Compare a component with the configuration: refused requests, unused grants, and the pin
    ///
    /// The configuration is read as agentd reads it; no daemon is needed. The lines that would grant missing
    /// requests are printed. Exit status 1 if agentd would not load the component, or would refuse one of its
    /// requests.
    Check(CheckArgs),
    /// Run a component on cases, in agentd's sandbox and with the recorded answers, and compare the results
    ///
    /// The test does not access this machine, and needs no daemon. Exit status 1 if a case fails.
    Test(TestArgs),
    /// Print a case for `test` from a session: its facts and the environment of its last launch, without secrets
    Case {
        session: String,
        /// Use the input of this plugin, with its settings
        #[arg(long, value_name = "NAME")]
        plugin: Option<String>,
    },
}

impl PluginCommand {
    /// Reports whether the subcommand needs a running daemon; the author's tools need none.
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
    /// Purpose: `provider` contributes to sessions' environments, `prerequisite` checks their requirements
    #[arg(long, value_enum, default_value_t)]
    pub(crate) world: World,
    /// Directory of the project; by default one with the plugin's name here
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Component, a .wasm file
    pub(crate) file: PathBuf,
    /// Name in the configuration; by default that of the plugin with this file, or the component's own
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Cases of a provider, which show its variables; these are compared with the granted variables
    #[arg(long = "case", value_name = "CASE", num_args = 1..)]
    pub(crate) cases: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Component, a .wasm file
    pub(crate) file: PathBuf,
    /// Cases: a session, an environment, settings, answers of the host, and the expected result
    #[arg(long = "case", value_name = "CASE", required = true, num_args = 1..)]
    pub(crate) cases: Vec<PathBuf>,
    /// Write the component's results as the expected results, where they differ
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
