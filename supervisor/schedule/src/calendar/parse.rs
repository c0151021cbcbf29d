//! Parses calendar expressions.

use std::str::FromStr;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{Calendar, Part, Range};

/// Error for a text that is not a calendar expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// The text is empty, or has a space at its beginning or end.
    #[error("the calendar expression {0:?} is empty or has spaces around it")]
    Blank(String),
    /// The text has too many words.
    #[error("{word:?} in the calendar expression {text:?} is neither weekdays, nor a date, nor a time")]
    Word { text: String, word: String },
    /// A part of a date or time has another syntax.
    #[error("{part:?} is not a {what} in the calendar expression {text:?}")]
    Part { text: String, what: &'static str, part: String },
    /// A value is outside of its bounds.
    #[error("the {what} {value} in the calendar expression {text:?} is not from {least} to {most}")]
    Bounds { text: String, what: &'static str, value: u64, least: u64, most: u64 },
}

impl CalendarError {
    /// Describes the valid texts.
    pub fn hint(&self) -> &'static str {
        "write it as systemd does, as `Mon..Fri 09:00`, `*-*-01 06:30:00 Europe/Berlin` or `hourly`; see \
         systemd.time(7), \"Calendar Events\""
    }
}

/// Names of the weekdays, from Monday on.
const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// The short forms and their meaning.
const SHORT: [(&str, &str); 12] = [
    ("minutely", "*-*-* *:*:00"),
    ("hourly", "*-*-* *:00:00"),
    ("daily", "*-*-* 00:00:00"),
    ("monthly", "*-*-01 00:00:00"),
    ("weekly", "Mon *-*-* 00:00:00"),
    ("yearly", "*-01-01 00:00:00"),
    ("annually", "*-01-01 00:00:00"),
    ("anually", "*-01-01 00:00:00"),
    ("quarterly", "*-01,04,07,10-01 00:00:00"),
    ("semiannually", "*-01,07-01 00:00:00"),
    ("semi-annually", "*-01,07-01 00:00:00"),
    ("bi-annually", "*-01,07-01 00:00:00"),
];

/// Bounds of a part, and its name in messages.
#[derive(Debug, Clone, Copy)]
struct Kind {
    what: &'static str,
    least: u64,
    most: u64,
    /// Number of units in 1 of the text.
    scale: u64,
}

const fn kind(what: &'static str, least: u64, most: u64) -> Kind {
    Kind { what, least, most, scale: 1 }
}

const MICROSECONDS: u64 = 1_000_000;
const YEAR: Kind = kind("year", 1970, 2199);
const MONTH: Kind = kind("month", 1, 12);
const DAY: Kind = kind("day", 1, 31);
/// Days that every month has, counted from its end.
const DAY_FROM_END: Kind = kind("day", 1, 28);
const HOUR: Kind = kind("hour", 0, 23);
const MINUTE: Kind = kind("minute", 0, 59);
const SECOND: Kind = Kind { what: "second", least: 0, most: 60 * MICROSECONDS - 1, scale: MICROSECONDS };

impl FromStr for Calendar {
    type Err = CalendarError;

    fn from_str(text: &str) -> Result<Self, CalendarError> {
        if text.is_empty() || text.trim() != text || text.contains(|c: char| c.is_whitespace() && c != ' ') {
            return Err(CalendarError::Blank(text.to_owned()));
        }
        let mut words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
        let zone = words.pop_if(is_zone).map(str::to_owned);
        let short = words.first().and_then(|word| SHORT.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)));
        if let (Some((_, meaning)), 1) = (short, words.len()) {
            return Ok(Self { zone, ..meaning.parse()? });
        }
        let mut parser = Parser { text, words: words.as_slice() };
        if let (Some(epoch), 1) = (words.first().and_then(|word| word.strip_prefix('@')), words.len()) {
            return parser.epoch(epoch).map(|found| Self { zone: Some("UTC".to_owned()), ..found });
        }
        let weekdays = parser.weekdays()?;
        let date = parser.date()?;
        let time = parser.time()?;
        if let Some(word) = parser.words.first() {
            return Err(CalendarError::Word { text: text.to_owned(), word: (*word).to_owned() });
        }
        if weekdays.is_none() && date.is_none() && time.is_none() {
            return Err(CalendarError::Blank(text.to_owned()));
        }
        let (year, month, day, is_from_end) = date.unwrap_or_default();
        let [hour, minute, second] = time.unwrap_or_else(|| [0, 0, 0].map(Part::one));
        Ok(Self { weekdays, year, month, day, is_from_end, hour, minute, second, zone })
    }
}

