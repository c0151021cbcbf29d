//! Shares checks between callers: a check's result serves all waiting callers, and further callers while it is valid.
//!
//! A caller that requires a current result does not wait for a check that began too long ago. Such a check may wait
//! for a peer that was lost before the machine recovered. A second check then starts beside it. The result of the
//! check that began later counts, whichever ends last.
//!
//! A check continues to its bounded end when its callers have left, so a caller that gives up does not affect the
//! others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use agentd_api::prerequisite::{CheckReport, Outcome};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::Freshness;
use super::check::{Check, CheckResult, CheckedSession};

/// Maximum number of checks in progress, over all prerequisites and sessions.
const MAX_CHECKS: usize = 16;
/// Maximum number of checks beside an earlier check of the same prerequisite. They have a limit of their own, so
/// hanging checks do not block others.
const MAX_BESIDE: usize = 16;
/// Time for which a failed result is used again, whatever its cache time, because the user may repair the cause now.
/// It is long enough for many callers at the same time.
const FAILURE_HOLDS: Duration = Duration::from_millis(250);
/// Number of results above which expired ones are removed.
const MAX_RESULTS: usize = 256;

/// All checks in progress and their results. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Rounds {
    slots: Arc<Mutex<BTreeMap<Key, Slot>>>,
    permits: Arc<Semaphore>,
    beside: Arc<Semaphore>,
}

/// Name of the prerequisite, and the key of the session. `None` means a result for all sessions.
type Key = (String, Option<String>);

#[derive(Debug, Default)]
struct Slot {
    /// Checks in progress, in the order of their start.
    running: Vec<Running>,
    found: Option<StoredResult>,
}

#[derive(Debug, Clone)]
struct Running {
    /// Start of the check. Unset while the check waits for a permit.
    began: Arc<OnceLock<Instant>>,
    said: watch::Receiver<Option<CheckResult>>,
}

#[derive(Debug)]
struct StoredResult {
    found: CheckResult,
    began: Instant,
    at: Instant,
}

impl Default for Rounds {
    fn default() -> Self {
        let (permits, beside) = (Arc::new(Semaphore::new(MAX_CHECKS)), Arc::new(Semaphore::new(MAX_BESIDE)));
        Self { slots: Arc::default(), permits, beside }
    }
}

impl Running {
    fn is_alive(&self) -> bool {
        self.said.has_changed().is_ok()
    }

    fn is_good_for(&self, fresh: Freshness) -> bool {
        match fresh {
            Freshness::Begun(age) => self.began.get().is_none_or(|began| began.elapsed() < age),
            Freshness::Cached | Freshness::Found(_) => true,
        }
    }
}

impl Slot {
    /// Returns the check that was started last, of those whose task still runs.
    fn latest(&mut self) -> Option<&Running> {
        self.running.retain(Running::is_alive);
        self.running.last()
    }

    /// Records the result of a finished check, unless the result of a later check is known.
    fn take(&mut self, ended: &Arc<OnceLock<Instant>>, known: StoredResult) {
        self.running.retain(|running| !Arc::ptr_eq(&running.began, ended));
        if self.found.as_ref().is_none_or(|before| before.began <= known.began) {
            self.found = Some(known);
        }
    }
}

impl Rounds {
    /// Returns a valid result that satisfies `fresh`, otherwise the result of a check in progress or of a new one. If
    /// too many checks run beside others, the last check in progress is used.
    pub(super) async fn report(
        &self,
        check: Arc<Check>,
        subject: Option<Arc<CheckedSession>>,
        fresh: Freshness,
    ) -> CheckReport {
        // The result of a check without an environment does not depend on the session.
        let subject = subject.filter(|_| check.looks_at_environment());
        let key = (check.name.clone(), subject.as_ref().map(|subject| subject.key.clone()));
        let mut said = {
            let mut slots = self.slots();
            let slot = slots.entry(key.clone()).or_default();
            if let Some(known) = &slot.found
                && holds(known, fresh)
            {
                return CheckReport { from_cache: true, ..known.found.report.clone() };
            }
            match slot.latest().cloned() {
                None => self.start(slot, key, Arc::clone(&check), subject, None),
                Some(running) if running.is_good_for(fresh) => running.said,
                Some(running) => match Arc::clone(&self.beside).try_acquire_owned() {
                    Ok(beside) => self.start(slot, key, Arc::clone(&check), subject, Some(beside)),
                    Err(_) => running.said,
                },
            }
        };
        match said.wait_for(Option::is_some).await.map(|found| found.clone()) {
            Ok(Some(found)) => found.report,
            _ => check.lost_report(),
        }
    }

    /// Starts a check that belongs to no session, unless one is in progress.
    pub(super) fn begin(&self, check: &Arc<Check>) {
        let (mut slots, key) = (self.slots(), (check.name.clone(), None));
        let slot = slots.entry(key.clone()).or_default();
        if slot.latest().is_none() {
            self.start(slot, key, Arc::clone(check), None, None);
        }
    }

    /// Returns the last report of the prerequisite, for any session.
    pub(super) fn last(&self, name: &str) -> Option<CheckReport> {
        let slots = self.slots();
        let of_it = slots.iter().filter(|((of, _), _)| of == name).filter_map(|(_, slot)| slot.found.as_ref());
        of_it.max_by_key(|known| known.at).map(|known| known.found.report.clone())
    }

