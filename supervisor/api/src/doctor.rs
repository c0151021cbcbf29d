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

impl From<&str> for Command {
    /// A command of the user's.
    fn from(line: &str) -> Self {
        line.to_owned().into()
    }
}

impl From<String> for Command {
    /// A command of the user's.
    fn from(line: String) -> Self {
        Self { line, as_root: false }
    }
}

impl Command {
    /// Makes a command that only root may run.
    pub fn of_root(line: impl Into<String>) -> Self {
        Self { line: line.into(), as_root: true }
    }
}

/// Quotes a word where a POSIX shell needs it. A word with a NUL byte, which no shell takes, is returned unchanged.
pub fn shell_word(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), std::borrow::Cow::into_owned)
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

    /// Adds a command of the remedy.
    #[must_use]
    pub fn run(mut self, command: impl Into<Command>) -> Self {
        self.run.push(command.into());
        self
    }

    /// Adds commands of the remedy, in this order.
    #[must_use]
    pub fn run_all(mut self, commands: &[Command]) -> Self {
        self.run.extend_from_slice(commands);
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

    /// Adds a command of the remedy.
    #[must_use]
    pub fn run(mut self, command: impl Into<Command>) -> Self {
        self.run.push(command.into());
        self
    }

    /// Adds commands of the remedy, in this order.
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
