//! Staleness: differences between the state in which a session's agent last worked and the present state.

use serde::{Deserialize, Serialize};

use crate::id::SessionId;
use crate::session::ConditionType;

/// Data of the record `staleness.found`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StalenessFound {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// The findings. A later record of a launch adds findings of other kinds.
    pub findings: Vec<StaleFinding>,
}

/// One difference that makes a session stale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StaleFinding {
    /// Kind of the difference.
    pub kind: StaleKind,
    /// One CamelCase word for programs, as in the condition of the kind.
    pub reason: String,
    /// Description for people.
    pub message: String,
    /// The policy that applied.
    pub policy: StalePolicy,
}

/// A session whose staleness could not be checked in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UncheckedSession {
    /// Id of the session.
    pub id: SessionId,
    /// Why the session could not be checked.
    pub reason: String,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal => $condition:ident,)*) => {
        /// Kind of a difference that makes a session stale.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "kebab-case")]
        pub enum StaleKind {
            $($(#[doc = $doc])+ $name,)*
            /// A kind newer than this reader.
            #[serde(other)]
            Unknown,
        }

        impl StaleKind {
            /// All kinds of this release, in the order in which a launch finds them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the kind's name in JSON, which is also its key in `[staleness]`, except for `agent-version`.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Unknown => "unknown",
                }
            }

            /// Returns the condition that is False for a session that is stale in this way.
            pub fn condition(self) -> ConditionType {
                match self {
                    $(Self::$name => ConditionType::$condition,)*
                    Self::Unknown => ConditionType::Unknown,
                }
            }
        }
    };
}

kinds! {
    /// Another directory is at the path of the session's directory.
    Directory = "directory" => NotStale,
    /// The repository is gone, has another top directory or other remotes, or is new.
    Repository = "repository" => RepositoryUnchanged,
    /// The repository is on another branch.
    Branch = "branch" => BranchUnchanged,
    /// The branch is at another commit.
    Head = "head" => HeadUnchanged,
    /// The environment's scripts differ from those of the last launch.
    Scripts = "scripts" => ScriptsUnchanged,
    /// The session was not used for longer than `staleness.unused_after`.
    Unused = "unused" => RecentlyUsed,
    /// The environment differs from that of the agent's last work.
    Environment = "environment" => EnvironmentUnchanged,
    /// The agent's program has another name or version.
    AgentVersion = "agent-version" => AgentUnchanged,
}

/// Reaction of a launch to a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StalePolicy {
    /// The difference is not looked for.
    Ignore,
    /// The launch continues, and the note to the agent names the difference.
    Note,
    /// As `note`, with a warning in the log and in `agentctl ls`.
    Warn,
    /// The launch waits until a client agrees. It fails if a client refuses or `limits.permission` is over.
    Ask,
    /// The launch fails.
    Refuse,
}

impl StalePolicy {
    /// All policies, from the weakest to the strongest.
    pub const ALL: &'static [Self] = &[Self::Ignore, Self::Note, Self::Warn, Self::Ask, Self::Refuse];

    /// Returns the policy's name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ignore => "ignore",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Ask => "ask",
            Self::Refuse => "refuse",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_in_json() {
        for kind in StaleKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        for policy in StalePolicy::ALL {
            assert_eq!(serde_json::to_value(policy).unwrap(), policy.as_str());
        }
        let unknown: StaleKind = serde_json::from_str("\"moon\"").unwrap();
        assert_eq!(unknown, StaleKind::Unknown);
    }
}
