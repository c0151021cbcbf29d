//! Checks whether the environments of active sessions satisfy their tools.

use agentd_api::doctor::{Check, Finding};
use agentd_api::prerequisite::Outcome;
use agentd_api::session::{ConditionStatus, ConditionType, SessionView};

use agentd_session::generation::Generation;
use agentd_session::{kept, missing_tools};

/// Maximum number of sessions checked.
const MOST: usize = 20;

/// Reports each active session's missing tools, and the warnings of its last launch.
pub(super) async fn check(generation: &Generation, views: &[SessionView]) -> Check {
    let mut findings = Vec::new();
    let active = views.iter().filter(|view| view.status.phase.is_active()).take(MOST);
    let mut looked = 0;
    for view in active {
        let Ok(Some(kept)) = kept(generation, &view.id).await else { continue };
        looked += 1;
        let label = view.spec.name.as_ref().map_or_else(|| view.id.to_string(), ToString::to_string);
        let mut warnings: Vec<String> = missing_tools(generation, &view.spec, &kept.last)
            .await
            .into_iter()
            .map(|warning| warning.message)
            .collect();
        let mut conditions = view.status.conditions.iter();
        let invalid = conditions.find(|condition| condition.kind == ConditionType::EnvironmentValid);
        warnings.extend(invalid.filter(|one| one.status == ConditionStatus::False).map(|one| one.message.clone()));
        if !warnings.is_empty() {
            let summary = format!("session {label}: {}", warnings.join("; "));
            findings.push(Finding::bare(Outcome::Warn, summary).run(format!("agentctl validate {label}")));
        }
    }
    let good = match looked {
        0 => "no active session has a stored environment".to_owned(),
        1 => "the environment of 1 session has all known requirements".to_owned(),
        _ => format!("the environments of {looked} sessions have all known requirements"),
    };
    Check::of("environments", &findings, good)
}
