//! Degraded launches: launches that leave out, on request, the parts of a session that could not be provided.

use serde::{Deserialize, Serialize};

use crate::prerequisite::Requester;

/// Words that end the message of a degraded launch that failed for a part that no launch can leave out.
pub const NOT_LEFT_OUT: &str = "a degraded launch cannot leave this out";

/// Kind of a part that a degraded launch left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MissingKind {
    /// A provider of the environment, with all its variables.
    Provider,
    /// An environment script. Other scripts of the same provider did run.
    Script,
    /// A prerequisite that was not met.
    Prerequisite,
    /// A required secret.
    Secret,
    /// A repository that could not be cloned, reset or removed.
    Repository,
    /// The requested workflow.
    Workflow,
    /// A kind newer than this reader.
    #[serde(other)]
    Unknown,
}

impl MissingKind {
    /// Returns the kind's name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Script => "script",
            Self::Prerequisite => "prerequisite",
            Self::Secret => "secret",
            Self::Repository => "repository",
            Self::Workflow => "workflow",
            Self::Unknown => "unknown",
        }
    }
}

/// A part that a degraded launch left out, and for which the launch would have failed otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "DegradedPart"))]
pub struct MissingPart {
    /// Kind of the part.
    pub kind: MissingKind,
    /// Name of the provider, the prerequisite, the secret, the repository or the workflow, or path of the script.
    pub name: String,
    /// Why the part is missing, for people. May quote a script or a check. Never contains a secret.
    pub message: String,
}

/// Writes the kind, the name and the reason.
impl std::fmt::Display for MissingPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.kind.as_str(), self.name, self.message)
    }
}

/// Data of the record `launch.degraded`. Written once for each attempt to prepare a launch that left something out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaunchDegraded {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// The caller that requested the degraded launch.
    pub by: Requester,
    /// Everything that the launch left out.
    pub missing: Vec<MissingPart>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_written_as_it_is_named_and_a_newer_kind_is_read() {
        for kind in [
            MissingKind::Provider,
            MissingKind::Script,
            MissingKind::Prerequisite,
            MissingKind::Secret,
            MissingKind::Repository,
            MissingKind::Workflow,
        ] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        let part: MissingPart =
            serde_json::from_value(serde_json::json!({ "kind": "moon", "name": "n", "message": "m" })).unwrap();
        assert_eq!((part.kind, part.to_string()), (MissingKind::Unknown, "unknown n: m".to_owned()));
    }
}
