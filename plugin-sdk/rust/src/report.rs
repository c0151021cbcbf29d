//! Writing a report.

use std::time::Duration;

use crate::{Fact, Outcome, Report};

impl Report {
    /// `summary` is one line: what was found.
    pub fn new(outcome: Outcome, summary: impl Into<String>) -> Self {
        Self { outcome, summary: summary.into(), facts: Vec::new(), remedy: None, valid_for: None }
    }

    /// It holds.
    pub fn pass(summary: impl Into<String>) -> Self {
        Self::new(Outcome::Pass, summary)
    }

    /// It holds, and something about it should be known.
    pub fn warn(summary: impl Into<String>) -> Self {
        Self::new(Outcome::Warn, summary)
    }

    /// It does not hold.
    pub fn fail(summary: impl Into<String>) -> Self {
        Self::new(Outcome::Fail, summary)
    }

    /// It could not be told, and the summary says why.
    pub fn unknown(summary: impl Into<String>) -> Self {
        Self::new(Outcome::Unknown, summary)
    }

    /// Something that explains it; in the order in which it should be read.
    #[must_use]
    pub fn fact(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.push(Fact { name: name.into(), value: value.into() });
        self
    }

    /// What the user can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// For how long the report may be used again; if not said, for as long as the host finds right.
    #[must_use]
    pub fn valid_for(mut self, time: Duration) -> Self {
        self.valid_for = Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self
    }
}
