//! Checks that are shared: one at a time of each, what it finds for all who ask, and again for as long as it holds.
//!
//! A check goes on when whoever asked for it has left, to its end, which is bounded; so one that gives up takes nothing from the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agentd_api::prerequisite::{CheckReport, Outcome};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Semaphore, watch};

use super::check::{Check, Found, Subject};

/// How many run at a time, of all prerequisites and for all sessions.
const AT_ONCE: usize = 16;
/// What does not pass is looked at again after this, whatever its cache says: somebody is about to repair it. Long enough for many who
/// ask at once.
const FAILURE_HOLDS: Duration = Duration::from_millis(250);
/// Beyond so many, what holds no longer is forgotten.
const KEPT: usize = 256;

/// All checks and what they found. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Rounds {
    slots: Arc<Mutex<BTreeMap<Key, Slot>>>,
    turns: Arc<Semaphore>,
}

/// A prerequisite, and what it is checked for: nothing where it is for everybody.
type Key = (String, Option<String>);

#[derive(Debug, Default)]
struct Slot {
    running: Option<watch::Receiver<Option<Found>>>,
    found: Option<(Found, Instant)>,
}

impl Default for Rounds {
    fn default() -> Self {
        Self { slots: Arc::default(), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Rounds {
    /// What was found no longer ago than it holds, and than `max_age`; else what the check finds that runs, or is begun now.
    pub(super) async fn report(
        &self,
        check: Arc<Check>,
        subject: Option<Arc<Subject>>,
        max_age: Option<Duration>,
    ) -> CheckReport {
        // Of no session, what it is asked for makes no difference.
        let subject = subject.filter(|_| check.looks_at_environment());
        let key = (check.name.clone(), subject.as_ref().map(|subject| subject.key.clone()));
        let mut running = {
            let mut slots = self.slots();
            let slot = slots.entry(key.clone()).or_default();
            if let Some((found, at)) = &slot.found
                && holds(found, *at, max_age)
            {
                return CheckReport { from_cache: true, ..found.report.clone() };
            }
            match &slot.running {
                // One whose task is gone without a word is begun anew.
                Some(running) if running.has_changed().is_ok() => running.clone(),
                _ => self.start(slot, key, Arc::clone(&check), subject),
            }
        };
        match running.wait_for(Option::is_some).await.map(|found| found.clone()) {
            Ok(Some(found)) => found.report,
            _ => check.silent(),
        }
    }

    /// Begins a check of no session, unless it runs.
    pub(super) fn begin(&self, check: &Arc<Check>) {
        let (mut slots, key) = (self.slots(), (check.name.clone(), None));
        let slot = slots.entry(key.clone()).or_default();
        if slot.running.as_ref().is_none_or(|running| running.has_changed().is_err()) {
            self.start(slot, key, Arc::clone(check), None);
        }
    }

    /// What was found last, for everybody or else for whomever.
    pub(super) fn last(&self, name: &str) -> Option<CheckReport> {
        let slots = self.slots();
        let of_it = slots.iter().filter(|((of, _), _)| of == name).filter_map(|(_, slot)| slot.found.as_ref());
        of_it.max_by_key(|(_, at)| *at).map(|(found, _)| found.report.clone())
    }

    fn start(
        &self,
        slot: &mut Slot,
        key: Key,
        check: Arc<Check>,
        subject: Option<Arc<Subject>>,
    ) -> watch::Receiver<Option<Found>> {
        let (say, running) = watch::channel(None);
        slot.running = Some(running.clone());
        let rounds = self.clone();
        tokio::spawn(async move {
            let Ok(turn) = rounds.turns.acquire().await else { return };
            let found = check.run(subject.as_deref()).await;
            drop(turn);
            {
                let mut slots = rounds.slots();
                slots.insert(key, Slot { running: None, found: Some((found.clone(), Instant::now())) });
                if slots.len() > KEPT {
                    slots.retain(|(_, of), slot| {
                        let fresh = |(found, at): &(Found, Instant)| holds(found, *at, None);
                        of.is_none() || slot.running.is_some() || slot.found.as_ref().is_some_and(fresh)
                    });
                }
            }
            say.send_replace(Some(found));
        });
        running
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<Key, Slot>> {
        // Nothing that is done under this lock can leave it half done.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether it may be used again. By both clocks: one stands still while the machine sleeps, and the other may be set.
fn holds(found: &Found, at: Instant, max_age: Option<Duration>) -> bool {
    let passes = matches!(found.report.outcome, Outcome::Pass | Outcome::Warn);
    let longest = match max_age {
        Some(max_age) => max_age.min(found.holds_for),
        None if passes => found.holds_for,
        None => found.holds_for.min(FAILURE_HOLDS),
    };
    let by_the_wall = Timestamp::now().duration_since(found.report.checked_at);
    at.elapsed() < longest && SignedDuration::try_from(longest).is_ok_and(|longest| by_the_wall < longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(outcome: Outcome, checked_at: Timestamp) -> Found {
        let name = "vpn".to_owned();
        let report = CheckReport {
            name,
            outcome,
            on_failure: agentd_api::prerequisite::OnFailure::Fail,
            summary: String::new(),
            facts: Vec::new(),
            remedy: None,
            took_ms: 1,
            checked_at,
            from_cache: false,
        };
        Found { report, holds_for: Duration::from_mins(1) }
    }

    #[test]
    fn what_was_found_holds_for_its_time_and_no_longer_than_is_wanted() {
        let now = Instant::now();
        let passed = found(Outcome::Pass, Timestamp::now());
        assert!(holds(&passed, now, None));
        assert!(!holds(&passed, now, Some(Duration::ZERO)));
        assert!(holds(&passed, now, Some(Duration::from_secs(30))));
    }

    #[test]
    fn a_failure_is_looked_at_anew_and_what_was_found_before_the_machine_slept_not_at_all() {
        let ago = |seconds| Timestamp::now() - SignedDuration::from_secs(seconds);
        let Some(earlier) = Instant::now().checked_sub(Duration::from_secs(2)) else { return };
        assert!(!holds(&found(Outcome::Fail, ago(2)), earlier, None));
        assert!(!holds(&found(Outcome::Unknown, ago(2)), earlier, None));
        assert!(holds(&found(Outcome::Warn, ago(2)), earlier, None));
        assert!(!holds(&found(Outcome::Pass, ago(3600)), earlier, None), "it slept for an hour");
    }
}
