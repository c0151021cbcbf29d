//! Defines `agentctl acp`.

use agentd_api::AgentName;
use clap::Args;

use super::{IsolationArg, Permissions, TermsArgs, spec};

pub(super) const EXAMPLES: &str = "\
Examples (the command that an editor starts):
  agentctl acp                        the default agent
  agentctl acp --agent claude --wait  another agent; wait for prerequisites
  agentctl acp --place farm           on another machine, see `agentctl place ls`
  agentctl acp -- opencode acp        any program that speaks ACP";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AcpArgs {
    /// The agent of new sessions, see `agentctl agents`; `demo` is built in
    #[arg(long, value_name = "NAME", conflicts_with = "command")]
    pub(crate) agent: Option<AgentName>,
    /// A label of new sessions, by which `agentctl ls -l` chooses sessions; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = spec::label)]
    pub(crate) label: Vec<(String, String)>,
    /// Reply to the permission requests of new sessions; by default the editor and all other clients are asked
    #[arg(long, value_enum, default_value_t)]
    pub(crate) permissions: Permissions,
    /// A configured prerequisite that new sessions need, see `agentctl check`; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) require: Vec<String>,
    /// A tag of new sessions, by which configured prerequisites apply to them; may be repeated
    #[arg(long)]
    pub(crate) tag: Vec<String>,
    /// Isolation of the agents of new sessions; by default as the agent is configured, and never less than that
    #[arg(long, value_enum)]
    pub(crate) isolation: Option<IsolationArg>,
    /// Place on which the agents of new sessions run, see `agentctl place ls`, or `here` for this machine; by default
    /// as configured
    #[arg(long, value_name = "NAME")]
    pub(crate) place: Option<String>,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// A program that speaks the Agent Client Protocol on stdin and stdout, instead of a configured agent
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}
