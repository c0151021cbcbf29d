//! Shows an edit of the configuration file that the daemon has made, and what followed from it.

use std::path::Path;

use agentd_api::configuration::{Consequence, Mistake};
use agentd_api::keep::KeepLine;

/// Formats the file's name with the removed and the added lines.
pub(super) fn diff(file: &Path, lines: &[KeepLine]) -> String {
    let head = format!("{}:{}\n", file.display(), lines.first().map_or(1, |line| line.line));
    let line = |line: &KeepLine| format!("{}{}\n", if line.added { '+' } else { '-' }, line.text);
    std::iter::once(head).chain(lines.iter().map(line)).collect()
}

/// Returns remarks about the mistakes of the configuration after the reload, and whether the edit is in force.
pub(super) fn after_reload(mistakes: &[Mistake]) -> (Vec<String>, bool) {
    let told = |mistake: &Mistake| format!("{mistake}; {}", mistake.consequence.explained());
    let mut remarks: Vec<String> = mistakes.iter().map(told).collect();
    let is_in_force = mistakes.iter().all(|mistake| mistake.consequence == Consequence::LeftOut);
    if !is_in_force {
        remarks.push(
            "the line is written, but not in force until these mistakes are corrected: agentctl reload".to_owned(),
        );
    }
    (remarks, is_in_force)
}
