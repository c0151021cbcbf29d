//! Kinds of commands: those that concern the machine on which `agentctl` runs, and those that print a stream.

use super::Command;
use super::service::ServiceCommand;

impl Command {
    /// Returns the subject of a command that `--host` cannot move to another machine.
    pub(crate) fn of_this_machine(&self) -> Option<&'static str> {
        match self {
            Self::Service(_) => Some("the service"),
            Self::Doctor(_) => Some("the installation"),
            Self::Config(_) => Some("a configuration file"),
            Self::UpgradeCheck { .. } => Some("an upgrade"),
            Self::Adopt(_) => Some("an agent's own list of conversations"),
            Self::Mcp => Some("the server for an agent's session"),
            Self::Dial => Some("the connection to a socket"),
            Self::Plugin(command) if !command.asks_the_daemon() => Some("a plugin's project"),
            _ => None,
        }
    }

    /// Reports whether the command prints a stream of events with `--json`.
    pub(crate) fn prints_a_stream(&self) -> bool {
        match self {
            Self::Run(args) => !args.spec.batch.batch,
            Self::Attach(_) | Self::Prompt(_) | Self::Events(_) | Self::Service(ServiceCommand::Logs(_)) => true,
            _ => false,
        }
    }
}
