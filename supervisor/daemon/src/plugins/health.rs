//! How a plugin does: its calls, its failures, and whether it is called at all.
//!
//! A plugin that fails time after time is not called in a loop: it is suspended for a while, then tried once, and suspended for twice
//! as long if that fails too. Pure: the time comes in.

use std::time::{Duration, Instant};

use agentd_plugins::CallError;
use jiff::Timestamp;

/// Failures in a row that suspend a plugin.
const IN_A_ROW: u64 = 5;
const FIRST: Duration = Duration::from_mins(1);
const LONGEST: Duration = Duration::from_hours(1);

/// What came of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Well,
    /// The plugin said why it gave nothing, or what it was asked for could not be had: a file of the session's directory, a script of the
    /// user's, a setting, a grant. That is so in one session's world, and suspends nothing.
    Reported(String),
    /// The plugin itself broke.
    Broke(Broke, String),
    /// A renewal for a running agent, and why it failed if it did. It suspends nothing and clears nothing.
    Renewed(Option<String>),
}

/// How a plugin breaks. Another session sees this and nothing else of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broke {
    #[error("it crashed")]
    Crashed,
    #[error("it went over one of its limits")]
    Limit,
    #[error("it gave an answer that cannot be")]
    Answer,
}

impl Broke {
    /// How the plugin broke, if it did: what it reports itself, and what it was not granted, are not of it.
    pub(crate) fn of(error: &CallError) -> Option<Self> {
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

/// Since the plugin was loaded.
#[derive(Debug, Default)]
pub(super) struct Health {
    pub(super) calls: u64,
    pub(super) failures: u64,
    /// The plugin's own, since it last did well.
    pub(super) in_a_row: u64,
    pub(super) last_failure: Option<(Timestamp, String)>,
    last_broke: Option<Broke>,
    suspensions: u32,
    until: Option<Instant>,
}

/// Why a plugin is not called now. Any session sees it, so it quotes nothing of the failures.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is suspended after {in_a_row} failures in a row, for {} s more or until `agentctl reload`; the last one: {last}",
    .left.as_secs_f64().ceil()
)]
pub(crate) struct Suspended {
    in_a_row: u64,
    left: Duration,
    last: Broke,
}

impl Health {
    /// Why it is not to be called, if it is not.
    pub(super) fn suspended(&self, now: Instant) -> Option<Suspended> {
        let left = self.until?.checked_duration_since(now).filter(|left| !left.is_zero())?;
        let last = self.last_broke.unwrap_or(Broke::Crashed);
        Some(Suspended { in_a_row: self.in_a_row, left, last })
    }

    /// Counts a call that ended now.
    pub(super) fn record(&mut self, outcome: Outcome, now: Instant, at: Timestamp) {
        self.calls += 1;
        match outcome {
            Outcome::Well => (self.in_a_row, self.suspensions, self.until) = (0, 0, None),
            Outcome::Renewed(None) => {}
            Outcome::Reported(message) | Outcome::Renewed(Some(message)) => {
                self.failures += 1;
                self.last_failure = Some((at, message));
            }
            Outcome::Broke(broke, message) => {
                self.failures += 1;
                self.in_a_row += 1;
                self.last_broke = Some(broke);
                self.last_failure = Some((at, message));
                // Calls that began before the suspension and end in it do not make it longer.
                if self.in_a_row >= IN_A_ROW && self.suspended(now).is_none() {
                    let pause = FIRST.saturating_mul(2_u32.saturating_pow(self.suspensions)).min(LONGEST);
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
        health.record(Outcome::Broke(Broke::Crashed, "/repo/x: it crashed".to_owned()), now, Timestamp::UNIX_EPOCH);
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
        health.record(Outcome::Well, now, Timestamp::UNIX_EPOCH);
        fail(&mut health, now);
        assert_eq!((health.suspended(now), health.in_a_row, health.failures, health.calls), (None, 1, 13, 14));
    }

    #[test]
    fn what_a_plugin_reports_is_counted_and_suspends_nothing_and_so_is_a_renewal() {
        let (mut health, now) = (Health::default(), Instant::now());
        for _ in 0..20 {
            health.record(Outcome::Reported("the script failed".to_owned()), now, Timestamp::UNIX_EPOCH);
            health.record(Outcome::Renewed(Some("the token failed".to_owned())), now, Timestamp::UNIX_EPOCH);
        }
        assert_eq!((health.suspended(now), health.failures, health.in_a_row), (None, 40, 0));
        assert_eq!(health.last_failure.as_ref().unwrap().1, "the token failed");
        // A renewal that went well says nothing of the launches that did not.
        for _ in 0..5 {
            fail(&mut health, now);
            health.record(Outcome::Renewed(None), now, Timestamp::UNIX_EPOCH);
        }
        let message = health.suspended(now).unwrap().to_string();
        assert!(message.ends_with("the last one: it crashed") && !message.contains("/repo"), "{message}");
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
        assert!(message.ends_with("the last one: it crashed"), "{message}");
    }
}
