//! Isolation of an agent from the machine: what is requested and what is in effect.

use serde::{Deserialize, Serialize};

/// The isolation level of an agent. Later levels are stricter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// No isolation: the agent runs as an ordinary process of the user.
    #[default]
    None,
    /// Hides agentd's own files. The agent cannot signal, trace or reach by abstract socket any process
    /// outside.
    Guard,
}

impl Isolation {
    /// Returns the level's name in JSON and in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Guard => "guard",
        }
    }
}

/// Action of a launch if the kernel lacks a part of the isolation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum IsolationMissing {
    /// The launch fails and names the missing part.
    #[default]
    Fail,
    /// The agent starts with the available parts. The session's status lists the missing ones.
    Warn,
}

/// A part of the level `guard` that a kernel may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum IsolationPart {
    /// User and mount namespaces, which hide agentd's files.
    Namespaces,
    /// A Landlock domain, which restricts signals, tracing and abstract sockets.
    Landlock,
    /// A part newer than this reader.
    #[serde(other)]
    Unknown,
}

impl IsolationPart {
    /// Returns the part's name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Landlock => "landlock",
            Self::Unknown => "unknown",
        }
    }
}

/// A part of the isolation that an agent runs without.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MissingPart {
    /// The missing part.
    pub part: IsolationPart,
    /// Description of the missing part and of how to get it, for people.
    pub reason: String,
}

/// Parts of the level `guard` that the kernel lacks for one user: the output of `agentd-keeper isolation`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IsolationSurvey {
    /// The missing parts.
    pub missing: Vec<MissingPart>,
}

/// The isolation that an agent was started with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Isolated {
    /// The level.
    pub level: Isolation,
    /// Parts of the level that the kernel lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingPart>,
}

impl Isolated {
    /// Reports whether the agent was started without isolation.
    pub fn is_none(&self) -> bool {
        self.level == Isolation::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_level_is_stricter_and_has_one_name() {
        assert!(Isolation::Guard > Isolation::None);
        for level in [Isolation::None, Isolation::Guard] {
            assert_eq!(serde_json::to_value(level).unwrap(), level.as_str());
        }
        for part in [IsolationPart::Namespaces, IsolationPart::Landlock, IsolationPart::Unknown] {
            assert_eq!(serde_json::to_value(part).unwrap(), part.as_str());
        }
    }
}
