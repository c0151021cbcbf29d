//! The time limit of a check, and its distribution over several requests.

use std::time::Duration;

use agentd_plugin_sdk::{CheckRequest, Failure, clock};

/// Name of the setting that every prerequisite has.
pub const TIMEOUT: &str = "timeout";
/// Maximum time that the host allows for a check.
const LONGEST: Duration = Duration::from_mins(1);

/// Reads the setting `timeout`, or returns the default.
pub fn timeout(request: &CheckRequest, default: Duration) -> Result<Duration, Failure> {
    let Some(text) = request.setting(TIMEOUT)? else { return Ok(default) };
    let wrong =
        || Failure::configuration(TIMEOUT, format!("must be a time such as \"3s\" or \"500ms\", and is {text:?}"));
    let time = parse(text).filter(|time| !time.is_zero()).ok_or_else(wrong)?;
    if time > LONGEST {
        return Err(Failure::configuration(TIMEOUT, format!("must be at most \"60s\", and is {text:?}")));
    }
    Ok(time)
}

fn parse(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().ok()?;
    match text[digits.len()..].trim() {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" | "min" => Some(Duration::from_secs(number.checked_mul(60)?)),
        _ => None,
    }
}

/// Formats a duration: `3 s`, `1500 ms`.
pub fn shown(time: Duration) -> String {
    match time.as_millis() {
        millis if millis >= 1000 && millis.is_multiple_of(1000) => format!("{} s", millis / 1000),
        millis => format!("{millis} ms"),
    }
}

/// A time budget for several requests, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    begun: u64,
    time: Duration,
}

impl Budget {
    /// Starts the budget now.
    pub fn new(time: Duration) -> Self {
        Self { begun: clock::monotonic(), time }
    }

    /// Returns the share of one of `among` remaining requests. Time that a request does not use remains for the
    /// later ones. The share is at least 20 ms, so that the last request is made too.
    pub fn share(&self, among: usize) -> Duration {
        let gone = Duration::from_nanos(clock::monotonic().saturating_sub(self.begun));
        let among = u32::try_from(among.max(1)).unwrap_or(u32::MAX);
        (self.time.saturating_sub(gone) / among).max(Duration::from_millis(20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentd_plugin_sdk::Setting;
    use agentd_plugin_sdk::fake::Host;

    #[test]
    fn a_time_is_a_number_with_its_unit() {
        let of = |text: &str| {
            let settings = vec![Setting { key: TIMEOUT.to_owned(), values: vec![text.to_owned()] }];
            let request = CheckRequest { session: None, environment: Vec::new(), settings };
            timeout(&request, Duration::ZERO)
        };
        for (text, millis) in [("3s", 3000), ("500ms", 500), ("1m", 60_000), ("1min", 60_000), ("2 s", 2000)] {
            assert_eq!(of(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for wrong in
            ["", "3", "s", "0s", "1.5s", "-1s", "3 parsecs", "61s", "99999999999999999999s", "9999999999999999999m"]
        {
            assert!(matches!(of(wrong), Err(Failure::Configuration(error)) if error.key == TIMEOUT), "{wrong}");
        }
        assert_eq!(
            (shown(Duration::from_secs(3)), shown(Duration::from_millis(1500))),
            ("3 s".into(), "1500 ms".into())
        );
    }

    #[test]
    fn what_one_does_not_use_is_left_to_the_others() {
        let host = Host::new();
        host.run(|| {
            let budget = Budget::new(Duration::from_secs(3));
            assert_eq!(budget.share(3), Duration::from_secs(1));
            host.time_passes(Duration::from_secs(1));
            assert_eq!((budget.share(2), budget.share(0)), (Duration::from_secs(1), Duration::from_secs(2)));
            host.time_passes(Duration::from_secs(9));
            assert_eq!(budget.share(1), Duration::from_millis(20));
        });
    }
}
