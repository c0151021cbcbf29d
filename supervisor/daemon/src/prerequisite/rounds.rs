//! Checks that are shared: what one finds is for all who ask, and again for as long as it holds.
//!
//! Who wants to know how it is now does not wait for a check that began too long ago: it may sit out its time on what was lost before the
//! world was well again. Another is begun beside it, and of what both find the later look counts, whichever ends last.
//!
//! A check goes on when whoever asked for it has left, to its end, which is bounded; so one that gives up takes nothing from the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use agentd_api::prerequisite::{CheckReport, Outcome};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::Fresh;
use super::check::{Check, Found, Subject};

/// How many run at a time, of all prerequisites and for all sessions.
const AT_ONCE: usize = 16;
/// How many more run beside an earlier one of the same; so a few that hang keep no other from its turn.
const BESIDE: usize = 16;
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
    beside: Arc<Semaphore>,
}

/// A prerequisite, and what it is checked for: nothing where it is for everybody.
type Key = (String, Option<String>);

#[derive(Debug, Default)]
struct Slot {
    /// In the order in which they were begun.
    running: Vec<Running>,
    found: Option<Known>,
}

#[derive(Debug, Clone)]
struct Running {
    /// Nothing while it waits for its turn.
    began: Arc<OnceLock<Instant>>,
    said: watch::Receiver<Option<Found>>,
}

#[derive(Debug)]
struct Known {
    found: Found,
    began: Instant,
    at: Instant,
}

impl Default for Rounds {
    fn default() -> Self {
        let (turns, beside) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Semaphore::new(BESIDE)));
        Self { slots: Arc::default(), turns, beside }
    }
}

impl Running {
    fn is_alive(&self) -> bool {
        self.said.has_changed().is_ok()
    }

    fn is_good_for(&self, fresh: Fresh) -> bool {
        match fresh {
            Fresh::Begun(age) => self.began.get().is_none_or(|began| began.elapsed() < age),
            Fresh::Cached | Fresh::Found(_) => true,
        }
    }
}

impl Slot {
    /// The latest that runs. One whose task is gone without a word is none.
    fn latest(&mut self) -> Option<&Running> {
        self.running.retain(Running::is_alive);
        self.running.last()
    }

    /// Takes what a check found that has ended, unless a later look is known.
    fn take(&mut self, ended: &Arc<OnceLock<Instant>>, known: Known) {
        self.running.retain(|running| !Arc::ptr_eq(&running.began, ended));
        if self.found.as_ref().is_none_or(|before| before.began <= known.began) {
            self.found = Some(known);
        }
    }
}

