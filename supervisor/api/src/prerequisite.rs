//! What must be there before a session's agent is started, as the outside sees it: what is declared, and what a check found.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::SessionId;

/// When a prerequisite is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// Of no session: what is found holds for everybody.
    BeforeEnvironment,
    /// It is given the session's environment.
    AfterEnvironment,
    #[serde(other)]
    Unknown,
}

/// How a prerequisite stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Pass,
    /// It is there, and something is to be said of it; nothing is kept from starting.
    Warn,
    Fail,
    /// It could not be told.
    #[serde(other)]
    Unknown,
}

impl Outcome {
    /// The outcome as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
        }
    }
}

/// What becomes of a launch when a prerequisite fails, or cannot be told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// It is refused, or waits.
    #[default]
    Fail,
    /// It goes on, and says so.
    Warn,
}

/// Which sessions need a prerequisite besides those whose spec names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequiredBy {
    /// Everybody.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Names of agents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// Patterns of working directories: `*` is any text, `?` any character.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<String>,
    /// Tags of sessions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// One thing that a check found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    pub name: String,
    pub value: String,
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// The prerequisite's name in the configuration.
    pub name: String,
    pub outcome: Outcome,
    pub on_failure: OnFailure,
    /// One line: what was found.
    pub summary: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<Fact>,
    /// What can be done about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// How long the check took, in milliseconds.
    pub took_ms: u64,
    /// When it ended.
    pub checked_at: Timestamp,
    /// Whether it had been made before it was asked for.
    #[serde(default)]
    pub from_cache: bool,
}

impl CheckReport {
    /// Whether a launch does not go on with it.
    pub fn is_obstacle(&self) -> bool {
        self.on_failure == OnFailure::Fail && matches!(self.outcome, Outcome::Fail | Outcome::Unknown)
    }

    /// For people: `NAME (fail): what was found; what to do about it`.
    pub fn line(&self) -> String {
        let remedy = self.remedy.as_ref().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        format!("{} ({}): {}{remedy}", self.name, self.outcome.as_str(), self.summary)
    }
}

/// A prerequisite that the configuration declares, and how it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrerequisiteView {
    pub name: String,
    /// The plugin that checks it.
    pub plugin: String,
    pub moment: Moment,
    pub on_failure: OnFailure,
    pub required_by: RequiredBy,
    /// As the check is given them, nested keys joined by dots.
    pub settings: BTreeMap<String, Vec<String>>,
    /// What was found last; nothing where nobody has asked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<CheckReport>,
    /// When it is checked next for the sessions that run; nothing where no running session needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// The active sessions that need it.
    pub used_by: Vec<SessionId>,
    /// Why it cannot be checked: its plugin is not loaded, or is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What `GET /v1/prerequisites` answers, in the order of the names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrerequisiteList {
    pub prerequisites: Vec<PrerequisiteView>,
}

/// The body of `POST /v1/prerequisites/{name}/check`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckRequest {
    /// For this session; one that looks at the environment needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
}

/// Who asked for something that is to be known afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requester {
    /// The user's id, from the kernel.
    pub uid: u32,
    /// The process, where the kernel says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The path of its program, where it may be looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The session that the process ran in: an agent asked, or what it had started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
}

impl std::fmt::Display for Requester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "user {}", self.uid)?;
        match &self.session {
            Some(session) => write!(f, " from inside the session {session}"),
            None => Ok(()),
        }
    }
}

/// What a launch found. Written once for each moment that there was something to check in, and when a wait begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrerequisitesChecked {
    pub launch: u64,
    pub moment: Moment,
    pub reports: Vec<CheckReport>,
}

/// What is other than it was, while the session's agent runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrerequisitesChanged {
    pub launch: u64,
    /// Those whose outcome changed.
    pub reports: Vec<CheckReport>,
}

/// A launch that goes on without what it needs, since somebody said so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrerequisitesForced {
    pub launch: u64,
    pub by: Requester,
    /// The names of what was missing.
    pub missing: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_from_the_future_cannot_be_told() {
        assert_eq!(serde_json::from_str::<Outcome>(r#""on-fire""#).unwrap(), Outcome::Unknown);
        for outcome in [Outcome::Pass, Outcome::Warn, Outcome::Fail, Outcome::Unknown] {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.as_str());
        }
    }
}
