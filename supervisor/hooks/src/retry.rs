//! Pauses between attempts: twice as long each time, with jitter, and the receiver's `Retry-After`. Pure.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Longest pause that a receiver can ask for.
const LONGEST_ASKED: Duration = Duration::from_hours(1);

/// Returns the pause after a failed attempt. `attempt` counts from 1. `chance` is from 0 to 255.
///
/// The pause lies between three quarters and the whole of `first` times a power of two, and never above `longest`. A
/// longer pause that the receiver asked for takes precedence, up to an hour.
pub(crate) fn pause(
    attempt: u32,
    (first, longest): (Duration, Duration),
    asked: Option<Duration>,
    chance: u8,
) -> Duration {
    let doubled = first.saturating_mul(1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX));
    let whole = doubled.min(longest);
    let jitter = whole / 4 * u32::from(chance) / 255;
    let pause = whole.saturating_sub(jitter);
    asked.map_or(pause, |asked| pause.max(asked.min(LONGEST_ASKED)))
}

/// Parses the header `Retry-After` (RFC 9110 section 10.2.3): a number of seconds, or a date.
pub(crate) fn asked(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = DateTime::strptime("%a, %d %b %Y %H:%M:%S GMT", value).ok()?.to_zoned(TimeZone::UTC).ok()?;
    Some(Duration::try_from(date.timestamp().duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

    #[test]
    fn pauses_double_up_to_the_longest_and_jitter_shortens_them_by_a_quarter_at_most() {
        let pauses: Vec<u64> = (1..=11).map(|attempt| pause(attempt, TIMES, None, 0).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(pause(1000, TIMES, None, 0), TIMES.1);
        for chance in 0..=255 {
            let pause = pause(3, TIMES, None, chance);
            assert!((Duration::from_secs(3)..=Duration::from_secs(4)).contains(&pause), "{pause:?}");
        }
        assert_ne!(pause(3, TIMES, None, 10), pause(3, TIMES, None, 200));
    }

    #[test]
    fn a_receiver_can_ask_for_a_longer_pause_up_to_an_hour() {
        let asked = |seconds| pause(1, TIMES, Some(Duration::from_secs(seconds)), 0).as_secs();
        assert_eq!([asked(0), asked(7), asked(1_000_000)], [1, 7, 3600]);
    }

    #[test]
    fn retry_after_is_a_number_or_a_date() {
        let now: Timestamp = "2015-10-21T07:28:00Z".parse().unwrap();
        let parsed = |text| asked(text, now).map(|asked| asked.as_secs());
        assert_eq!(parsed(" 120 "), Some(120));
        assert_eq!(parsed("Wed, 21 Oct 2015 07:28:30 GMT"), Some(30));
        assert_eq!(parsed("Wed, 21 Oct 2015 07:27:30 GMT"), Some(0), "a past date");
        for wrong in ["", "soon", "-1", "Wed, 21 Oct 2015"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
