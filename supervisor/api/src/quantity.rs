//! Sizes and durations as people write them. The command line, the configuration and the control endpoint share
//! this grammar.
//!
//! A size is a number of bytes: `512`, `64K`, `2G`, `1.5M` or `2GiB`. Units are multiples of 1024, as in
//! systemd (systemd.syntax(7), "Memory sizes"; systemd.resource-control(5), `MemoryMax=`). `KB` and `MB` are
//! refused, because some readers take them for powers of 1000.
//!
//! A duration is `250ms`, `10m`, `1h30m`, `1h 30m` or `14d`. A day has 24 hours. A plain number is in seconds.

use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;
use serde::de::{self, Deserializer};

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WrittenSize")]
pub struct Size(pub u64);

/// A duration. A plain number is in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WrittenTime")]
pub struct Time(pub Duration);

/// Error for a text that is not a valid size or duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuantity {
    /// The text is not a size.
    #[error(
        "{0:?} is not a size; write a number of bytes, or a number with K, M, G or T, such as 64M (1K is 1024 bytes)"
    )]
    Size(String),
    /// The text is not a duration.
    #[error(
        "{0:?} is not a duration; write a number of seconds, or numbers with d, h, m, s or ms, such as 10m or 1h30m"
    )]
    Time(String),
    /// The duration is negative.
    #[error("a duration cannot be negative")]
    Negative,
}

impl FromStr for Size {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        let invalid = || InvalidQuantity::Size(text.to_owned());
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let power = match unit.trim_start() {
            "" | "B" => 0,
            "k" | "K" | "KiB" => 1,
            "M" | "MiB" => 2,
            "G" | "GiB" => 3,
            "T" | "TiB" => 4,
            _ => return Err(invalid()),
        };
        let factor = 1_u64 << (10 * power);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if whole.is_empty() || fraction.is_empty() || fraction.len() > 9 || (power == 0 && number.contains('.')) {
            return Err(invalid());
        }
        let whole: u64 = whole.parse().map_err(|_| invalid())?;
        let tenths: u64 = fraction.parse().map_err(|_| invalid())?;
        let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| invalid())?);
        let part = u64::try_from(u128::from(tenths) * u128::from(factor) / scale).map_err(|_| invalid())?;
        whole.checked_mul(factor).and_then(|bytes| bytes.checked_add(part)).map(Self).ok_or_else(invalid)
    }
}

impl FromStr for Time {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        let text = text.trim();
        if text.starts_with(|first: char| first.is_ascii_digit() || first == '.')
            && let Ok(seconds) = text.parse::<f64>()
        {
            return Self::of_seconds(seconds);
        }
        let invalid = || InvalidQuantity::Time(text.to_owned());
        // The parser of durations takes no days, since a day of a calendar can have another length.
        let days =
            text.split_once('d').and_then(|(days, rest)| Some((days.trim_end().parse::<u64>().ok()?, rest.trim())));
        let (days, text) = days.unwrap_or((0, text));
        let days = days.checked_mul(86_400).map(Duration::from_secs).ok_or_else(invalid)?;
        if text.is_empty() && !days.is_zero() {
            return Ok(Self(days));
        }
        let span: SignedDuration = text.parse().map_err(|_| invalid())?;
        let span = Duration::try_from(span).map_err(|_| InvalidQuantity::Negative)?;
        days.checked_add(span).map(Self).ok_or_else(invalid)
    }
}

/// Serializes the duration as people write it, for default values in the schema of the configuration.
#[cfg(feature = "schema")]
impl serde::Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let span = SignedDuration::try_from(self.0).map_err(serde::ser::Error::custom)?;
        let text = format!("{span:#}");
        serializer.serialize_str(if self.0.is_zero() { "0s" } else { &text })
    }
}

impl Time {
    /// Makes a duration from a number of seconds.
    fn of_seconds(seconds: f64) -> Result<Self, InvalidQuantity> {
        if seconds < 0.0 {
            return Err(InvalidQuantity::Negative);
        }
        Duration::try_from_secs_f64(seconds).map(Self).map_err(|_| InvalidQuantity::Time(seconds.to_string()))
    }

