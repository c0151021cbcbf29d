//! What was found out about agentd itself and its installation: `GET /v1/doctor`, and `agentctl doctor`.

use serde::{Deserialize, Serialize};

use crate::prerequisite::{Fact, Outcome};

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// A stable word.
    pub name: String,
    pub outcome: Outcome,
    /// One line: what was found.
    pub summary: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<Fact>,
    /// What can be done about it, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The commands of the remedy, in order, as a shell takes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run: Vec<Command>,
}

/// One command of a remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// A line for a POSIX shell.
    pub line: String,
    /// Only root may.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_root: bool,
}

/// A word as a POSIX shell reads it back, quoted where that is needed.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@,+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// What `GET /v1/doctor` answers: what the daemon alone knows of itself. `agentctl doctor` adds what it sees from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorView {
    pub checks: Vec<Check>,
}

impl Check {
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

    #[must_use]
    pub fn fact(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.push(Fact { name: name.into(), value: value.into() });
        self
    }

    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds a command of the remedy that the user may run.
    #[must_use]
    pub fn run(mut self, line: impl Into<String>) -> Self {
        self.run.push(Command { line: line.into(), as_root: false });
        self
    }

    /// Adds a command of the remedy that only root may run.
    #[must_use]
    pub fn run_as_root(mut self, line: impl Into<String>) -> Self {
        self.run.push(Command { line: line.into(), as_root: true });
        self
    }

    /// What several findings come to: the worst of them; `good` where there is none.
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

/// One of several things that a check finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub outcome: Outcome,
    pub summary: String,
    pub remedy: Option<String>,
    pub run: Vec<Command>,
}

impl Finding {
    pub fn new(outcome: Outcome, summary: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::bare(outcome, summary) }
    }

    /// Makes a finding whose remedy has no text: it has none, or its commands are enough.
    pub fn bare(outcome: Outcome, summary: impl Into<String>) -> Self {
        Self { outcome, summary: summary.into(), remedy: None, run: Vec::new() }
    }

    /// Adds a command of the remedy that the user may run.
    #[must_use]
    pub fn run(mut self, line: impl Into<String>) -> Self {
        self.run.push(Command { line: line.into(), as_root: false });
        self
    }

    /// Adds a command of the remedy that only root may run.
    #[must_use]
    pub fn run_as_root(mut self, line: impl Into<String>) -> Self {
        self.run.push(Command { line: line.into(), as_root: true });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
