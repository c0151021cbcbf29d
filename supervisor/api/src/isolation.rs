//! How much of the machine an agent is kept from, as it is asked for and as it holds.

use serde::{Deserialize, Serialize};

/// What an agent is kept from. Later levels are stricter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Nothing: the agent is a process of the user.
    #[default]
    None,
    /// agentd's own files are not there, and no process outside can be signalled, traced or reached by an abstract socket.
    Guard,
}

impl Isolation {
    /// The level as it stands in JSON and in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Guard => "guard",
        }
    }
}

/// What a launch does where the kernel lacks a part of the isolation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationMissing {
    /// The launch fails with the reason.
    #[default]
    Fail,
    /// The agent is started with the parts that can be had, and the session's status names the others.
    Warn,
}

/// A part of the level `guard` that a kernel can lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationPart {
    /// User and mount namespaces, which hide agentd's files.
    Namespaces,
    /// A Landlock domain, which scopes signals, tracing and abstract sockets.
    Landlock,
    #[serde(other)]
    Unknown,
}

impl IsolationPart {
    /// The part as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Landlock => "landlock",
            Self::Unknown => "unknown",
        }
    }
}

/// A part that an agent runs without.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingPart {
    pub part: IsolationPart,
    /// What is missing, and how it can be had. For people.
    pub reason: String,
}

/// What a kernel lacks of the level `guard`, for one user: the output of `agentd-keeper isolation`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationSurvey {
    pub missing: Vec<MissingPart>,
}

/// The isolation that an agent was started with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolated {
    pub level: Isolation,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingPart>,
}

impl Isolated {
    /// Whether the agent was started without any isolation.
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
