//! Defines `agentctl names`, which the completion scripts call.

use clap::{Args, ValueEnum};

/// Kind of names that the completion scripts offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NameKind {
    Agents,
    Hosts,
    Places,
    Sessions,
}

impl NameKind {
    /// All kinds.
    pub(crate) const ALL: [Self; 4] = [Self::Agents, Self::Hosts, Self::Places, Self::Sessions];

    /// Returns the word of the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Agents => "agents",
            Self::Hosts => "hosts",
            Self::Places => "places",
            Self::Sessions => "sessions",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct NamesArgs {
    /// Kind of the names
    #[arg(value_enum)]
    pub(crate) kind: NameKind,
    /// Command line so far, whose options choose the daemon
    #[arg(last = true, value_name = "WORD")]
    pub(crate) line: Vec<String>,
}
