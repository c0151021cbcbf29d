//! Decides the condition `EnvironmentCurrent`: whether the expiring values of a running agent are still valid.
//! Pure.

use agentd_api::event::StaleVariable;
use agentd_api::reason;
use agentd_api::session::{ConditionStatus, ConditionType};
use jiff::Timestamp;

use crate::batch::Batch;
use crate::next::{self, Facts};
use crate::state::State;
use crate::verdict::ConditionUpdate;

const KIND: ConditionType = ConditionType::EnvironmentCurrent;
const FAILED: &str = reason::REFRESH_FAILED;
const EXPIRING: &str = reason::VARIABLES_EXPIRING;

/// Returns the condition after a renewal. `stale` lists the variables that kept their old values, `over` the values
/// that had already expired on arrival.
pub fn after_renewal(stale: &[StaleVariable], over: &[String], now: Timestamp) -> ConditionUpdate {
    if !over.is_empty() {
        let message = format!(
            "renewed values had already expired on arrival: {}. agentd requests them again, with pauses that double",
            over.join(", ")
        );
        return (ConditionStatus::False, reason::EXPIRED_ON_ARRIVAL, message);
    }
    if stale.is_empty() {
        let message = "the expiring values were renewed, and the agent has the new values";
        return (ConditionStatus::True, reason::REFRESHED, message.to_owned());
    }
    let describe = |variable: &StaleVariable, word| {
        format!("{} of {} {word} {}", variable.name, variable.provider, variable.since)
    };
    if stale.iter().all(|variable| variable.since > now) {
        let message = format!(
            "new values cannot reach the running agent's environment variables. Its old values remain valid: {}. \
             Stop the session and resume it before then",
            stale.iter().map(|variable| describe(variable, "until")).collect::<Vec<_>>().join(", ")
        );
        return (ConditionStatus::True, EXPIRING, message);
    }
    let message = format!(
        "environment variables of the running agent have expired, and a running process cannot be given new ones: {}. \
         Stop the session and resume it with the current values",
        stale.iter().map(|variable| describe(variable, "since")).collect::<Vec<_>>().join(", ")
    );
    (ConditionStatus::False, reason::VARIABLES_EXPIRED, message)
}

/// Returns the condition after a failed renewal. The agent's values stay valid until they expire.
pub fn failed(state: &State, error: &str, now: Timestamp) -> ConditionUpdate {
    let mut message = format!("cannot renew the expiring values; agentd tries again: {error}");
    if let Some(expires) = state.expires {
        message = format!("{message}; the agent's values are valid until {expires}");
    }
    let holds = first(state).is_none_or(|first| first > now);
    if !state.stale.is_empty() {
        message = format!("{message}; {}", after_renewal(&state.stale, &[], now).2);
    }
    (if holds { ConditionStatus::True } else { ConditionStatus::False }, FAILED, message)
}

/// Returns the next time at which a value of the agent expires while the condition is still true.
pub fn end(state: &State) -> Option<Timestamp> {
    let is_true = state.condition(KIND).is_some_and(|known| known.status == ConditionStatus::True);
    first(state).filter(|_| is_true)
}

/// Returns the earliest expiry of a value that the agent has.
fn first(state: &State) -> Option<Timestamp> {
    state.stale.iter().map(|variable| variable.since).chain(state.expires).min()
}

/// Returns the records to write when a value of the agent has expired.
pub fn ended(state: &State, at: Timestamp, facts: &Facts<'_>) -> Batch {
    let known = state.condition(KIND);
    let (_, reason, message) = match known.map(|known| known.reason.as_str()) {
        Some(FAILED) => (ConditionStatus::False, FAILED, known.map(|known| known.message.clone()).unwrap_or_default()),
        Some(EXPIRING) => after_renewal(&state.stale, &[], at.max(facts.now)),
        _ => {
            let message = format!("values expired at {at}, and agentd is requesting new ones");
            (ConditionStatus::False, reason::EXPIRED, message)
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
        let (status, reason, message) = after_renewal(&[stale(100)], &[], at(100));
        assert_eq!((status, reason), (ConditionStatus::False, "VariablesExpired"));
        assert!(message.contains("API_TOKEN of corp since 1970-01-01T00:01:40Z"), "{message}");
        assert_eq!(after_renewal(&[], &[], at(100)).0, ConditionStatus::True);
    }

    #[test]
    fn what_is_another_before_its_end_still_holds_until_then() {
        let (status, reason, message) = after_renewal(&[stale(100)], &[], at(99));
        assert_eq!((status, reason), (ConditionStatus::True, "VariablesExpiring"));
        assert!(message.contains("API_TOKEN of corp until 1970-01-01T00:01:40Z"), "{message}");
        // One expired variable makes the condition false, even beside a variable that is still valid.
        assert_eq!(after_renewal(&[stale(90), stale(100)], &[], at(99)).0, ConditionStatus::False);
    }

    #[test]
    fn a_failed_renewal_takes_nothing_away_before_its_end() {
        let mut state = State::new(at(0));
        state.expires = Some(at(100));
        let (status, reason, message) = failed(&state, "no network", at(99));
        assert_eq!((status, reason), (ConditionStatus::True, FAILED));
        assert!(message.contains("no network") && message.contains("valid until 1970-01-01T00:01:40Z"), "{message}");
        assert_eq!(failed(&state, "no network", at(100)).0, ConditionStatus::False);
        state.stale = vec![stale(90)];
        assert_eq!(failed(&state, "no network", at(95)).0, ConditionStatus::False);
    }

    #[test]
    fn what_expired_before_it_came_does_not_hold() {
        let (status, reason, message) = after_renewal(&[], &["A_FILE of corp".to_owned()], at(0));
        assert_eq!((status, reason), (ConditionStatus::False, "ExpiredOnArrival"));
        assert!(message.contains("A_FILE of corp"), "{message}");
    }
}
