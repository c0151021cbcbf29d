//! Defines the command line of `agentctl config`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the mistakes of the configuration with file, line and column; exit status 1 if there is a mistake
    Check {
        /// Check each of these files as your agentd.toml, beside the administrator's files
        files: Vec<PathBuf>,
        /// Check each file as one of the administrator's files
        #[arg(long, requires = "files")]
        system: bool,
    },
    /// Show every value that a file sets, merged, with the file and line that set it; secrets are masked
    Show,
    /// List the files and the directory of the configuration, in the order of reading
    Path,
}
