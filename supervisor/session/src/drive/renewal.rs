//! Renews the expiring variables of a running agent's environment before they expire.
//!
//! The renewal runs beside the driver. The driver then hides the new secrets, writes the files, and records the
//! renewal, in this order. So an agent cannot read a secret that is not hidden yet. A daemon that is killed in
//! between leaves a journal that makes the next daemon renew at once. The journal contains the time of renewal. A
//! failed renewal is retried after a pause that doubles, and so is a renewal that returned expired variables.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::environment;
use crate::launch_plan::LaunchPlan;
use agentd_decide::waits::doubled;
use agentd_environment::Renewal;

/// State of the renewal.
#[derive(Debug, Default)]
pub(super) struct RenewalState {
    running: Option<RunningRenewal>,
    /// Time of the next attempt after a failure.
    again: Option<Instant>,
    /// Number of failures in a row.
    failures: u32,
    /// Number of renewals in a row that returned expired variables.
    expired: u32,
}

#[derive(Debug)]
struct RunningRenewal {
    launch: u64,
    answer: oneshot::Receiver<Result<Renewal, String>>,
    task: JoinHandle<()>,
}

impl Drop for RunningRenewal {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Result of a renewal, with the number of its launch.
pub(super) type RenewalResult = (u64, Result<Renewal, String>);

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(5);

impl RenewalState {
    /// Reports whether a renewal may begin when a variable expires.
    pub(super) fn is_free(&self) -> bool {
        self.running.is_none() && self.again.is_none()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.again
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.again.is_some_and(|again| again <= now)
    }

    /// Begins a renewal in a task of its own.
    pub(super) fn begin(&mut self, plan: LaunchPlan) {
        let launch = plan.launch;
        let (say, answer) = oneshot::channel();
        let renewing = async move {
            let renewal = environment::renew(&plan).await;
            // The receiver is gone when the agent has ended.
            let _ = say.send(renewal);
        };
        let task = tokio::spawn(renewing.in_current_span());
        (self.running, self.again) = (Some(RunningRenewal { launch, answer, task }), None);
    }

    /// Returns the number of renewals in a row that returned expired variables, after one more renewal.
    pub(super) fn expired_after(&self, is_expired: bool) -> u32 {
        if is_expired { self.expired.saturating_add(1) } else { 0 }
    }

    /// Takes over a recorded renewal.
    pub(super) fn succeeded(&mut self, expired: u32) {
        *self = Self { expired, ..Self::default() };
    }

    pub(super) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.again = now.checked_add(pause(self.failures));
    }
}

/// Returns the pause after this number of failures in a row: it doubles, up to [`LONGEST`].
pub(super) fn pause(failures: u32) -> Duration {
    doubled(FIRST, failures, LONGEST)
}

/// Waits for the result of the running renewal; waits forever without one.
pub(super) async fn renewal_result(state: &mut RenewalState) -> RenewalResult {
    let Some(running) = &mut state.running else { return std::future::pending().await };
    let answer = (&mut running.answer).await;
    let launch = running.launch;
    state.running = None;
    (
        launch,
        answer.unwrap_or_else(|_| {
            Err("internal error: the renewal task returned no result (please report, with agentd.log)".to_owned())
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_after_a_failure_doubles_up_to_the_longest() {
        let pauses: Vec<u64> = [1, 2, 3, 9, 10, u32::MAX].map(|failures| pause(failures).as_secs()).to_vec();
        assert_eq!(pauses, [1, 2, 4, 256, 300, 300]);
    }
}