    /// Returns the duration in whole seconds, rounded up.
    pub fn seconds(self) -> u64 {
        self.0.as_secs().saturating_add(u64::from(self.0.subsec_nanos() > 0))
    }
}

/// A size in TOML or JSON.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a size, such as 67108864 or \"64M\"")]
enum WrittenSize {
    Bytes(u64),
    Text(String),
}

impl TryFrom<WrittenSize> for Size {
    type Error = InvalidQuantity;

    fn try_from(written: WrittenSize) -> Result<Self, InvalidQuantity> {
        match written {
            WrittenSize::Bytes(bytes) => Ok(Self(bytes)),
            WrittenSize::Text(text) => text.parse(),
        }
    }
}

/// A duration in TOML or JSON.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a duration, such as 600 (seconds) or \"10m\"")]
enum WrittenTime {
    Seconds(u64),
    Fraction(f64),
    Text(String),
}

impl TryFrom<WrittenTime> for Time {
    type Error = InvalidQuantity;

    fn try_from(written: WrittenTime) -> Result<Self, InvalidQuantity> {
        match written {
            WrittenTime::Seconds(seconds) => Ok(Self(Duration::from_secs(seconds))),
            WrittenTime::Fraction(seconds) => Self::of_seconds(seconds),
            WrittenTime::Text(text) => text.parse(),
        }
    }
}

/// Deserializes a number of bytes that may be written as a size.
pub fn size<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    let Size(bytes) = Size::deserialize(deserializer)?;
    T::try_from(bytes).map_err(|_| de::Error::custom("the size is too large"))
}

/// Deserializes an optional number of bytes that may be written as a size.
pub fn some_size<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let Some(Size(bytes)) = Option::<Size>::deserialize(deserializer)? else { return Ok(None) };
    T::try_from(bytes).map(Some).map_err(|_| de::Error::custom("the size is too large"))
}

/// Deserializes an optional number of whole seconds that may be written as a duration.
pub fn some_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<Time>::deserialize(deserializer)?.map(Time::seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_bytes_or_a_multiple_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("10B", 10),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("2G", 2 << 30),
            ("2 GiB", 2 << 30),
            ("1.5M", 3 << 19),
            ("1T", 1 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "G", "-1", "1.5", "1MB", "1KB", "1m", "1..2K", ".5K", "1.K", "99999999T", "1e3", "0x10", "two"]
        {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_has_units_and_a_plain_number_is_seconds() {
        for (text, milliseconds) in [
            ("10m", 600_000),
            ("250ms", 250),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("90s", 90_000),
            ("90", 90_000),
            ("0", 0),
            ("0.5", 500),
            (".5", 500),
            ("14d", 14 * 86_400_000),
            ("1d 12h", 129_600_000),
            ("1d1ms", 86_400_001),
        ] {
            assert_eq!(text.parse(), Ok(Time(Duration::from_millis(milliseconds))), "{text}");
        }
        for text in ["", "soon", "-1s", "-1", "10x", "m", "inf", "nan", "d", "1d12", "1d1d", "1d-1h", "1.5d"] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
        assert_eq!("250ms".parse::<Time>().unwrap().seconds(), 1);
    }

    #[test]
    fn the_limits_of_a_session_take_numbers_and_the_one_grammar() {
        let limits = |text: &str| serde_json::from_str::<crate::session::SessionLimits>(text);
        let text = r#"{"memory":"2G","output_rate":"1M","idle_seconds":"10m",
            "turn_seconds":"1h30m","permission_seconds":"250ms"}"#;
        let number = r#"{"memory":2147483648,"output_rate":1048576,"idle_seconds":600,
            "turn_seconds":5400,"permission_seconds":1}"#;
        assert_eq!(limits(text).unwrap(), limits(number).unwrap());
        let longest = limits(r#"{"idle_seconds":18446744073709551615}"#).unwrap();
        assert_eq!(longest.idle_seconds, Some(u64::MAX));
        assert_eq!(limits("{}").unwrap(), crate::session::SessionLimits::default());
        for wrong in
            [r#"{"memory":"2GB"}"#, r#"{"memory":-1}"#, r#"{"idle_seconds":"soon"}"#, r#"{"idle_seconds":true}"#]
        {
            assert!(limits(wrong).is_err(), "{wrong}");
        }
    }
}
