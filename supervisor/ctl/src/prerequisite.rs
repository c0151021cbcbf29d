//! What one check of a prerequisite found, as text: for the table of checks, and for a refusal that lists them.

use agentd_api::prerequisite::CheckReport;

use crate::terminal::Screen;

/// The outcome and what was found, and below it the facts and the remedy.
pub(crate) fn described(report: &CheckReport, screen: Screen) -> String {
    let outcome = report.outcome.as_str();
    let mut lines = vec![format!("{} ({outcome}): {}\n", screen.line(&report.name), screen.line(&report.summary))];
    let facts = report.facts.iter().map(|fact| (fact.name.as_str(), fact.value.as_str()));
    let all = facts.chain(report.remedy.as_deref().map(|remedy| ("remedy", remedy)));
    lines.extend(all.map(|(name, value)| format!("  {}: {}\n", screen.line(name), screen.line(value))));
    lines.concat()
}
