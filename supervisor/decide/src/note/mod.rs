//! The note before the first prompt after a resume or a restart: its content, folded from the journal. Pure.
//!
//! [`PendingNote`] collects what happened since the last turn started. `turn.started` clears it, and holds the note
//! in the same batch as the prompt. A daemon killed around that write therefore either repeats the decision or
//! finds it recorded. [`variables`] adds what the rest of the state knows, and `agentd-note` renders the result.
//!
//! A note contains only names of variables and providers. A value would be stored in the journal, and the agent can
//! read its own environment. Names and texts are made safe here, before a template sees them.

mod present;
#[cfg(test)]
mod tests;
mod variables;

use std::collections::BTreeMap;
use std::path::Path;

use agentd_api::event::{EnvironmentBuilt, LaunchReason, OpenedBy, VariableChange, VariableChangeKind};
use agentd_api::session::ResumeNote;
use agentd_note::Template;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::acp::Call;
use crate::next::Facts;
use crate::state::State;

pub use present::Present;
pub use variables::variables;

/// Maximum number of interrupted tool calls that are remembered.
const CALLS: usize = 16;
/// Maximum length in bytes of a title that is remembered.
const TITLE: usize = 1024;

/// Events since the last turn started, for the note before the next turn.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingNote {
    /// Whether any turn was started. Before the first turn the agent has nothing to lose, and no earlier
    /// environment to compare.
    worked: bool,
    /// Reason for the agent's new process. A resume takes precedence over a restart.
    replaced: Option<LaunchReason>,
    /// Whether no turn was started in the launch, and none before.
    #[serde(default)]
    is_first: bool,
    /// Whether the conversation is new although an earlier one existed.
    forgotten: bool,
    changes: BTreeMap<String, VariableChange>,
    /// End of the last turn, or of the agent if that is not known.
    #[serde(default)]
    rested: Option<Timestamp>,
    /// The end of the agent's process, if it was not requested.
    #[serde(default)]
    crash: Option<String>,
    /// Tool calls of the last turn that did not end.
    #[serde(default)]
    interrupted: Vec<ToolCallName>,
}

/// The parts of a tool call that people recognise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallName {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

impl ToolCallName {
    /// Returns the names of the calls with these ids. A call that is not known has only its id.
    pub fn of<'a>(ids: impl IntoIterator<Item = &'a String>, known: impl Fn(&str) -> Option<Self>) -> Vec<Self> {
        let named = |id: &String| known(id).unwrap_or_else(|| Self { id: id.clone(), ..Self::default() });
        ids.into_iter().take(CALLS).map(named).collect()
    }
}

impl From<&Call> for ToolCallName {
    fn from(call: &Call) -> Self {
        let cut = |text: &String| text[..text.floor_char_boundary(TITLE)].to_owned();
        Self { id: call.id.clone(), title: call.title.as_ref().map(cut), kind: call.kind.as_ref().map(cut) }
    }
}

/// The note that precedes a prompt.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The note. `None` if the prompt is sent without one.
    pub text: Option<String>,
    /// Why the note has the built-in template although another is configured.
    pub error: Option<String>,
}

impl PendingNote {
    /// Returns the default for a state stored without this field. Assumes an earlier turn: a superfluous note is
    /// better than a missing one.
    pub fn of_older_state() -> Self {
        Self { worked: true, ..Self::default() }
    }

    pub fn launched(&mut self, reason: LaunchReason) {
        self.is_first = !self.worked;
        if self.worked && self.replaced != Some(LaunchReason::Resume) {
            self.replaced = Some(reason);
        }
    }

    pub fn built(&mut self, built: &EnvironmentBuilt) {
        self.changed(&built.changes);
    }

    /// Adds changes of the environment to the earlier ones.
    fn changed(&mut self, changes: &[VariableChange]) {
        if !self.worked {
            return;
        }
        for change in changes {
            let Some(earlier) = self.changes.remove(&change.name) else {
                self.changes.insert(change.name.clone(), change.clone());
                continue;
            };
            let kind = match (earlier.kind, change.kind) {
                // The variable was added and removed again before the agent saw it.
                (VariableChangeKind::Added, VariableChangeKind::Removed) => continue,
                (VariableChangeKind::Added, _) => VariableChangeKind::Added,
                (VariableChangeKind::Removed, VariableChangeKind::Added) => VariableChangeKind::Changed,
                (_, kind) => kind,
            };
            let merged = VariableChange { kind, before: earlier.before, ..change.clone() };
            self.changes.insert(merged.name.clone(), merged);
        }
    }

    /// Records that a conversation was opened. `before` reports whether the session had a conversation already.
    pub fn opened(&mut self, by: OpenedBy, before: bool) {
        self.forgotten |= self.worked && before && matches!(by, OpenedBy::New | OpenedBy::NewAfterLoss);
    }

    pub fn turn_started(&mut self) {
        *self = Self { worked: true, ..Self::default() };
    }

    /// Records the end of a turn that had started, with its tool calls that did not end.
    pub fn turn_ended(&mut self, time: Timestamp, interrupted: Vec<ToolCallName>) {
        (self.rested, self.interrupted) = (Some(time), interrupted);
    }

    /// Records the end of the agent's process. `crash` describes an end that was not requested.
    pub fn agent_exited(&mut self, time: Timestamp, crash: Option<String>) {
        if self.worked {
            self.rested.get_or_insert(time);
            self.crash = crash;
        }
    }
}

/// Inputs of a note besides the state.
#[derive(Debug, Clone, Copy)]
pub struct NoteTerms<'a> {
    /// The session's directory.
    pub directory: &'a Path,
    pub mode: ResumeNote,
    pub template: &'a Template,
    pub now: Timestamp,
}

impl<'a> From<&Facts<'a>> for NoteTerms<'a> {
    fn from(facts: &Facts<'a>) -> Self {
        Self { directory: &facts.spec.directory, mode: facts.note, template: facts.template, now: facts.now }
    }
}

/// Returns the note for the next prompt.
pub fn note(state: &State, terms: &NoteTerms<'_>) -> Note {
    let Some(variables) = variables(state, terms) else { return Note::default() };
    let rendered = agentd_note::render(terms.template, &variables);
    Note { text: rendered.note, error: rendered.error.map(|error| error.to_string()) }
}
