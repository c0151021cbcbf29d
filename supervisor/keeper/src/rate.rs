//! A rate that a flow keeps to: so many bytes a second in the long run, and so many at once after a silence.
//!
//! The clock comes in as data. What is over is not refused here: the taker asks before, or waits after.

use std::time::{Duration, Instant};

use crate::protocol::Rate;

/// A bucket that fills by itself, and may be overdrawn.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    /// When it will be full again.
    full_at: Instant,
}

impl Bucket {
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, full_at: now }
    }

    pub(crate) fn take(&mut self, now: Instant, bytes: u64) {
        let from = self.full_at.max(now);
        // What is beyond the clock's end is as good as for ever.
        self.full_at = from.checked_add(self.time(bytes)).unwrap_or(from);
    }

    /// How long until so many bytes are in it, of which there cannot be more than it holds.
    pub(crate) fn wait(&self, now: Instant, bytes: u64) -> Duration {
        let missing = self.full_at.saturating_duration_since(now);
        missing.saturating_sub(self.time(self.rate.burst.saturating_sub(bytes)))
    }

    pub(crate) fn burst(&self) -> u64 {
        self.rate.burst
    }

    fn time(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.bytes_per_second.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn who_waits_after_each_takes_no_more_than_the_rate(
            bytes_per_second in 1_u64..1_000_000,
            burst in 0_u64..100_000,
            takes in proptest::collection::vec((0_u64..10_000, 0_u64..200), 1..60),
        ) {
            let start = Instant::now();
            let (mut bucket, mut now, mut taken) = (Bucket::new(Rate { bytes_per_second, burst }, start), start, 0);
            for (bytes, pause) in takes {
                now += bucket.wait(now, 0) + Duration::from_millis(pause);
                let elapsed = now.duration_since(start).as_nanos();
                let allowed = u128::from(burst) + elapsed * u128::from(bytes_per_second) / 1_000_000_000 + 1;
                prop_assert!(u128::from(taken) <= allowed, "{} of {}", taken, allowed);
                bucket.take(now, bytes);
                taken += bytes;
            }
            // It does not make anybody wait longer than what was taken lasts.
            prop_assert!(bucket.wait(now, 0) <= bucket.time(taken));
        }
    }

    #[test]
    fn a_silence_fills_it_and_not_more_than_that() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut bucket = Bucket::new(Rate { bytes_per_second: 100, burst: 300 }, now);
        assert_eq!(bucket.wait(now, 300), Duration::ZERO);
        bucket.take(now, 350);
        assert_eq!((bucket.wait(now, 0), bucket.wait(now, 300)), (second / 2, second * 7 / 2));
        let later = now + second * 1000;
        bucket.take(later, 300);
        assert_eq!((bucket.wait(later, 0), bucket.wait(later, 100)), (Duration::ZERO, second));
    }
}
