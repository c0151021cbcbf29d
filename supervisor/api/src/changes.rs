//! How the variables of a session changed from one launch to the next, in words.

use crate::event::{VariableChange, VariableChangeKind};

/// Describes the changes in one line: `EDITOR changed by env-script, OLD removed by whitelist`.
pub fn describe(changes: &[VariableChange]) -> String {
    let words: Vec<String> = changes
        .iter()
        .map(|change| {
            let what = match change.kind {
                VariableChangeKind::Added => "added",
                VariableChangeKind::Removed => "removed",
                VariableChangeKind::Changed | VariableChangeKind::Unknown => "changed",
            };
            match (&change.after, &change.before) {
                (Some(provider), _) => format!("{} {what} by {provider}", change.name),
                // No step removed the variable: the step that set it did not set it this time.
                (None, Some(provider)) => format!("{} {what}, {provider} sets it no longer", change.name),
                (None, None) => format!("{} {what}", change.name),
            }
        })
        .collect();
    words.join(", ")
}
