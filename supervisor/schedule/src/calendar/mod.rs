//! Calendar expressions with the syntax of systemd.time(7), "Calendar Events".
//!
//! No crate on crates.io parses this syntax. The crates for cron have no `..`, no `~` and no fractions of a second, and
//! a translation would lose them. Proxmox has a parser, but under the AGPL. So the parser is agentd's own. The tests
//! compare its results with `systemd-analyze calendar`.
//!
//! **Clock changes** are treated as systemd treats them. A time that does not exist is skipped. Of a time that exists
//! twice, the first one after the start of the search counts. So a search that goes from time to time finds no time of
//! the repeated hour twice.

mod next;
mod parse;
#[cfg(test)]
mod tests;

pub use parse::CalendarError;

/// A parsed calendar expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calendar {
    /// The weekdays from Monday on; `None` for every day.
    weekdays: Option<[bool; 7]>,
    year: Part,
    month: Part,
    day: Part,
    /// Whether days count from the end of the month: `~`.
    is_from_end: bool,
    hour: Part,
    minute: Part,
    /// In microseconds.
    second: Part,
    zone: Option<String>,
}

/// One part of a date or time: the union of ranges. An empty union has every value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Part(Vec<Range>);

/// The values `start`, `start + step` and so on, up to `stop`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: u64,
    stop: u64,
    step: u64,
}

impl Calendar {
    /// Returns the time zone that the expression names.
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }
}

impl Part {
    fn one(value: u64) -> Self {
        Self(vec![Range { start: value, stop: value, step: 1 }])
    }

    /// Returns the first value that is not less than `least`.
    fn from(&self, least: u64) -> Option<u64> {
        if self.0.is_empty() {
            return Some(least);
        }
        self.0.iter().filter_map(|range| range.from(least)).min()
    }

    fn has(&self, value: u64) -> bool {
        self.from(value) == Some(value)
    }

    /// Reports whether the part has a day of a month whose days are counted from the end. Steps go forward.
    fn has_from_end(&self, day: u64, days_in_month: u64) -> bool {
        let forward = |range: &Range| {
            let from_end = |value: u64| (days_in_month + 1).checked_sub(value).filter(|day| *day > 0);
            let (first, last) = if range.stop == u64::MAX {
                (from_end(range.start)?, days_in_month)
            } else {
                // Only values that the steps reach count, in either direction.
                let reached = range.start + (range.stop - range.start) / range.step * range.step;
                (from_end(reached)?, from_end(range.start)?)
            };
            Some(Range { start: first, stop: last, step: range.step })
        };
        self.0.is_empty() || self.0.iter().filter_map(forward).any(|range| range.from(day) == Some(day))
    }
}

impl Range {
    fn from(self, least: u64) -> Option<u64> {
        let steps = least.saturating_sub(self.start).div_ceil(self.step);
        self.start.checked_add(steps.checked_mul(self.step)?).filter(|value| *value <= self.stop)
    }
}
