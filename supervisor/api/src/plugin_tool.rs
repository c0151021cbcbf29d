//! What `agentd plugin-tool` prints, and agentctl reads: what a component is, how it stands beside its grants, how its cases went.
//!
//! `agentctl plugin inspect`, `check` and `test` print the same documents with `--json`.

use serde::{Deserialize, Serialize};

/// Either what was asked for, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer<T> {
    Answer(T),
    Error(ToolProblem),
}

/// What went wrong, for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolProblem {
    /// A stable word for programs.
    pub code: String,
    pub message: String,
    /// What can be done about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What a component is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    pub file: String,
    /// Bytes.
    pub size: u64,
    /// In hexadecimal: what a pin says.
    pub sha256: String,
    /// The version of the interface that it is made for.
    pub interface: String,
    /// `provider` or `prerequisite`.
    pub world: String,
    pub name: String,
    pub version: String,
    pub summary: String,
    /// Of a prerequisite: `before-environment` or `after-environment`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moment: Option<String>,
    /// The capabilities that it imports; `log` and `clock` are always granted.
    pub imports: Vec<String>,
    pub wants: Vec<ToolWant>,
    pub settings: Vec<ToolSetting>,
}

/// A capability that it uses, how far, and what for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolWant {
    pub capability: String,
    pub patterns: Vec<String>,
    pub reason: String,
}

/// A setting that it knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolSetting {
    pub key: String,
    pub summary: String,
    pub required: bool,
}

/// How the cases of a component went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestRun {
    /// The component's name for itself.
    pub plugin: String,
    pub cases: Vec<CaseRun>,
}

/// How one case went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseRun {
    pub file: String,
    pub outcome: CaseOutcome,
    /// Why it failed, where it is not a difference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<ToolProblem>,
    /// Lines of a diff from what is expected to what came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub difference: Vec<String>,
    /// Host calls that the case has no answer for, each with the lines that would be one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<Unanswered>,
    /// What the plugin logged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
    /// How long the call took, in microseconds.
    pub microseconds: u64,
}

/// A host call without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// What was asked.
    pub call: String,
    /// The lines of the case that would answer it.
    pub lines: String,
}

/// What came of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CaseOutcome {
    Passed,
    Failed,
    /// What came was written as what is expected.
    Updated,
}

/// A component beside what the configuration says of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Its name in the configuration, or its own.
    pub name: String,
    /// The configuration file that declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared_in: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<ToolPin>,
    /// What it asks for and does not get.
    pub refused: Vec<ToolRefusal>,
    /// What is granted, and it does not ask for.
    pub unused: Vec<String>,
    /// What was not compared, and what it takes to do so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undecided: Option<String>,
    /// Why it would not be loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<ToolProblem>,
    /// The lines of the configuration that would grant what is missing, where there are such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<String>,
    pub inspection: Inspection,
}

/// What a file must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolPin {
    /// In hexadecimal.
    pub pinned: String,
    pub matches: bool,
}

/// One thing that a component asks for and does not get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolRefusal {
    /// Reads on after its name.
    pub what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Whether it is loaded all the same.
    pub loads: bool,
}
