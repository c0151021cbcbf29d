//! Derives events from the states of sessions: the begin of a need for a person, and of a failure. Pure.
//!
//! The tracker is stored beside the position, so both belong to the same event of the feed.

use std::collections::{BTreeMap, BTreeSet};

use agentd_api::feed::SessionBrief;
use agentd_api::hook::{NEEDS_ATTENTION, SESSION_FAILED};
use agentd_api::session::{ConditionStatus, ConditionType, Phase};
use agentd_api::{PermissionId, SessionId};
use serde::{Deserialize, Serialize};

/// The sessions that need a person, and those that failed, at a position of the feed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tracker {
    /// Sessions whose condition `NeedsAttention` is True, with their open questions.
    needing: BTreeMap<SessionId, BTreeSet<PermissionId>>,
    /// Sessions in the phase `failed`.
    failed: BTreeSet<SessionId>,
}

impl Tracker {
    /// Takes in the state of a session, and returns the names of the events that begin with it.
    ///
    /// States are published at intervals. So a need whose former questions are all answered is another need.
    pub(crate) fn take(&mut self, brief: &SessionBrief) -> Vec<&'static str> {
        let mut begun = Vec::new();
        if reason(brief).is_some() {
            let open: BTreeSet<PermissionId> = brief.permissions.iter().cloned().collect();
            let before = self.needing.insert(brief.id.clone(), open.clone());
            if before.is_none_or(|before| !before.is_empty() && !open.is_empty() && before.is_disjoint(&open)) {
                begun.push(NEEDS_ATTENTION);
            }
        } else {
            self.needing.remove(&brief.id);
        }
        if brief.phase == Phase::Failed {
            if self.failed.insert(brief.id.clone()) {
                begun.push(SESSION_FAILED);
            }
        } else {
            self.failed.remove(&brief.id);
        }
        begun
    }

    /// Forgets a session that was removed.
    pub(crate) fn remove(&mut self, id: &SessionId) {
        self.needing.remove(id);
        self.failed.remove(id);
    }

    /// Forgets every session that is not among these.
    pub(crate) fn keep(&mut self, sessions: &[SessionBrief]) {
        let ids: BTreeSet<&SessionId> = sessions.iter().map(|brief| &brief.id).collect();
        self.needing.retain(|id, _| ids.contains(id));
        self.failed.retain(|id| ids.contains(id));
    }
}

/// Returns the reason of the condition `NeedsAttention`, if it is True.
pub(crate) fn reason(brief: &SessionBrief) -> Option<&str> {
    let needs = brief.conditions.iter().find(|condition| condition.kind == ConditionType::NeedsAttention);
    needs.filter(|condition| condition.status == ConditionStatus::True).map(|condition| condition.reason.as_str())
}

#[cfg(test)]
mod tests {
    use agentd_api::feed::BriefCondition;

    use super::*;

    fn brief(phase: Phase, permissions: &[&str], needs: bool) -> SessionBrief {
        let condition = BriefCondition {
            kind: ConditionType::NeedsAttention,
            status: ConditionStatus::True,
            reason: "PermissionRequested".to_owned(),
        };
        SessionBrief {
            id: "aaaaaaaaaaaa".parse().unwrap(),
            name: None,
            parent: None,
            agent: None,
            directory: "/".into(),
            place: None,
            labels: agentd_api::label::Labels::new(),
            phase,
            message: None,
            turn: None,
            permissions: permissions.iter().map(|id| id.parse().unwrap()).collect(),
            conditions: needs.then_some(condition).into_iter().collect(),
        }
    }

    #[test]
    fn a_need_fires_once_and_again_after_its_end() {
        let mut tracker = Tracker::default();
        let mut take = |permissions: &[&str], needs| tracker.take(&brief(Phase::Busy, permissions, needs));
        assert_eq!(take(&[], false), [""; 0]);
        assert_eq!(take(&["p1"], true), [NEEDS_ATTENTION]);
        assert_eq!(take(&["p1"], true), [""; 0], "nothing changed");
        assert_eq!(take(&["p1", "p2"], true), [""; 0], "the person is told already");
        assert_eq!(take(&["p2"], true), [""; 0]);
        assert_eq!(take(&["p3"], true), [NEEDS_ATTENTION], "p2 is answered, so this is another need");
        assert_eq!(take(&[], false), [""; 0]);
        assert_eq!(take(&["p4"], true), [NEEDS_ATTENTION]);
    }

    #[test]
    fn a_failure_fires_once_and_the_tracker_survives_storing() {
        let mut tracker = Tracker::default();
        assert_eq!(tracker.take(&brief(Phase::Failed, &[], true)), [NEEDS_ATTENTION, SESSION_FAILED]);
        let mut stored: Tracker = serde_json::from_str(&serde_json::to_string(&tracker).unwrap()).unwrap();
        assert_eq!(stored, tracker);
        assert_eq!(stored.take(&brief(Phase::Failed, &[], true)), [""; 0]);
        stored.keep(&[]);
        assert_eq!(stored, Tracker::default());
        tracker.remove(&"aaaaaaaaaaaa".parse().unwrap());
        assert_eq!(tracker, Tracker::default());
    }
}
