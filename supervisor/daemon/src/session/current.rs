//! Whether what the agent has still holds: what the condition `EnvironmentCurrent` says of things that expire. Pure.

use agentd_api::event::StaleVariable;
use agentd_api::session::{ConditionStatus, ConditionType};
use jiff::Timestamp;

use super::batch::Batch;
use super::next::{self, Facts};
use super::state::State;

/// A condition's status, reason and message.
pub(super) type Standing = (ConditionStatus, &'static str, String);

const KIND: ConditionType = ConditionType::EnvironmentCurrent;
const FAILED: &str = "RefreshFailed";
const EXPIRING: &str = "VariablesExpiring";

/// After a refresh that left these variables as they were; `over` names what had expired before it arrived.
pub(super) fn refreshed(stale: &[StaleVariable], over: &[String], now: Timestamp) -> Standing {
    if !over.is_empty() {
        let message = format!(
            "what was asked for again had expired when it came: {}. It is asked for again, after pauses that double",
            over.join(", ")
        );
        return (ConditionStatus::False, "ExpiredOnArrival", message);
    }
    if stale.is_empty() {
        let message = "what holds for a limited time was asked for again, and the agent has it";
        return (ConditionStatus::True, "Refreshed", message.to_owned());
    }
    let one = |one: &StaleVariable| format!("{} of {} since {}", one.name, one.provider, one.since);
    if stale.iter().all(|one| one.since > now) {
        let one = |one: &StaleVariable| format!("{} of {} until {}", one.name, one.provider, one.since);
        let message = format!(
            "there are newer values, and a running program's variables cannot be changed. What the agent has still holds: {}. \
             Stop the session and resume it before then",
            stale.iter().map(one).collect::<Vec<_>>().join(", ")
        );
        return (ConditionStatus::True, EXPIRING, message);
    }
    let message = format!(
        "what the agent has holds no longer, and a running program's variables cannot be changed: {}. \
         Stop the session and resume it, and its agent has what they are now",
        stale.iter().map(one).collect::<Vec<_>>().join(", ")
    );
    (ConditionStatus::False, "VariablesExpired", message)
}

/// After a refresh that failed: what the agent has holds until its own end.
pub(super) fn failed(state: &State, error: &str, now: Timestamp) -> Standing {
    let mut message =
        format!("what holds for a limited time could not be asked for again, and is tried again: {error}");
    if let Some(expires) = state.expires {
        message = format!("{message}; what the agent has holds until {expires}");
    }
    let holds = first(state).is_none_or(|first| first > now);
    if !state.stale.is_empty() {
        message = format!("{message}; {}", refreshed(&state.stale, &[], now).2);
    }
    (if holds { ConditionStatus::True } else { ConditionStatus::False }, FAILED, message)
}

/// When something that the agent has holds no longer, while the condition says that all of it does.
pub(super) fn end(state: &State) -> Option<Timestamp> {
    let holds = state.condition(KIND).is_some_and(|known| known.status == ConditionStatus::True);
    first(state).filter(|_| holds)
}

fn first(state: &State) -> Option<Timestamp> {
    state.stale.iter().map(|one| one.since).chain(state.expires).min()
}

/// What is recorded at that moment.
pub(super) fn ended(state: &State, at: Timestamp, facts: &Facts<'_>) -> Batch {
    let known = state.condition(KIND);
    let (_, reason, message) = match known.map(|known| known.reason.as_str()) {
        Some(FAILED) => (ConditionStatus::False, FAILED, known.map(|known| known.message.clone()).unwrap_or_default()),
        Some(EXPIRING) => refreshed(&state.stale, &[], at.max(facts.now)),
        _ => {
            let message = format!("what holds for a limited time held until {at}, and is being asked for again");
            (ConditionStatus::False, "Expired", message)
        }
    };
    Batch::of(next::condition(state, facts, KIND, ConditionStatus::False, reason, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn stale(since: i64) -> StaleVariable {
        StaleVariable { name: "API_TOKEN".to_owned(), provider: "corp".to_owned(), since: at(since) }
    }

    #[test]
    fn what_holds_no_longer_is_named_with_its_provider_and_since_when() {
        let (status, reason, message) = refreshed(&[stale(100)], &[], at(100));
        assert_eq!((status, reason), (ConditionStatus::False, "VariablesExpired"));
        assert!(message.contains("API_TOKEN of corp since 1970-01-01T00:01:40Z"), "{message}");
        assert_eq!(refreshed(&[], &[], at(100)).0, ConditionStatus::True);
    }

    #[test]
    fn what_is_another_before_its_end_still_holds_until_then() {
        let (status, reason, message) = refreshed(&[stale(100)], &[], at(99));
        assert_eq!((status, reason), (ConditionStatus::True, "VariablesExpiring"));
        assert!(message.contains("API_TOKEN of corp until 1970-01-01T00:01:40Z"), "{message}");
        // Beside one that is over, both are named.
        assert_eq!(refreshed(&[stale(90), stale(100)], &[], at(99)).0, ConditionStatus::False);
    }

    #[test]
    fn a_refresh_that_fails_takes_nothing_away_before_its_end() {
        let mut state = State::new(at(0));
        state.expires = Some(at(100));
        let (status, reason, message) = failed(&state, "no network", at(99));
        assert_eq!((status, reason), (ConditionStatus::True, FAILED));
        assert!(message.contains("no network") && message.contains("holds until 1970-01-01T00:01:40Z"), "{message}");
        assert_eq!(failed(&state, "no network", at(100)).0, ConditionStatus::False);
        state.stale = vec![stale(90)];
        assert_eq!(failed(&state, "no network", at(95)).0, ConditionStatus::False);
    }

    #[test]
    fn what_expired_before_it_came_does_not_hold() {
        let (status, reason, message) = refreshed(&[], &["A_FILE of corp".to_owned()], at(0));
        assert_eq!((status, reason), (ConditionStatus::False, "ExpiredOnArrival"));
        assert!(message.contains("A_FILE of corp"), "{message}");
    }
}
