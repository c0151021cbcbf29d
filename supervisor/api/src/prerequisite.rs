//! Prerequisites of a session's launch: their declaration and the results of their checks.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{SessionId, TokenName};

/// When a prerequisite is checked during a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// Before the environment is built. The check does not depend on a session, so sessions share its result.
    BeforeEnvironment,
    /// After the environment is built. The check receives the session's environment.
    AfterEnvironment,
    /// A moment newer than this reader.
    #[cfg_attr(feature = "schema", schemars(skip))]
    #[serde(other)]
    Unknown,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The prerequisite is met.
    Pass,
    /// The prerequisite is met, with a warning. The launch continues.
    Warn,
    /// The prerequisite is not met.
    Fail,
    /// The check could not decide. Also an outcome newer than this reader.
    #[serde(other)]
    Unknown,
}

impl Outcome {
    /// Returns the outcome's name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
        }
    }
}

/// Action of a launch if a prerequisite fails or its check cannot decide.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "PrerequisiteOnFailure"))]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// The launch is refused, or waits.
    #[default]
    Fail,
    /// The launch continues with a warning.
    Warn,
}

/// Sessions that need a prerequisite, in addition to those whose spec names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RequiredBy {
    /// Whether all sessions need the prerequisite.
    #[cfg_attr(feature = "schema", schemars(extend("default" = false)))]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Names of agents whose sessions need the prerequisite.
    #[cfg_attr(feature = "schema", schemars(extend("default" = [])))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// Patterns of working directories: `*` matches any text, `?` any character.
    #[cfg_attr(feature = "schema", schemars(extend("default" = [])))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<String>,
    /// Tags of sessions that need the prerequisite.
    #[cfg_attr(feature = "schema", schemars(extend("default" = [])))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// One detail that a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fact {
    /// Name of the detail.
    pub name: String,
    /// Value for people.
    pub value: String,
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckReport {
    /// Name of the prerequisite in the configuration.
    pub name: String,
    /// Whether the prerequisite is met.
    pub outcome: Outcome,
    /// Action of a launch if the prerequisite is not met.
    pub on_failure: OnFailure,
    /// The finding in one line.
    pub summary: String,
    /// Details of the finding.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<Fact>,
    /// Instructions that fix the finding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Duration of the check in milliseconds.
    pub took_ms: u64,
    /// Time at which the check ended.
    pub checked_at: Timestamp,
    /// Whether the result is that of an earlier check.
    #[serde(default)]
    pub from_cache: bool,
}

impl CheckReport {
    /// Reports whether the result prevents a launch from continuing.
    pub fn is_obstacle(&self) -> bool {
        self.on_failure == OnFailure::Fail && matches!(self.outcome, Outcome::Fail | Outcome::Unknown)
    }

    /// Formats the result for people: `NAME (fail): SUMMARY; REMEDY`.
    pub fn line(&self) -> String {
        let remedy = self.remedy.as_ref().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        format!("{} ({}): {}{remedy}", self.name, self.outcome.as_str(), self.summary)
    }
}

/// A prerequisite of the configuration, with the result of its last check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrerequisiteView {
    /// Name of the prerequisite in the configuration.
    pub name: String,
    /// Name of the plugin that checks it.
    pub plugin: String,
    /// When the prerequisite is checked during a launch.
    pub moment: Moment,
    /// Action of a launch if the prerequisite is not met.
    pub on_failure: OnFailure,
    /// Sessions that need the prerequisite.
    pub required_by: RequiredBy,
    /// Settings that the check receives, nested keys joined by dots.
    pub settings: BTreeMap<String, Vec<String>>,
    /// Result of the last check. Absent if the prerequisite was never checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<CheckReport>,
    /// Time of the next check for running sessions. Absent if no running session needs the prerequisite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// Active sessions that need the prerequisite.
    pub used_by: Vec<SessionId>,
    /// Why the prerequisite cannot be checked: its plugin is not loaded or is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The response of `GET /v1/prerequisites`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrerequisiteList {
    /// The prerequisites, sorted by name.
    pub prerequisites: Vec<PrerequisiteView>,
}

/// The body of `POST /v1/prerequisites/{name}/check`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CheckRequest {
    /// The session to check for. Required by checks that receive the environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
}

/// The caller of a request, as recorded in journals and in the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Requester {
    /// User id, from the kernel.
    pub uid: u32,
    /// Process id, if the kernel provides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Path of the process's program, if agentd may read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The session that the process runs in, if an agent or one of its descendants is the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Name of the token in `control.tokens` that the request carried. `uid` is then the daemon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenName>,
}

impl std::fmt::Display for Requester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "user {}", self.uid)?;
        if let Some(token) = &self.token {
            write!(f, " with the token {token}")?;
        }
        match &self.session {
            Some(session) => write!(f, " from inside the session {session}"),
            None => Ok(()),
        }
    }
}

/// Data of the record `prerequisites.checked`. Written once for each moment that has checks, and when a wait
/// begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrerequisitesChecked {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// The moment of the checks.
    pub moment: Moment,
    /// Results of the checks.
    pub reports: Vec<CheckReport>,
}

/// Data of the record `prerequisites.changed`: outcomes that changed while the session's agent runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrerequisitesChanged {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// Results of the checks whose outcome changed.
    pub reports: Vec<CheckReport>,
}

/// Data of the record `prerequisites.forced`: a launch continues without prerequisites, as a caller requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrerequisitesForced {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// The caller that forced the launch.
    pub by: Requester,
    /// Names of the prerequisites that were not met.
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