    /// Starts a check. `beside` is the permit of a check beside an earlier one.
    fn start(
        &self,
        slot: &mut Slot,
        key: Key,
        check: Arc<Check>,
        subject: Option<Arc<CheckedSession>>,
        beside: Option<OwnedSemaphorePermit>,
    ) -> watch::Receiver<Option<CheckResult>> {
        let (say, said) = watch::channel(None);
        let began = Arc::<OnceLock<Instant>>::default();
        slot.running.push(Running { began: Arc::clone(&began), said: said.clone() });
        let rounds = self.clone();
        tokio::spawn(async move {
            let permit = match beside {
                Some(permit) => Ok(permit),
                None => Arc::clone(&rounds.permits).acquire_owned().await,
            };
            let Ok(permit) = permit else { return };
            let now = *began.get_or_init(Instant::now);
            let found = check.run(subject.as_deref()).await;
            drop(permit);
            {
                let mut slots = rounds.slots();
                let known = StoredResult { found: found.clone(), began: now, at: Instant::now() };
                slots.entry(key).or_default().take(&began, known);
                if slots.len() > MAX_RESULTS {
                    slots.retain(|(_, of), slot| {
                        let fresh = |known: &StoredResult| holds(known, Freshness::Cached);
                        of.is_none() || !slot.running.is_empty() || slot.found.as_ref().is_some_and(fresh)
                    });
                }
            }
            say.send_replace(Some(found));
        });
        said
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<Key, Slot>> {
        // Code under this lock never leaves the map in an inconsistent state.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports whether a result may be used again. Both clocks are compared, because one stops while the machine sleeps,
/// and the other may be set.
fn holds(known: &StoredResult, fresh: Freshness) -> bool {
    let CheckResult { report, holds_for } = &known.found;
    let passes = matches!(report.outcome, Outcome::Pass | Outcome::Warn);
    let longest = match fresh {
        Freshness::Found(age) | Freshness::Begun(age) => age.min(*holds_for),
        Freshness::Cached if passes => *holds_for,
        Freshness::Cached => (*holds_for).min(FAILURE_HOLDS),
    };
    let since = if matches!(fresh, Freshness::Begun(_)) { known.began } else { known.at };
    let by_the_wall = Timestamp::now().duration_since(report.checked_at);
    since.elapsed() < longest && SignedDuration::try_from(longest).is_ok_and(|longest| by_the_wall < longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(outcome: Outcome, checked_at: Timestamp, began: Instant, at: Instant) -> StoredResult {
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
        StoredResult { found: CheckResult { report, holds_for: Duration::from_mins(1) }, began, at }
    }

    #[test]
    fn what_was_found_holds_for_its_time_and_no_longer_than_is_wanted() {
        let now = Instant::now();
        let passed = known(Outcome::Pass, Timestamp::now(), now, now);
        assert!(holds(&passed, Freshness::Cached));
        assert!(!holds(&passed, Freshness::Found(Duration::ZERO)));
        assert!(holds(&passed, Freshness::Begun(Duration::from_secs(30))));
        let Some(earlier) = now.checked_sub(Duration::from_secs(31)) else { return };
        let slow = known(Outcome::Pass, Timestamp::now(), earlier, now);
        assert!(holds(&slow, Freshness::Cached));
        assert!(holds(&slow, Freshness::Found(Duration::from_secs(30))));
        assert!(!holds(&slow, Freshness::Begun(Duration::from_secs(30))), "it looked before");
    }

    #[test]
    fn of_two_that_run_beside_each_other_the_later_look_counts_whichever_ends_last() {
        let mut slot = Slot::default();
        let (first, second) = (Instant::now(), Instant::now() + Duration::from_millis(1));
        let [(one, _one), (other, _other)] = [(); 2].map(|()| {
            let (say, said) = watch::channel(None);
            let began = Arc::<OnceLock<Instant>>::default();
            slot.running.push(Running { began: Arc::clone(&began), said });
            (began, say)
        });
        slot.take(&other, known(Outcome::Pass, Timestamp::now(), second, second));
        assert!(slot.latest().is_some_and(|running| Arc::ptr_eq(&running.began, &one)));
        slot.take(&one, known(Outcome::Fail, Timestamp::now(), first, second));
        assert!(slot.latest().is_none());
        assert!(slot.found.is_some_and(|known| known.found.report.outcome == Outcome::Pass));
    }

    #[test]
    fn one_that_runs_is_joined_until_it_is_too_old_and_at_any_age_while_it_waits_for_its_turn() {
        let (_say, said) = watch::channel(None);
        let running = Running { began: Arc::default(), said };
        assert!(running.is_good_for(Freshness::Begun(Duration::ZERO)));
        running.began.set(Instant::now()).unwrap();
        assert!(running.is_good_for(Freshness::Begun(Duration::from_mins(1))));
        assert!(!running.is_good_for(Freshness::Begun(Duration::ZERO)));
        assert!(running.is_good_for(Freshness::Found(Duration::ZERO)) && running.is_good_for(Freshness::Cached));
    }

    #[test]
    fn a_failure_is_looked_at_anew_and_what_was_found_before_the_machine_slept_not_at_all() {
        let ago = |seconds| Timestamp::now() - SignedDuration::from_secs(seconds);
        let Some(earlier) = Instant::now().checked_sub(Duration::from_secs(2)) else { return };
        assert!(!holds(&known(Outcome::Fail, ago(2), earlier, earlier), Freshness::Cached));
        assert!(!holds(&known(Outcome::Unknown, ago(2), earlier, earlier), Freshness::Cached));
        assert!(holds(&known(Outcome::Warn, ago(2), earlier, earlier), Freshness::Cached));
        assert!(!holds(&known(Outcome::Pass, ago(3600), earlier, earlier), Freshness::Cached), "it slept for an hour");
    }
}
