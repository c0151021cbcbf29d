//! How many sessions there are, by what they are at: for the one line that a service manager shows.

use agentd_api::session::{ConditionStatus, ConditionType, Phase};

use super::registry::Sessions;

/// What is active first.
const PHASES: [Phase; 10] = [
    Phase::Busy,
    Phase::Idle,
    Phase::Starting,
    Phase::Preparing,
    Phase::Waiting,
    Phase::BackingOff,
    Phase::Stopping,
    Phase::Pending,
    Phase::Stopped,
    Phase::Failed,
];

/// The numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) sessions: usize,
    /// Those phases that some are in.
    pub(crate) phases: Vec<(Phase, usize)>,
    /// Active ones that miss something of what they need.
    pub(crate) missing: usize,
    /// Sessions whose keeper does not answer.
    pub(crate) silent: usize,
    pub(crate) unreadable: usize,
}

impl Sessions {
    pub(crate) fn tally(&self) -> Tally {
        let mut counts = PHASES.map(|phase| (phase, 0));
        let mut tally = Tally { unreadable: self.unreadable().len(), ..Tally::default() };
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
