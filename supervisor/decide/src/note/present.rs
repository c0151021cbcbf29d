//! The note that a resume at this moment would give, for a preview. Nothing is recorded.

use std::sync::Arc;

use agentd_api::event::{LaunchReason, VariableChange};
use agentd_api::facts::{ScriptDigests, SessionFacts};
use agentd_api::prerequisite::CheckReport;
use agentd_api::staleness::StaleFinding;

use crate::state::State;

/// Findings of a resume at this moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Present {
    /// Differences between the environment of the last launch and that of a launch now.
    pub changes: Vec<VariableChange>,
    /// Results of the session's prerequisites that are known without a check.
    pub prerequisites: Vec<CheckReport>,
    /// Files of the context that do not exist.
    pub context_missing: Vec<String>,
    /// Facts about the directory, and digests of the scripts. `None` if they were not read.
    pub facts: Option<SessionFacts>,
    pub scripts: Option<ScriptDigests>,
    /// Staleness that a launch would find.
    pub findings: Vec<StaleFinding>,
}

impl Present {
    /// Returns the state with which the first prompt after a resume would be sent.
    #[must_use]
    pub fn resume(self, mut state: State) -> State {
        state.pending_note.launched(LaunchReason::Resume);
        state.pending_note.changed(&self.changes);
        (state.forced_by, state.degraded_by) = (None, None);
        state.degraded.clear();
        state.prerequisites = self.prerequisites;
        state.context_missing = self.context_missing;
        state.facts.last = self.facts.map(Arc::new).or(state.facts.last);
        state.facts.scripts = self.scripts.map(Arc::new).or(state.facts.scripts);
        state.staleness.findings = self.findings;
        state
    }
}
