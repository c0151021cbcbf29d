//! Decides which times of a schedule start a run, from two looks at the clock.
//!
//! The cursor is the last time that was dealt with. Times up to the cursor never start a run again, so a clock that
//! goes back starts nothing twice. The times between the cursor and now are due. At most one of them starts a run, the
//! latest. The others count as missed: the machine slept, the daemon was down, or the clock was set forward.

use agentd_api::schedule::MissedPolicy;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::calendar::Calendar;

#[cfg(test)]
#[path = "due_tests.rs"]
mod tests;

/// Age from which on a due time is missed. A daemon that restarts takes less.
pub const LATE: SignedDuration = SignedDuration::from_mins(1);
/// Distance of a cursor in the future from which on the clock was wrong then. The cursor goes back to now.
pub const WRONG_CLOCK: SignedDuration = SignedDuration::from_hours(24);
/// Maximum number of missed times that are counted.
pub const MOST: u64 = 1000;

/// The times of a schedule.
#[derive(Debug, Clone)]
pub enum Times {
    /// One time.
    At(Timestamp),
    /// The times of a calendar expression in a time zone.
    Calendar(Calendar, TimeZone),
}

/// The times that are due now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The cursor after this decision.
    pub cursor: Timestamp,
    /// The time that starts a run.
    pub run: Option<Timestamp>,
    /// The times that start no run.
    pub missed: Option<Missed>,
}

/// Times that started no run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// Number of the times; [`MOST`] for that many or more.
    pub count: u64,
    /// The latest of the times.
    pub last: Timestamp,
}

impl Times {
    /// Returns the first time after `after`.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::At(at) => Some(*at).filter(|at| *at > after),
            Self::Calendar(calendar, zone) => calendar.next(after, zone),
        }
    }

    /// Returns the latest time after `cursor` and up to `now`.
    fn latest(&self, cursor: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let until_now = |time: &Timestamp| *time <= now;
        let mut latest = self.next(cursor).filter(until_now)?;
        // Looks back in growing steps, since there may be millions of times in between.
        let mut back = SignedDuration::from_secs(1);
        while let Some(from) = now.checked_sub(back).ok().filter(|from| *from > cursor) {
            if let Some(found) = self.next(from).filter(until_now) {
                latest = latest.max(found);
                break;
            }
            back = back.saturating_mul(2);
        }
        while let Some(later) = self.next(latest).filter(until_now) {
            latest = later;
        }
        Some(latest)
    }

    /// Counts the times after `cursor` and before `end`, up to [`MOST`].
    fn count(&self, cursor: Timestamp, end: Timestamp) -> (u64, Option<Timestamp>) {
        let (mut count, mut last) = (0, None);
        let mut from = cursor;
        while count < MOST
            && let Some(found) = self.next(from).filter(|found| *found < end)
        {
            (count, last, from) = (count + 1, Some(found), found);
        }
        (count, last)
    }
}

/// Decides what is due at `now`, if everything up to `cursor` was dealt with.
pub fn decide(times: &Times, cursor: Timestamp, now: Timestamp, policy: MissedPolicy) -> Decision {
    let nothing = |cursor| Decision { cursor, run: None, missed: None };
    if cursor.duration_since(now) > WRONG_CLOCK {
        return nothing(now);
    }
    let Some(latest) = times.latest(cursor, now) else { return nothing(cursor) };
    let (earlier, before) = times.count(cursor, latest);
    if now.duration_since(latest) <= LATE || policy == MissedPolicy::Once {
        let missed = before.map(|last| Missed { count: earlier, last });
        return Decision { cursor: latest, run: Some(latest), missed };
    }
    let missed = Some(Missed { count: (earlier + 1).min(MOST), last: latest });
    Decision { cursor: latest, run: None, missed }
}
