//! Findings about agentd and its installation: `GET /v1/doctor` and `agentctl doctor`.

use serde::{Deserialize, Serialize};

use crate::prerequisite::{Fact, Outcome};

/// The result of one diagnostic check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Check {
    /// Stable name of the check, for programs.
    pub name: String,
    /// Whether the check passed.
    pub outcome: Outcome,
    /// The finding in one line.
    pub summary: String,
    /// Details as name and value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<Fact>,
    /// Instructions that fix the finding, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Shell commands that carry out the remedy, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run: Vec<Command>,
}

/// One command that is part of a remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Command {
    /// The command line for a POSIX shell.
    pub line: String,
    /// Whether the command must run as root.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_root: bool,
}

impl From<&str> for Command {
    /// Makes a command that the user can run.
    fn from(line: &str) -> Self {
        line.to_owned().into()
    }
}

impl From<String> for Command {
    /// Makes a command that the user can run.
    fn from(line: String) -> Self {
        Self { line, as_root: false }
    }
}

impl Command {
    /// Makes a command that only root can run.
    pub fn of_root(line: impl Into<String>) -> Self {
        Self { line: line.into(), as_root: true }
    }
}

/// Quotes a word for a POSIX shell if needed. A word with a NUL byte, which no shell accepts, is returned
/// unchanged.
pub fn shell_word(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), std::borrow::Cow::into_owned)
}

/// The response of `GET /v1/doctor`: checks that only the daemon can do. `agentctl doctor` adds the checks that
/// need no daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DoctorView {
    /// The checks in the order of display.
    pub checks: Vec<Check>,
}

impl Check {
    /// Makes a check without facts, remedy and commands.
    pub fn new(name: &str, outcome: Outcome, summary: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            outcome,
            summary: summary.into(),
            facts: Vec::new(),
            remedy: None,
            run: Vec::new(),
        }
    }

    /// Adds a fact.
    #[must_use]
    pub fn fact(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.push(Fact { name: name.into(), value: value.into() });
        self
    }

    /// Sets the remedy's text.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds a command to the remedy.
    #[must_use]
    pub fn run(mut self, command: impl Into<Command>) -> Self {
        self.run.push(command.into());
        self
    }

    /// Adds commands to the remedy, in this order.
    #[must_use]
    pub fn run_all(mut self, commands: &[Command]) -> Self {
        self.run.extend_from_slice(commands);
        self
    }

    /// Combines findings into one check with the worst outcome. Returns a passed check with the summary `good`
    /// if there are no findings.
    pub fn of(name: &str, findings: &[Finding], good: impl Into<String>) -> Self {
        let rank = |outcome: Outcome| match outcome {
            Outcome::Pass => 0,
            Outcome::Unknown => 1,
            Outcome::Warn => 2,
            Outcome::Fail => 3,
        };
        let Some(worst) = findings.iter().max_by_key(|finding| rank(finding.outcome)) else {
            return Self::new(name, Outcome::Pass, good);
        };
        let outcome = worst.outcome;
        let mut check = Self::new(name, outcome, String::new());
        let summaries: Vec<&str> = findings.iter().map(|finding| finding.summary.as_str()).collect();
        check.summary = summaries.join("; ");
        let mut remedies: Vec<&str> = findings.iter().filter_map(|finding| finding.remedy.as_deref()).collect();
        remedies.dedup();
        check.remedy = (!remedies.is_empty()).then(|| remedies.join("; "));
        for command in findings.iter().flat_map(|finding| &finding.run) {
            if !check.run.contains(command) {
                check.run.push(command.clone());
            }
        }
        check
    }
}

/// One of the findings that [`Check::of`] combines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Severity of the finding.
    pub outcome: Outcome,
    /// The finding in one line.
    pub summary: String,
    /// Instructions that fix the finding, in words.
    pub remedy: Option<String>,
    /// Shell commands that carry out the remedy, in order.
    pub run: Vec<Command>,
}

impl Finding {
    /// Makes a finding with a remedy in words.
    pub fn new(outcome: Outcome, summary: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::bare(outcome, summary) }
    }

    /// Makes a finding without a remedy text, for findings that have no remedy or whose commands are
    /// sufficient.
    pub fn bare(outcome: Outcome, summary: impl Into<String>) -> Self {
        Self { outcome, summary: summary.into(), remedy: None, run: Vec::new() }
    }

    /// Adds a command to the remedy.
    #[must_use]
    pub fn run(mut self, command: impl Into<Command>) -> Self {
        self.run.push(command.into());
        self
    }

    /// Adds commands to the remedy, in this order.
    #[must_use]
    pub fn run_all(mut self, commands: &[Command]) -> Self {
        self.run.extend_from_slice(commands);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_command_is_read_back_by_a_shell() {
        assert_eq!(shell_word("/home/kim/a-b_c.d"), "/home/kim/a-b_c.d");
        for word in ["/it's a/$x", "", "a b", "~", "back\\slash", "new\nline", "!x"] {
            assert_eq!(shlex::split(&shell_word(word)), Some(vec![word.to_owned()]), "{word:?}");
        }
    }

    #[test]
    fn what_is_found_comes_to_the_worst_of_it_with_every_remedy_once() {
        assert_eq!(Check::of("disk", &[], "there is room").outcome, Outcome::Pass);
        let findings = vec![
            Finding::new(Outcome::Warn, "little room in /a", "remove something"),
            Finding::new(Outcome::Fail, "no room in /b", "remove something"),
        ];
        let check = Check::of("disk", &findings, "there is room");
        assert_eq!((check.outcome, check.remedy.as_deref()), (Outcome::Fail, Some("remove something")));
        assert_eq!(check.summary, "little room in /a; no room in /b");
    }
}
