//! Delivers one event: attempts with growing pauses, until it is accepted, too old, or the hook is stopped.

use std::time::Duration;

use agentd_api::hook::{HookAttempt, HookFault, HookMessage, HookOutcome};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::Surroundings;
use crate::retry;
use crate::send::{Attempted, Sender};
use crate::status::HookStatus;

/// The hook was stopped.
pub(crate) struct Stopped;

/// Parts that a delivery needs.
pub(crate) struct Delivery<'a> {
    pub(crate) surroundings: &'a Surroundings,
    pub(crate) sender: &'a Sender,
    pub(crate) status: &'a HookStatus,
    pub(crate) stop: &'a CancellationToken,
}

impl Delivery<'_> {
    /// Delivers the event of this time, or drops it. Other hooks are not delayed by the pauses.
    pub(crate) async fn deliver(&self, message: &HookMessage, time: Timestamp) -> Result<(), Stopped> {
        let hook = &self.sender.hook;
        let mut last: Option<HookAttempt> = None;
        for number in 1.. {
            let left = left(hook.max_age.0, time, Timestamp::now());
            if left.is_zero() {
                self.status.note(dropped(message, number, last.as_ref()));
                return Ok(());
            }
            let attempted = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(Stopped),
                attempted = self.attempt(message, number) => attempted,
            };
            let Attempted { attempt, asked, .. } = attempted;
            self.status.note(attempt.clone());
            if attempt.outcome == HookOutcome::Delivered {
                return Ok(());
            }
            if attempt.code == Some(HookFault::HookGone) {
                self.stop.cancelled().await;
                return Err(Stopped);
            }
            let pause = retry::pause(number, (hook.retry_first.0, hook.retry_longest.0), asked, chance()).min(left);
            if let Ok(next) = Timestamp::now().checked_add(pause) {
                self.status.wait_until(next);
            }
            last = Some(attempt);
            tokio::select! {
                () = self.stop.cancelled() => return Err(Stopped),
                () = tokio::time::sleep(pause) => {}
            }
        }
        Ok(())
    }

    async fn attempt(&self, message: &HookMessage, number: u32) -> Attempted {
        let _permit = self.surroundings.permits.acquire().await;
        self.sender.attempt(&self.surroundings.generations.now(), message, number).await
    }
}

/// Returns the time until the event is too old. An event of the future has the whole time.
fn left(max_age: Duration, time: Timestamp, now: Timestamp) -> Duration {
    let age = Duration::try_from(now.duration_since(time)).unwrap_or_default();
    max_age.saturating_sub(age)
}

/// Describes the end of an event that could not be delivered.
fn dropped(message: &HookMessage, number: u32, last: Option<&HookAttempt>) -> HookAttempt {
    let code = HookFault::HookEventDropped;
    let why = last.and_then(|last| last.detail.as_ref()).map(|detail| format!("; the last failure: {detail}"));
    HookAttempt {
        time: Timestamp::now(),
        id: message.data.id.clone(),
        event: message.kind.clone(),
        attempt: number,
        duration_ms: 0,
        outcome: HookOutcome::Dropped,
        code: Some(code),
        status: last.and_then(|last| last.status),
        detail: Some(format!("the event of {} is older than max_age{}", message.timestamp, why.unwrap_or_default())),
        remedy: Some(code.remedy().to_owned()),
    }
}

/// Returns a random number for the jitter.
fn chance() -> u8 {
    let mut random = [0];
    // Without random bytes there is no jitter.
    let _ = getrandom::fill(&mut random);
    random[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_too_old_at_its_maximum_age() {
        let time: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let at = |seconds: i64| {
            let now = Timestamp::from_second(time.as_second() + seconds).unwrap();
            left(Duration::from_secs(10), time, now).as_secs()
        };
        assert_eq!([at(-5), at(0), at(9), at(10), at(99)], [10, 10, 1, 0, 0]);
    }
}
