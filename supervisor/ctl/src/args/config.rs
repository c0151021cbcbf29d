//! The command line of `agentctl config`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say what is wrong with the configuration, with file, line and column; exit status 1 where something is
    Check {
        /// Check each of these as if it were your agentd.toml, beside the administrator's files
        files: Vec<PathBuf>,
        /// Check each as if it were one of the administrator's files
        #[arg(long, requires = "files")]
        system: bool,
    },
    /// Show every value that a file sets, merged, with the file and line that set it; secrets are masked
    Show,
    /// List the files and the folder that the configuration is read from, first to last
    Path,
}
