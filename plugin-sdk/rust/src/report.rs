//! Constructors of reports.

use std::time::Duration;

use crate::{Fact, Outcome, Report};

impl Report {
    /// Makes a report. `summary` is the finding in one line.
    pub fn new(outcome: Outcome, summary: impl Into<String>) -> Self {
        Self { outcome, summary: summary.into(), facts: Vec::new(), remedy: None, valid_for: None }
    }

    /// Makes the report of a prerequisite that is met.
    pub fn pass(summary: impl Into<String>) -> Self {
        Self::new(Outcome::Pass, summary)
    }

    /// Makes the report of a prerequisite that is met, with a warning.
    pub fn warn(summary: impl Into<String>) -> Self {
        Self::new(Outcome::Warn, summary)
    }

    /// Makes the report of a prerequisite that is not met.
    pub fn fail(summary: impl Into<String>) -> Self {
        Self::new(Outcome::Fail, summary)
    }

    /// Makes the report of a check that could not decide. The summary says why.
    pub fn unknown(summary: impl Into<String>) -> Self {
        Self::new(Outcome::Unknown, summary)
    }

    /// Adds a detail. Details are shown in the order of the calls.
    #[must_use]
    pub fn fact(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.push(Fact { name: name.into(), value: value.into() });
        self
    }

    /// Sets what the user can do about the finding.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Sets how long the report may be reused. By default the host decides.
    #[must_use]
    pub fn valid_for(mut self, time: Duration) -> Self {
        self.valid_for = Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self
    }
}
