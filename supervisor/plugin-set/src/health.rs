//! Counts a plugin's calls and failures, and decides whether the plugin is called.
//!
//! A plugin that fails repeatedly is suspended for a time and then tried once. If that call fails too, the next
//! suspension is twice as long. The current time is an argument, and this module does no I/O.

use std::time::{Duration, Instant};

use agentd_plugin_host::CallError;
use jiff::Timestamp;

/// Number of failures in a row that suspend a plugin.
const MAX_FAILURES: u64 = 5;
/// Duration of the first suspension.
const FIRST_SUSPENSION: Duration = Duration::from_mins(1);
/// Maximum duration of a suspension.
const MAX_SUSPENSION: Duration = Duration::from_hours(1);

/// Result of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call succeeded.
    Well,
    /// The plugin reported an error, or a service it called failed: a file in the session's directory, a
    /// user's script, a setting, a grant. The cause may affect one session only, so it does not suspend the plugin.
    Reported(String),
    /// The plugin itself failed.
    Fault(PluginFault, String),
    /// Result of a renewal for a running agent, with the error if it failed. It neither causes nor ends a suspension.
    Renewed(Option<String>),
}

/// Kind of a plugin's own failure. Other sessions see only this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PluginFault {
    /// The plugin crashed.
    #[error("it crashed")]
    Crashed,
    /// The plugin exceeded one of its limits.
    #[error("it exceeded one of its limits")]
    Limit,
    /// The plugin returned an invalid answer.
    #[error("it returned an invalid answer")]
    Answer,
}

impl PluginFault {
    /// Returns the kind of the failure, if it is the plugin's own. Errors that the plugin reports and refused
    /// capabilities are not.
    pub fn of(error: &CallError) -> Option<Self> {
        match error {
            CallError::Crashed { .. } => Some(Self::Crashed),
            CallError::Time { .. }
            | CallError::Memory { .. }
            | CallError::TableEntries { .. }
            | CallError::Stack { .. }
            | CallError::Output { .. } => Some(Self::Limit),
            CallError::Invalid { .. } => Some(Self::Answer),
            CallError::Failed { .. }
            | CallError::Outside { .. }
            | CallError::World { .. }
            | CallError::NoSession { .. } => None,
        }
    }
}

/// Statistics since the plugin was loaded.
#[derive(Debug, Default)]
pub(super) struct Health {
    pub(super) calls: u64,
    pub(super) failures: u64,
    /// Number of the plugin's own failures since its last success.
    pub(super) in_a_row: u64,
    pub(super) last_failure: Option<(Timestamp, String)>,
    last_broke: Option<PluginFault>,
    suspensions: u32,
    until: Option<Instant>,
}

/// Reason why a suspended plugin is not called. All sessions see it, so it contains no message of a failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is suspended after {in_a_row} failures in a row, for {} s more or until `agentctl reload`; \
     last failure: {last}",
    .left.as_secs_f64().ceil()
)]
pub struct Suspension {
    in_a_row: u64,
    left: Duration,
    last: PluginFault,
}

impl Health {
    /// Returns the reason why the plugin is not called, if it is suspended.
    pub(super) fn suspended(&self, now: Instant) -> Option<Suspension> {
        let left = self.until?.checked_duration_since(now).filter(|left| !left.is_zero())?;
        let last = self.last_broke.unwrap_or(PluginFault::Crashed);
        Some(Suspension { in_a_row: self.in_a_row, left, last })
    }

    /// Reports whether the plugin was suspended, and no call has succeeded since.
    pub(super) fn has_been_suspended(&self) -> bool {
        self.suspensions > 0
    }

    /// Records a call that ended now.
    pub(super) fn record(&mut self, outcome: CallOutcome, now: Instant, at: Timestamp) {
        self.calls += 1;
        match outcome {
            CallOutcome::Well => (self.in_a_row, self.suspensions, self.until) = (0, 0, None),
            CallOutcome::Renewed(None) => {}
            CallOutcome::Reported(message) | CallOutcome::Renewed(Some(message)) => {
                self.failures += 1;
                self.last_failure = Some((at, message));
            }
            CallOutcome::Fault(broke, message) => {
                self.failures += 1;
                self.in_a_row += 1;
                self.last_broke = Some(broke);
                self.last_failure = Some((at, message));
                // Calls that began before the suspension and end during it do not extend it.
                if self.in_a_row >= MAX_FAILURES && self.suspended(now).is_none() {
                    let pause =
                        FIRST_SUSPENSION.saturating_mul(2_u32.saturating_pow(self.suspensions)).min(MAX_SUSPENSION);
                    self.suspensions += 1;
                    self.until = now.checked_add(pause);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(health: &mut Health, now: Instant) {
        health.record(
            CallOutcome::Fault(PluginFault::Crashed, "/repo/x: it crashed".to_owned()),
            now,
            Timestamp::UNIX_EPOCH,
        );
    }

    #[test]
    fn five_failures_in_a_row_suspend_a_plugin_and_each_further_one_for_twice_as_long() {
        let (mut health, mut now) = (Health::default(), Instant::now());
        for _ in 0..4 {
            fail(&mut health, now);
            assert_eq!(health.suspended(now), None);
        }
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            fail(&mut health, now);
            let left = Duration::from_mins(minutes);
            assert_eq!(health.suspended(now).unwrap().left, left);
            let second = Duration::from_secs(1);
            now += left.saturating_sub(second);
            assert_eq!(health.suspended(now).unwrap().left, second);
            now += second;
            assert_eq!(health.suspended(now), None, "it is tried again after {minutes} minutes");
        }
        health.record(CallOutcome::Well, now, Timestamp::UNIX_EPOCH);
        fail(&mut health, now);
        assert_eq!((health.suspended(now), health.in_a_row, health.failures, health.calls), (None, 1, 13, 14));
    }

    #[test]
    fn what_a_plugin_reports_is_counted_and_suspends_nothing_and_so_is_a_renewal() {
        let (mut health, now) = (Health::default(), Instant::now());
        for _ in 0..20 {
            health.record(CallOutcome::Reported("the script failed".to_owned()), now, Timestamp::UNIX_EPOCH);
            health.record(CallOutcome::Renewed(Some("the token failed".to_owned())), now, Timestamp::UNIX_EPOCH);
        }
        assert_eq!((health.suspended(now), health.failures, health.in_a_row), (None, 40, 0));
        assert_eq!(health.last_failure.as_ref().unwrap().1, "the token failed");
        // A successful renewal says nothing about failed launches.
        for _ in 0..5 {
            fail(&mut health, now);
            health.record(CallOutcome::Renewed(None), now, Timestamp::UNIX_EPOCH);
        }
        let message = health.suspended(now).unwrap().to_string();
        assert!(message.ends_with("last failure: it crashed") && !message.contains("/repo"), "{message}");
        assert_eq!(health.calls, 50);
    }

    #[test]
    fn calls_that_end_late_do_not_make_a_suspension_longer() {
        let (mut health, now) = (Health::default(), Instant::now());
        for _ in 0..9 {
            fail(&mut health, now);
        }
        let suspended = health.suspended(now + Duration::from_secs(18)).unwrap();
        assert_eq!(suspended.left, Duration::from_secs(42));
        let message = suspended.to_string();
        assert!(message.contains("after 9 failures") && message.contains("for 42 s more"), "{message}");
        assert!(message.ends_with("last failure: it crashed"), "{message}");
    }
}
