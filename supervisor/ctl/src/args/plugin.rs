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
}

impl PluginCommand {
    /// Whether it needs a daemon that runs; the author's tools do without.
    pub(crate) fn asks_the_daemon(&self) -> bool {
        match self {
            Self::Ls | Self::Show { .. } => true,
            Self::New(_) => false,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
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
