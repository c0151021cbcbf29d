//! Whether the environments of the sessions that run have what their tools need.

use agentd_api::doctor::{Check, Finding};
use agentd_api::prerequisite::Outcome;
use agentd_api::session::{ConditionStatus, ConditionType, SessionView};

use crate::session::{kept, missing_tools};
use crate::world::World;

/// The most sessions that are looked at.
const MOST: usize = 20;

/// Says what each active session's environment lacks, and what its last launch warned of.
pub(super) async fn check(world: &World, views: &[SessionView]) -> Check {
    let mut findings = Vec::new();
    let active = views.iter().filter(|view| view.status.phase.is_active()).take(MOST);
    let mut looked = 0;
    for view in active {
        let Ok(Some(kept)) = kept(world, &view.id).await else { continue };
        looked += 1;
        let label = view.spec.name.as_ref().map_or_else(|| view.id.to_string(), ToString::to_string);
        let mut said: Vec<String> =
            missing_tools(world, &view.spec, &kept.last).await.into_iter().map(|warning| warning.message).collect();
        let mut conditions = view.status.conditions.iter();
        let invalid = conditions.find(|condition| condition.kind == ConditionType::EnvironmentValid);
        said.extend(invalid.filter(|one| one.status == ConditionStatus::False).map(|one| one.message.clone()));
        if !said.is_empty() {
            let summary = format!("session {label}: {}", said.join("; "));
            findings.push(Finding::bare(Outcome::Warn, summary).run(format!("agentctl validate {label}")));
        }
    }
    let good = match looked {
        0 => "no session runs whose environment could lack something".to_owned(),
        1 => "the environment of 1 session lacks nothing that is known of".to_owned(),
        _ => format!("the environments of {looked} sessions lack nothing that is known of"),
    };
    Check::of("environments", &findings, good)
}
