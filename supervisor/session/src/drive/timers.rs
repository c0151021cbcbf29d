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

/// The deadlines of a driver.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Pending waits, each with its deadline and its duration.
    waits: Vec<(Wait, Instant, Duration)>,
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
        let old = std::mem::take(&mut self.waits);
        self.waits = waits(state, facts)
            .into_iter()
            .filter(|wait| !matches!(wait, Wait::Expiry { .. }) || may_renew)
            .filter_map(|wait| {
                let known = old.iter().find(|(known, _, _)| *known == wait);
                let (until, limit) = if let Some((_, until, limit)) = known {
                    (*until, *limit)
                } else {
                    let limit = patience.with(&wait, time)?;
                    (now.checked_add(limit)?, limit)
                };
                Some((wait, until, limit))
            })
            .collect();
        let restart = self.waits.iter().find(|(wait, _, _)| matches!(wait, Wait::Restart { .. }));
        self.next_restart = match (restart, self.next_restart) {
            (None, _) => None,
            (Some((wait, _, _)), Some(known)) if old.iter().any(|(before, _, _)| before == wait) => Some(known),
            (Some((_, until, _)), _) => {
                let rest = until.saturating_duration_since(now);
                Timestamp::now().checked_add(rest).ok()
            }
        };
    }

    /// Returns the deadline of the next wait.
    pub(super) fn next_wait(&self) -> Option<Instant> {
        self.waits.iter().map(|(_, until, _)| *until).min()
    }

    /// Takes one wait out whose deadline has passed, with its duration.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<(Wait, Duration)> {
        let position = self.waits.iter().position(|(_, until, _)| *until <= now)?;
        let (wait, _, limit) = self.waits.swap_remove(position);
        Some((wait, limit))
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
