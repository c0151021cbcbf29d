//! Finds the next time of a calendar expression.

use jiff::civil::{Date, DateTime, Time, Weekday, date};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::Calendar;

/// The last year in which a time is searched, as in systemd.
const LAST_YEAR: i16 = 2199;

impl Calendar {
    /// Returns the first time after `after`, in a time zone. `None` if there is no later time.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        // Expressions have microseconds, as systemd's have.
        let micros = after.as_microsecond() - i64::from(after.subsec_nanosecond() % 1000 < 0);
        let base = zone.to_datetime(Timestamp::from_microsecond(micros.checked_add(1)?).ok()?);
        for year in base.year()..=LAST_YEAR {
            if !self.year.has(u64::try_from(year).ok()?) {
                continue;
            }
            for month in 1..=12 {
                if (year, month) < (base.year(), base.month()) || !self.month.has(u64::try_from(month).ok()?) {
                    continue;
                }
                for day in 1..=date(year, month, 1).days_in_month() {
                    let day = date(year, month, day);
                    if day < base.date() || !self.has_day(day) {
                        continue;
                    }
                    let from = if day == base.date() { base.time() } else { Time::midnight() };
                    if let Some(found) = self.on(day, from, after, zone) {
                        return Some(found);
                    }
                }
            }
        }
        None
    }

    fn has_day(&self, day: Date) -> bool {
        let weekday = usize::try_from(day.weekday().since(Weekday::Monday)).unwrap_or_default();
        let [number, last] = [day.day(), day.days_in_month()].map(|day| u64::try_from(day).unwrap_or_default());
        let has_number = if self.is_from_end { self.day.has_from_end(number, last) } else { self.day.has(number) };
        self.weekdays.is_none_or(|days| days[weekday]) && has_number
    }

    /// Returns the first time of a day that is not before `from` on the clock, and after `after`.
    fn on(&self, day: Date, from: Time, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        for hour in (from.hour()..24).filter(|hour| self.hour.has(u64::try_from(*hour).unwrap_or_default())) {
            let first = if hour == from.hour() { from.minute() } else { 0 };
            for minute in (first..60).filter(|minute| self.minute.has(u64::try_from(*minute).unwrap_or_default())) {
                let is_first = (hour, minute) == (from.hour(), from.minute());
                let least = if is_first { microseconds(from) } else { 0 };
                let start = day.at(hour, minute, 0, 0);
                if let Some(found) = self.within(start, least, after, zone) {
                    return Some(found);
                }
            }
        }
        None
    }

    /// Returns the first time of a minute, from its microsecond `least` on.
    fn within(&self, start: DateTime, mut least: u64, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        while let Some(micros) = self.second.from(least) {
            let clock = start.checked_add(SignedDuration::from_micros(i64::try_from(micros).ok()?)).ok()?;
            let at = |offset: jiff::tz::Offset| offset.to_timestamp(clock).ok().filter(|found| *found > after);
            let found = match zone.to_ambiguous_timestamp(clock).offset() {
                AmbiguousOffset::Unambiguous { offset } => at(offset),
                // The clock skips this minute.
                AmbiguousOffset::Gap { .. } => return None,
                AmbiguousOffset::Fold { before, after } => at(before).or_else(|| at(after)),
            };
            if found.is_some() {
                return found;
            }
            least = micros + 1;
        }
        None
    }
}

/// Returns the microseconds since the begin of the minute.
fn microseconds(time: Time) -> u64 {
    let seconds = u64::try_from(time.second()).unwrap_or_default();
    seconds * 1_000_000 + u64::try_from(time.subsec_nanosecond()).unwrap_or_default() / 1000
}
