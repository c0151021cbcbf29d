//! Token bucket: a sustained rate in bytes per second, and a burst after a pause.
//!
//! The time is an argument. The bucket never refuses bytes: the caller asks before, or waits afterwards.

use std::time::{Duration, Instant};

use crate::protocol::Rate;

/// Token bucket that may be overdrawn.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    /// Time at which the bucket is full again.
    full_at: Instant,
}

impl Bucket {
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, full_at: now }
    }

    pub(crate) fn take(&mut self, now: Instant, bytes: u64) {
        let from = self.full_at.max(now);
        // A time that the clock cannot represent counts as never.
        self.full_at = from.checked_add(self.time(bytes)).unwrap_or(from);
    }

    /// Returns how long until the bucket has this many bytes, at most its capacity.
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
        fn waiting_after_each_take_keeps_the_rate(
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
            // An overdraft waits no longer than the bytes that were taken.
            prop_assert!(bucket.wait(now, 0) <= bucket.time(taken));
        }
    }

    #[test]
    fn a_pause_fills_the_bucket_at_most_to_its_capacity() {
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
