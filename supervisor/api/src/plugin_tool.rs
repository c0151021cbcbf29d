//! The output of `agentd plugin-tool`, which agentctl reads: inspection, check and test results of a component.
//!
//! `agentctl plugin inspect`, `check` and `test` print these documents with `--json`.

use serde::{Deserialize, Serialize};

/// The result of a tool run: the requested document or an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer<T> {
    /// The requested document.
    Answer(T),
    /// Why there is no document.
    Error(ToolProblem),
}

/// An error of the tool, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolProblem {
    /// Stable code for programs.
    pub code: String,
    /// Description of the error.
    pub message: String,
    /// Instructions that fix the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Properties of a component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// Path of the component's file.
    pub file: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 of the file in hexadecimal, in the form that a pin in the configuration uses.
    pub sha256: String,
    /// Version of the plugin interface that the component uses.
    pub interface: String,
    /// The component's WIT world: `provider` or `prerequisite`.
    pub world: String,
    /// The component's own name.
    pub name: String,
    /// Version of the component.
    pub version: String,
    /// Purpose of the component in one line.
    pub summary: String,
    /// When a prerequisite is checked: `before-environment` or `after-environment`. Absent for a provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moment: Option<String>,
    /// Capabilities that the component imports. `log` and `clock` are always granted.
    pub imports: Vec<String>,
    /// Wanted capabilities, with the patterns that the component needs.
    pub wants: Vec<ToolWant>,
    /// Settings that the component accepts.
    pub settings: Vec<ToolSetting>,
}

/// A capability that a component needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolWant {
    /// Name of the capability.
    pub capability: String,
    /// Patterns that the component needs.
    pub patterns: Vec<String>,
    /// Why the component needs the capability.
    pub reason: String,
}

/// A setting that a component accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolSetting {
    /// Key of the setting.
    pub key: String,
    /// Purpose of the setting in one line.
    pub summary: String,
    /// Whether the setting must be given.
    pub required: bool,
}

/// Results of a component's test cases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestRun {
    /// The component's own name.
    pub plugin: String,
    /// The cases in the order in which they ran.
    pub cases: Vec<CaseRun>,
}

/// Result of one test case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseRun {
    /// Path of the case's file.
    pub file: String,
    /// Whether the case passed.
    pub outcome: CaseOutcome,
    /// Why the case failed, if the reason is not a difference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<ToolProblem>,
    /// Diff lines from the expected result to the actual result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub difference: Vec<String>,
    /// Host calls that the case has no answer for. Each has the lines that would add an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<Unanswered>,
    /// Lines that the plugin logged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
    /// Duration of the call in microseconds.
    pub microseconds: u64,
}

/// A host call that the case has no answer for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// The host call.
    pub call: String,
    /// Lines to add to the case's file.
    pub lines: String,
}

/// Outcome of a test case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CaseOutcome {
    /// The result was as expected.
    Passed,
    /// The result differed, or the case could not run.
    Failed,
    /// The actual result was written into the case as the expected result.
    Updated,
}

/// Comparison of a component with its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Name of the plugin in the configuration. The component's own name if the configuration does not declare
    /// it.
    pub name: String,
    /// The configuration file that declares the plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared_in: Option<String>,
    /// Comparison with the pinned digest, if the configuration pins one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<ToolPin>,
    /// Wants of the component that are not granted.
    pub refused: Vec<ToolRefusal>,
    /// Grants that the component does not want.
    pub unused: Vec<String>,
    /// Comparison that was not made, and its missing input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undecided: Option<String>,
    /// Why the component would not load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<ToolProblem>,
    /// Configuration lines that would add the missing grants, if any can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<String>,
    /// Properties of the component.
    pub inspection: Inspection,
}

/// The digest that the configuration pins for a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolPin {
    /// The pinned SHA-256 in hexadecimal.
    pub pinned: String,
    /// Whether the file has this digest.
    pub matches: bool,
}

/// A want of a component that is not granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolRefusal {
    /// Description, as a clause that follows the component's name.
    pub what: String,
    /// Instructions that fix the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Whether the component loads despite the refusal.
    pub loads: bool,
}
