//! Assigns each session to a group of the list. The page of `agentctl ui` has the same rule.

use agentd_api::feed::SessionBrief;
use agentd_api::session::{ConditionStatus, ConditionType, Phase};

/// Group of the list, in the order of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// The session needs a person, whatever its phase is.
    NeedsYou,
    Working,
    Idle,
    /// The session waits for something outside: a prerequisite, a rate limit, a restart.
    WaitingForItsWorld,
    Ended,
}

impl Group {
    /// Returns the group of a session.
    pub(super) fn of(brief: &SessionBrief) -> Self {
        if attention(brief).is_some() {
            return Self::NeedsYou;
        }
        match brief.phase {
            // A phase of a later version is not taken for an end.
            Phase::Busy | Phase::Starting | Phase::Preparing | Phase::Stopping | Phase::Unknown => Self::Working,
            Phase::Idle => Self::Idle,
            Phase::Pending | Phase::Waiting | Phase::BackingOff | Phase::Limited => Self::WaitingForItsWorld,
            Phase::Stopped | Phase::Failed | Phase::Completed => Self::Ended,
        }
    }

    /// Returns the title of the group.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::NeedsYou => "needs you",
            Self::Working => "working",
            Self::Idle => "idle",
            Self::WaitingForItsWorld => "waiting for its world",
            Self::Ended => "ended",
        }
    }
}

/// Returns the reason why a session needs a person: that of the condition `NeedsAttention`.
pub(super) fn attention(brief: &SessionBrief) -> Option<&str> {
    let is_it = |kind, status| kind == ConditionType::NeedsAttention && status == ConditionStatus::True;
    let condition = brief.conditions.iter().find(|condition| is_it(condition.kind, condition.status))?;
    Some(&condition.reason)
}

/// Returns the state of a session in words: its phase, and the reason why it needs a person.
pub(super) fn state(brief: &SessionBrief) -> String {
    let phase = brief.phase.as_str();
    match attention(brief) {
        Some(reason) => format!("{phase}: {}", words(reason)),
        None => phase.to_owned(),
    }
}

/// Writes a reason in CamelCase as words.
fn words(reason: &str) -> String {
    let mut text = String::new();
    for c in reason.chars() {
        if c.is_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.extend(c.to_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn brief(phase: Phase, attention: Option<&str>) -> SessionBrief {
        let condition = attention
            .map(|status| json!({ "type": "NeedsAttention", "status": status, "reason": "PermissionRequested" }));
        let other = json!({ "type": "PrerequisitesMet", "status": "True", "reason": "Met" });
        let conditions: Vec<_> = std::iter::once(other).chain(condition).collect();
        serde_json::from_value(json!({ "id": "k", "directory": "/d", "phase": phase, "conditions": conditions }))
            .unwrap()
    }

    #[test]
    fn each_phase_has_its_group_and_a_need_comes_first() {
        let groups = [
            (Phase::Pending, Group::WaitingForItsWorld),
            (Phase::Preparing, Group::Working),
            (Phase::Waiting, Group::WaitingForItsWorld),
            (Phase::Starting, Group::Working),
            (Phase::Idle, Group::Idle),
            (Phase::Busy, Group::Working),
            (Phase::Limited, Group::WaitingForItsWorld),
            (Phase::BackingOff, Group::WaitingForItsWorld),
            (Phase::Stopping, Group::Working),
            (Phase::Stopped, Group::Ended),
            (Phase::Failed, Group::Ended),
            (Phase::Completed, Group::Ended),
        ];
        assert_eq!(groups.map(|(phase, _)| phase), Phase::ALL);
        for (phase, group) in groups {
            for (status, expected) in
                [(None, group), (Some("False"), group), (Some("Unknown"), group), (Some("True"), Group::NeedsYou)]
            {
                assert_eq!(Group::of(&brief(phase, status)), expected, "{phase:?} {status:?}");
            }
        }
        assert_eq!(Group::of(&brief(Phase::Unknown, None)), Group::Working);
    }

    #[test]
    fn the_state_names_the_need() {
        assert_eq!(state(&brief(Phase::Busy, Some("True"))), "busy: permission requested");
        assert_eq!(state(&brief(Phase::BackingOff, None)), "backing-off");
    }
}