/// Reports whether a word names a time zone, and not a short form or weekdays.
fn is_zone(word: &mut &str) -> bool {
    let is_short = SHORT.iter().any(|(name, _)| name.eq_ignore_ascii_case(word));
    let first = word.split([',', '.', '-']).next().unwrap_or_default();
    word.starts_with(|c: char| c.is_ascii_alphabetic()) && !is_short && weekday(first).is_none()
}

/// Returns the number of a weekday, from 0 for Monday. Names are whole, or have three letters.
fn weekday(name: &str) -> Option<usize> {
    let lower = name.to_ascii_lowercase();
    WEEKDAYS.iter().position(|day| *day == lower || day.get(..3) == Some(lower.as_str()))
}

struct Parser<'a> {
    text: &'a str,
    /// Words that are not parsed yet.
    words: &'a [&'a str],
}

type Date = (Part, Part, Part, bool);

impl<'a> Parser<'a> {
    fn wrong(&self, what: &'static str, part: &str) -> CalendarError {
        CalendarError::Part { text: self.text.to_owned(), what, part: part.to_owned() }
    }

    /// Takes the next word if it is as wanted.
    fn take(&mut self, is_wanted: impl Fn(&str) -> bool) -> Option<&'a str> {
        let (word, rest) = self.words.split_first().filter(|(word, _)| is_wanted(word))?;
        self.words = rest;
        Some(word)
    }

    /// Parses weekdays: names and ranges with commas between them. A comma at the end is allowed.
    fn weekdays(&mut self) -> Result<Option<[bool; 7]>, CalendarError> {
        let Some(word) = self.take(|word| word.starts_with(|c: char| c.is_ascii_alphabetic())) else {
            return Ok(None);
        };
        let mut days = [false; 7];
        for part in word.strip_suffix(',').unwrap_or(word).split(',') {
            let (first, last) = part.split_once("..").or_else(|| part.split_once('-')).unwrap_or((part, part));
            let range = weekday(first).zip(weekday(last)).filter(|(first, last)| first <= last);
            let (first, last) = range.ok_or_else(|| self.wrong("weekday", part))?;
            days[first..=last].fill(true);
        }
        Ok(Some(days))
    }

    /// Parses a date: `YEAR-MONTH-DAY` or `MONTH-DAY`, with `~` before a day that counts from the end of the month.
    fn date(&mut self) -> Result<Option<Date>, CalendarError> {
        let Some(word) = self.take(|word| !word.contains(':')) else { return Ok(None) };
        let (before, day, is_from_end) = match (word.rsplit_once('~'), word.rsplit_once('-')) {
            (Some((before, day)), _) => (before, day, true),
            (None, Some((before, day))) => (before, day, false),
            (None, None) => return Err(self.wrong("date", word)),
        };
        let (year, month) = match before.split_once('-') {
            Some((year, month)) => (self.part(YEAR, year)?, month),
            None => (Part::default(), before),
        };
        let day = self.part(if is_from_end { DAY_FROM_END } else { DAY }, day)?;
        Ok(Some((year, self.part(MONTH, month)?, day, is_from_end)))
    }

    /// Parses a time: `HOUR:MINUTE` or `HOUR:MINUTE:SECOND`.
    fn time(&mut self) -> Result<Option<[Part; 3]>, CalendarError> {
        let Some(word) = self.take(|_| true) else { return Ok(None) };
        let parts: Vec<&str> = word.split(':').collect();
        let (hour, minute, second) = match parts.as_slice() {
            [hour, minute] => (hour, minute, "00"),
            [hour, minute, second] => (hour, minute, *second),
            _ => return Err(self.wrong("time", word)),
        };
        let second = if second == "*" { "0/1" } else { second };
        Ok(Some([self.part(HOUR, hour)?, self.part(MINUTE, minute)?, self.part(SECOND, second)?]))
    }

    /// Parses seconds since 1970.
    fn epoch(&mut self, seconds: &str) -> Result<Calendar, CalendarError> {
        let wrong = || self.wrong("number of seconds since 1970", seconds);
        let seconds = seconds.parse().ok().filter(|seconds| *seconds >= 0);
        let at = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok()).ok_or_else(wrong)?;
        let at = TimeZone::UTC.to_datetime(at);
        if u64::try_from(at.year()).map_or(true, |year| year > YEAR.most) {
            return Err(wrong());
        }
        let part = |value: i8| Part::one(u64::try_from(value).unwrap_or_default());
        Ok(Calendar {
            weekdays: None,
            year: Part::one(u64::try_from(at.year()).unwrap_or_default()),
            month: part(at.month()),
            day: part(at.day()),
            is_from_end: false,
            hour: part(at.hour()),
            minute: part(at.minute()),
            second: Part::one(u64::try_from(at.second()).unwrap_or_default() * MICROSECONDS),
            zone: None,
        })
    }

    /// Parses a part: `*`, or values and ranges with commas between them, each with an optional `/STEP`.
    fn part(&self, kind: Kind, text: &str) -> Result<Part, CalendarError> {
        if text == "*" {
            return Ok(Part::default());
        }
        text.split(',').map(|item| self.range(kind, item)).collect::<Result<_, _>>().map(Part)
    }

    fn range(&self, kind: Kind, item: &str) -> Result<Range, CalendarError> {
        let wrong = || self.wrong(kind.what, item);
        let (range, step) = item.split_once('/').map_or((item, None), |(range, step)| (range, Some(step)));
        let (first, last) = range.split_once("..").map_or((range, None), |(first, last)| (first, Some(last)));
        let value = |text: &str| number(text, kind).ok_or_else(wrong).and_then(|value| self.bounded(kind, value));
        let first = value(first)?;
        let last = last.map(value).transpose()?;
        let scaled = Kind { least: 0, ..kind };
        let step = step.map(|step| number(step, scaled).filter(|step| *step > 0).ok_or_else(wrong)).transpose()?;
        // systemd refuses a step that leads from the first value beyond the bounds.
        let room = if kind.what == DAY.what && kind.most < DAY.most { first - 1 } else { kind.most - first };
        let is_long = last.is_none() && step.is_some_and(|step| step > room);
        if last.is_some_and(|last| last < first) || is_long {
            return Err(wrong());
        }
        let last = match (last, step) {
            (Some(last), _) => last,
            // A step without an end continues to the greatest value, for days to the end of the month.
            (None, Some(_)) if kind.what == DAY.what => u64::MAX,
            (None, Some(_)) => kind.most,
            (None, None) => first,
        };
        Ok(Range { start: first, stop: last, step: step.unwrap_or(kind.scale) })
    }

    /// Checks the bounds. A year of two digits is from 1970 to 2069.
    fn bounded(&self, kind: Kind, value: u64) -> Result<u64, CalendarError> {
        let value = match value {
            0..70 if kind.what == YEAR.what => value + 2000,
            70..100 if kind.what == YEAR.what => value + 1900,
            _ => value,
        };
        if (kind.least..=kind.most).contains(&value) {
            return Ok(value);
        }
        let (least, most) = (kind.least / kind.scale, kind.most / kind.scale);
        let (text, what, value) = (self.text.to_owned(), kind.what, value / kind.scale);
        Err(CalendarError::Bounds { text, what, value, least, most })
    }
}

/// Parses a number without a sign. Only seconds have a fraction, of up to six digits.
fn number(text: &str, kind: Kind) -> Option<u64> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) if kind.scale == MICROSECONDS => (whole, fraction),
        Some(_) => return None,
        None => (text, "0"),
    };
    let is_number = |digits: &str| (1..=9).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 6 {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<6}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(kind.scale)?.checked_add(fraction * kind.scale / MICROSECONDS)
}
