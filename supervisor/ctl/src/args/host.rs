//! Defines `agentctl host`: the machines that the user has named.

use clap::Subcommand;

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum HostCommand {
    /// List the machines
    #[command(visible_alias = "list")]
    Ls,
    /// Add a machine, or change it. With --socket, agentd listens at that path there
    Add {
        /// Name for --host
        name: String,
        /// `[USER@]MACHINE` or `ssh://[USER@]MACHINE[:PORT]`
        address: String,
        /// Path of agentctl on the machine, if a shell without a terminal does not find it
        #[arg(long, value_name = "PATH")]
        program: Option<String>,
    },
    /// Remove a machine from the list
    Rm { name: String },
    /// Set the machine of commands without --host; `this` is this machine
    Use { name: String },
}
