//! Agents that lack a login, as their sessions show it.

use std::collections::BTreeMap;

use agentd_api::reason::AUTHENTICATION_REQUIRED;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, SessionView};

/// Returns the agents that lack a login now, each with the session and the condition that show it. Of each agent, the
/// last attempt to open a conversation counts, or its last refusal.
pub fn refused_logins(sessions: &[SessionView]) -> BTreeMap<String, (&SessionView, &Condition)> {
    let mut last: BTreeMap<String, (&SessionView, &Condition)> = BTreeMap::new();
    for view in sessions {
        let named = view.spec.agent.as_ref().map(ToString::to_string);
        let command = || view.spec.command.as_ref()?.first().cloned();
        let Some(agent) = named.or_else(command) else { continue };
        for condition in view.status.conditions.iter().filter(|condition| counts(condition)) {
            let newer = |(_, known): &(_, &Condition)| known.last_transition_time < condition.last_transition_time;
            if last.get(&agent).is_none_or(newer) {
                last.insert(agent.clone(), (view, condition));
            }
        }
    }
    last.retain(|_, (_, condition)| is_refusal(condition));
    last
}

fn counts(condition: &Condition) -> bool {
    match condition.kind {
        ConditionType::AuthenticationRequired => condition.status == ConditionStatus::True,
        ConditionType::ConversationReady => condition.status != ConditionStatus::Unknown,
        _ => false,
    }
}

fn is_refusal(condition: &Condition) -> bool {
    condition.kind == ConditionType::AuthenticationRequired || condition.reason == AUTHENTICATION_REQUIRED
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(id: &str, minute: u8, conditions: &[(&str, &str, &str)]) -> SessionView {
        let time = format!("2026-01-01T00:{minute:02}:00Z");
        let condition = |(kind, status, reason): &(&str, &str, &str)| {
            serde_json::json!({
                "type": kind, "status": status, "reason": reason, "message": "it says why",
                "observed_generation": 1, "last_transition_time": time,
            })
        };
        let conditions: Vec<_> = conditions.iter().map(condition).collect();
        serde_json::from_value(serde_json::json!({
            "id": id, "generation": 1, "created": time, "spec": { "directory": "/work", "agent": "a" },
            "status": {
                "phase": "starting", "observed_generation": 1, "conditions": conditions, "launches": 1,
                "last_seq": 1, "updated": time,
            },
        }))
        .unwrap()
    }

    #[test]
    fn the_last_attempt_or_refusal_of_an_agent_counts() {
        let ready = |status, reason| [("ConversationReady", status, reason)];
        let refusals = [
            session("refused", 1, &ready("False", AUTHENTICATION_REQUIRED)),
            session("lost", 1, &[("AuthenticationRequired", "True", "LoginLost")]),
        ];
        for refused in &refusals {
            let is_refused = |later: &SessionView| {
                let sessions = [refused.clone(), later.clone()];
                let found = refused_logins(&sessions);
                found.get("a").is_some_and(|(view, _)| view.id == refused.id)
            };
            assert!(is_refused(&session("begun", 2, &[])));
            assert!(is_refused(&session("again", 2, &ready("Unknown", "Starting"))));
            assert!(is_refused(&session("earlier", 0, &ready("True", "NewConversation"))));
            assert!(!is_refused(&session("opened", 2, &ready("True", "NewConversation"))));
            assert!(!is_refused(&session("other", 2, &ready("False", "Other"))));
        }
    }
}
