//! Derives texts for the user from a session's view: its agent, its progress and its missing requirements.

use agentd_api::degraded::MissingKind;
pub use agentd_api::list::agent_of as agent;
use agentd_api::reason::{self, is_progress};
use agentd_api::session::{
    Condition, ConditionStatus, ConditionType, PermissionOrigin, PermissionRequest, Phase, SessionView,
};
use agentd_api::staleness::StalePolicy;

/// Returns the progress of a launch that waits for something besides prerequisites: repositories, plugins ("compiling
/// NAME"), a valid configuration, or the queue of a place.
pub fn progress(view: &SessionView) -> Option<&str> {
    if let Some(message) = place(view) {
        return Some(message);
    }
    let is_it = |condition: &&Condition| {
        matches!(
            condition.kind,
            ConditionType::RepositoriesReady | ConditionType::WorkflowReady | ConditionType::EnvironmentReady
        ) && is_progress(&condition.reason)
    };
    let condition = view.status.conditions.iter().find(is_it).filter(|_| view.status.phase == Phase::Preparing);
    condition.map(|condition| condition.message.as_str())
}

/// Returns the message of the place that has not started the agent yet.
fn place(view: &SessionView) -> Option<&str> {
    const WAITS: [&str; 3] = [reason::SUBMITTED, reason::QUEUED, reason::STARTING];
    let may_wait = matches!(view.status.phase, Phase::Preparing | Phase::Starting | Phase::Waiting);
    let mut conditions = view.status.conditions.iter().filter(|_| may_wait);
    let placed = conditions.find(|one| one.kind == ConditionType::Placed && WAITS.contains(&&*one.reason))?;
    Some(&placed.message)
}

/// Returns a missing requirement of the session: space for its journal, or prerequisites. The session waits for
/// them, has failed because they are missing, or lost them while running.
pub fn missing(view: &SessionView) -> Option<String> {
    let is_refused = |condition: &&Condition| {
        condition.kind == ConditionType::JournalWritable && condition.status == ConditionStatus::False
    };
    if let Some(refused) = view.status.conditions.iter().find(is_refused) {
        return Some(refused.message.clone());
    }
    let phase = view.status.phase;
    let of_interest = phase.is_active() || matches!(phase, Phase::BackingOff | Phase::Failed);
    let mut conditions = view.status.conditions.iter();
    let met = conditions.find(|condition| condition.kind == ConditionType::PrerequisitesMet)?;
    (of_interest && met.status == ConditionStatus::False).then(|| met.message.clone())
}

/// Returns the rate limit for whose end the next prompts wait.
pub fn limit(view: &SessionView) -> Option<&str> {
    let mut conditions = view.status.conditions.iter().filter(|_| view.status.phase == Phase::Limited);
    conditions.find(|one| one.kind == ConditionType::RateLimited).map(|one| one.message.as_str())
}

/// Returns agentd's own question, for which the launch of a stale session waits.
pub fn question(view: &SessionView) -> Option<&PermissionRequest> {
    view.status.permissions.iter().find(|request| request.origin == PermissionOrigin::Agentd)
}

/// Returns the kinds of staleness that deserve a warning, or `None`.
pub fn stale(view: &SessionView) -> Option<String> {
    let findings = view.status.staleness.iter().filter(|finding| finding.policy >= StalePolicy::Warn);
    let kinds: Vec<&str> = findings.map(|finding| finding.kind.as_str()).collect();
    (!kinds.is_empty()).then(|| kinds.join(", "))
}

/// Returns the missing requirement of the session and the parts that its degraded launch left out.
pub fn lacking(view: &SessionView) -> Option<String> {
    let is_up = view.status.phase.is_active() || matches!(view.status.phase, Phase::BackingOff);
    // The condition of the prerequisites says which of them are still missing.
    let parts = view.status.degraded.iter().filter(|part| is_up && part.kind != MissingKind::Prerequisite);
    let parts: Vec<String> = parts.map(|part| format!("{} {}", part.kind.as_str(), part.name)).collect();
    let without = (!parts.is_empty()).then(|| format!("without {}", parts.join(", ")));
    match (without, missing(view)) {
        (Some(without), Some(missing)) => Some(format!("{without}; {missing}")),
        (without, missing) => without.or(missing),
    }
}
