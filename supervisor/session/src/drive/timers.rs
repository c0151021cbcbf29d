//! The driver's clock: gives each wait of [`agentd_decide::waits`] its deadline, and keeps the other times at which
//! the driver acts.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use agentd_decide::next::Facts;
use agentd_decide::state::State;
use agentd_decide::waits::{Wait, WaitLimits, waits};

/// Pause before another attempt after a failed write.
const RETRY: Duration = Duration::from_millis(250);

/// A wait with its begin and its time limit.
#[derive(Debug)]
struct ArmedWait {
    wait: Wait,
    since: Instant,
    /// `None` for a wait without limit.
    limit: Option<Duration>,
}

impl ArmedWait {
    fn deadline(&self) -> Option<Instant> {
        self.since.checked_add(self.limit?)
    }
}

/// The deadlines of a driver.
#[derive(Debug, Default)]
pub(super) struct Timers {
    waits: Vec<ArmedWait>,
    /// Whether the session's own limits have changed since the deadlines were set.
    is_outdated: bool,
    /// Wall-clock time of the next restart of a crashed agent.
    pub(super) next_restart: Option<Timestamp>,
    /// Time by which an agent that was asked to stop must have ended.
    pub(super) stop_due: Option<Instant>,
    /// Time of the next attempt after a failed write.
    retry: Option<Instant>,
}

impl Timers {
    /// Sets the deadlines of the current waits. A wait that continues keeps its deadline. Without `may_renew`, no
    /// expiry of a variable is waited for.
    pub(super) fn arm(&mut self, state: &State, facts: &Facts<'_>, patience: &WaitLimits, may_renew: bool) {
        let (now, time) = (Instant::now(), Timestamp::now());
        let is_outdated = std::mem::take(&mut self.is_outdated);
        let old = std::mem::take(&mut self.waits);
        let known = |wait: &Wait| old.iter().find(|armed| armed.wait == *wait);
        self.waits = waits(state, facts)
            .into_iter()
            .filter(|wait| !matches!(wait, Wait::Expiry { .. }) || may_renew)
            .map(|wait| {
                let (since, limit) = match known(&wait) {
                    // The limit is the rest of the active time.
                    Some(_) if is_outdated && matches!(wait, Wait::Session(_)) => (now, patience.with(&wait, time)),
                    Some(known) if is_outdated && is_limited_by_spec(&wait) => {
                        (known.since, patience.with(&wait, time))
                    }
                    Some(known) => (known.since, known.limit),
                    None => (now, patience.with(&wait, time)),
                };
                ArmedWait { wait, since, limit }
            })
            .collect();
        let restart = self.waits.iter().find(|armed| matches!(armed.wait, Wait::Restart { .. }));
        self.next_restart = match (restart, self.next_restart) {
            (None, _) => None,
            (Some(armed), Some(next)) if known(&armed.wait).is_some() => Some(next),
            (Some(armed), _) => {
                let rest = armed.deadline().map(|until| until.saturating_duration_since(now));
                rest.and_then(|rest| Timestamp::now().checked_add(rest).ok())
            }
        };
    }

    /// Lets pending waits get the session's changed limits. Their time runs on.
    pub(super) fn limits_changed(&mut self) {
        self.is_outdated = true;
    }

    /// Returns the deadline of the next wait.
    pub(super) fn next_wait(&self) -> Option<Instant> {
        self.waits.iter().filter_map(ArmedWait::deadline).min()
    }

    /// Takes one wait out whose deadline has passed, with its duration.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<(Wait, Duration)> {
        let is_over = |armed: &ArmedWait| armed.deadline().is_some_and(|until| until <= now);
        let ArmedWait { wait, limit, .. } = self.waits.swap_remove(self.waits.iter().position(is_over)?);
        Some((wait, limit?))
    }

    /// Lets the driver try a failed write again after a pause.
    pub(super) fn retry_later(&mut self) {
        self.retry = Some(Instant::now() + RETRY);
    }

    /// Reports whether a failed write is to be tried again.
    pub(super) fn is_retrying(&self) -> bool {
        self.retry.is_some()
    }

    /// Begins to handle what is due: a failed write is tried again. Returns whether an agent should have ended.
    pub(super) fn begin(&mut self) -> bool {
        self.retry = None;
        self.stop_due.is_some_and(|due| due <= Instant::now())
    }

    /// Returns the deadlines of a failed write and of a stop.
    pub(super) fn others(&self) -> impl Iterator<Item = Instant> {
        self.retry.into_iter().chain(self.stop_due)
    }
}

/// Reports whether a limit of the specification applies to the wait.
fn is_limited_by_spec(wait: &Wait) -> bool {
    matches!(wait, Wait::Turn { .. } | Wait::Work { .. } | Wait::Permission { .. })
}
