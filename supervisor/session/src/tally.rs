//! Numbers of sessions by phase, for the status line of the service manager.

use agentd_api::session::{ConditionStatus, ConditionType, Phase};

use super::registry::Sessions;

/// Order of the phases in the status line: active phases first.
const PHASES: [Phase; 12] = [
    Phase::Busy,
    Phase::Limited,
    Phase::Idle,
    Phase::Starting,
    Phase::Preparing,
    Phase::Waiting,
    Phase::BackingOff,
    Phase::Stopping,
    Phase::Pending,
    Phase::Completed,
    Phase::Stopped,
    Phase::Failed,
];

/// Numbers of sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionCounts {
    pub sessions: usize,
    /// Phases that at least one session is in.
    pub phases: Vec<(Phase, usize)>,
    /// Number of active sessions with a failed prerequisite.
    pub missing: usize,
    /// Number of sessions whose keeper does not answer.
    pub silent: usize,
    pub unreadable: usize,
}

impl Sessions {
    pub fn tally(&self) -> SessionCounts {
        let mut counts = PHASES.map(|phase| (phase, 0));
        let mut tally = SessionCounts { unreadable: self.unreadable().len(), ..SessionCounts::default() };
        self.each_view(|view| {
            let status = &view.status;
            tally.sessions += 1;
            if let Some((_, count)) = counts.iter_mut().find(|(phase, _)| *phase == status.phase) {
                *count += 1;
            }
            let misses = status.conditions.iter().any(|condition| {
                condition.kind == ConditionType::PrerequisitesMet && condition.status == ConditionStatus::False
            });
            let kinds = status.conditions.iter().map(|condition| condition.kind);
            tally.silent += kinds.filter(|kind| *kind == ConditionType::KeeperAnswers).count();
            tally.missing += usize::from(misses && status.phase.is_active());
        });
        tally.phases = counts.into_iter().filter(|(_, count)| *count > 0).collect();
        tally
    }
}