impl Rounds {
    /// What was found no longer ago than it holds, and is good enough; else what a check finds that runs and is, or is begun now. Where
    /// too many run beside others, the latest that runs has to do.
    pub(super) async fn report(&self, check: Arc<Check>, subject: Option<Arc<Subject>>, fresh: Fresh) -> CheckReport {
        // Of no session, what it is asked for makes no difference.
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
            _ => check.silent(),
        }
    }

    /// Begins a check of no session, unless it runs.
    pub(super) fn begin(&self, check: &Arc<Check>) {
        let (mut slots, key) = (self.slots(), (check.name.clone(), None));
        let slot = slots.entry(key.clone()).or_default();
        if slot.latest().is_none() {
            self.start(slot, key, Arc::clone(check), None, None);
        }
    }

    /// What was found last, for everybody or else for whomever.
    pub(super) fn last(&self, name: &str) -> Option<CheckReport> {
        let slots = self.slots();
        let of_it = slots.iter().filter(|((of, _), _)| of == name).filter_map(|(_, slot)| slot.found.as_ref());
        of_it.max_by_key(|known| known.at).map(|known| known.found.report.clone())
    }

    /// Begins one; `beside`: it has its turn.
    fn start(
        &self,
        slot: &mut Slot,
        key: Key,
        check: Arc<Check>,
        subject: Option<Arc<Subject>>,
        beside: Option<OwnedSemaphorePermit>,
    ) -> watch::Receiver<Option<Found>> {
        let (say, said) = watch::channel(None);
        let began = Arc::<OnceLock<Instant>>::default();
        slot.running.push(Running { began: Arc::clone(&began), said: said.clone() });
        let rounds = self.clone();
        tokio::spawn(async move {
            let turn = match beside {
                Some(turn) => Ok(turn),
                None => Arc::clone(&rounds.turns).acquire_owned().await,
            };
            let Ok(turn) = turn else { return };
            let now = *began.get_or_init(Instant::now);
            let found = check.run(subject.as_deref()).await;
            drop(turn);
            {
                let mut slots = rounds.slots();
                let known = Known { found: found.clone(), began: now, at: Instant::now() };
                slots.entry(key).or_default().take(&began, known);
                if slots.len() > KEPT {
                    slots.retain(|(_, of), slot| {
                        let fresh = |known: &Known| holds(known, Fresh::Cached);
                        of.is_none() || !slot.running.is_empty() || slot.found.as_ref().is_some_and(fresh)
                    });
                }
            }
            say.send_replace(Some(found));
        });
        said
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<Key, Slot>> {
        // Nothing that is done under this lock can leave it half done.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether it may be used again. By both clocks: one stands still while the machine sleeps, and the other may be set.
fn holds(known: &Known, fresh: Fresh) -> bool {
    let Found { report, holds_for } = &known.found;
    let passes = matches!(report.outcome, Outcome::Pass | Outcome::Warn);
    let longest = match fresh {
        Fresh::Found(age) | Fresh::Begun(age) => age.min(*holds_for),
        Fresh::Cached if passes => *holds_for,
        Fresh::Cached => (*holds_for).min(FAILURE_HOLDS),
    };
    let since = if matches!(fresh, Fresh::Begun(_)) { known.began } else { known.at };
    let by_the_wall = Timestamp::now().duration_since(report.checked_at);
    since.elapsed() < longest && SignedDuration::try_from(longest).is_ok_and(|longest| by_the_wall < longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(outcome: Outcome, checked_at: Timestamp, began: Instant, at: Instant) -> Known {
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
        Known { found: Found { report, holds_for: Duration::from_mins(1) }, began, at }
    }

    #[test]
    fn what_was_found_holds_for_its_time_and_no_longer_than_is_wanted() {
        let now = Instant::now();
        let passed = known(Outcome::Pass, Timestamp::now(), now, now);
        assert!(holds(&passed, Fresh::Cached));
        assert!(!holds(&passed, Fresh::Found(Duration::ZERO)));
        assert!(holds(&passed, Fresh::Begun(Duration::from_secs(30))));
        let Some(earlier) = now.checked_sub(Duration::from_secs(31)) else { return };
        let slow = known(Outcome::Pass, Timestamp::now(), earlier, now);
        assert!(holds(&slow, Fresh::Cached));
        assert!(holds(&slow, Fresh::Found(Duration::from_secs(30))));
        assert!(!holds(&slow, Fresh::Begun(Duration::from_secs(30))), "it looked before");
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
        assert!(running.is_good_for(Fresh::Begun(Duration::ZERO)));
        running.began.set(Instant::now()).unwrap();
        assert!(running.is_good_for(Fresh::Begun(Duration::from_mins(1))));
        assert!(!running.is_good_for(Fresh::Begun(Duration::ZERO)));
        assert!(running.is_good_for(Fresh::Found(Duration::ZERO)) && running.is_good_for(Fresh::Cached));
    }

    #[test]
    fn a_failure_is_looked_at_anew_and_what_was_found_before_the_machine_slept_not_at_all() {
        let ago = |seconds| Timestamp::now() - SignedDuration::from_secs(seconds);
        let Some(earlier) = Instant::now().checked_sub(Duration::from_secs(2)) else { return };
        assert!(!holds(&known(Outcome::Fail, ago(2), earlier, earlier), Fresh::Cached));
        assert!(!holds(&known(Outcome::Unknown, ago(2), earlier, earlier), Fresh::Cached));
        assert!(holds(&known(Outcome::Warn, ago(2), earlier, earlier), Fresh::Cached));
        assert!(!holds(&known(Outcome::Pass, ago(3600), earlier, earlier), Fresh::Cached), "it slept for an hour");
    }
}
