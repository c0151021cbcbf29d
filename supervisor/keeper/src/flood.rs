//! Rate limit of kept stderr. An agent that floods stderr is not slowed down and does not fill the disk.
//!
//! The limit drops whole lines, from the first line above the rate until a good part of the allowance is available
//! again. Then one record reports the number of dropped bytes. The order of the journal shows which lines came before
//! and after.

use std::time::{Duration, Instant};

use crate::lines::Piece;
use crate::protocol::Rate;
use crate::rate::Bucket;

/// Size in bytes of a record without its text.
const RECORD: u64 = 100;
/// Part of the allowance that must be available before lines are kept again. Without it, a steady flood would add a
/// report to every kept line.
const PART: u64 = 4;

/// Decision about a line. `report` comes before `keep`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Number of dropped bytes to report.
    pub(crate) report: Option<u64>,
    pub(crate) keep: bool,
}

#[derive(Debug)]
pub(crate) struct Flood {
    bucket: Bucket,
    /// Number of dropped bytes not reported yet, including line breaks.
    dropped: u64,
}

impl Flood {
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        Self { bucket: Bucket::new(rate, now), dropped: 0 }
    }

    pub(crate) fn judge(&mut self, now: Instant, line: Piece<'_>) -> Verdict {
        let report = self.report(now, false);
        let length = line.text.len() as u64;
        let cost = (length + RECORD).min(self.bucket.burst());
        let keep = self.dropped == 0 && self.bucket.wait(now, cost) == Duration::ZERO;
        if keep {
            self.bucket.take(now, length + RECORD);
        } else {
            self.dropped += length + line.cut + 1;
        }
        Verdict { report, keep }
    }

    /// Returns the number of dropped bytes if the report is due, or in any case with `end`.
    pub(crate) fn report(&mut self, now: Instant, end: bool) -> Option<u64> {
        let due = self.due(now).is_some_and(|due| end || due <= now);
        due.then(|| std::mem::take(&mut self.dropped))
    }

    /// Returns when the report is due; `None` if nothing was dropped.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        let wait = self.bucket.wait(now, self.bucket.burst() / PART);
        (self.dropped > 0).then(|| now.checked_add(wait)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(text: &[u8]) -> Piece<'_> {
        Piece { text, at: 0, cut: 0 }
    }

    proptest! {
        #[test]
        fn every_byte_is_kept_or_reported_and_the_kept_bytes_are_bounded(
            burst in 1_u64..3000,
            lines in proptest::collection::vec((0_usize..400, 0_u64..500), 1..200),
        ) {
            let start = Instant::now();
            let rate = Rate { bytes_per_second: 1000, burst };
            let mut flood = Flood::new(rate, start);
            let (mut elapsed, mut kept, mut reported, mut said, mut spent) = (0, 0, 0, 0, 0);
            for (length, pause) in lines {
                elapsed += pause;
                let verdict = flood.judge(start + Duration::from_millis(elapsed), line(&vec![b'x'; length]));
                said += length as u64 + 1;
                reported += verdict.report.unwrap_or(0);
                if verdict.keep {
                    kept += length as u64 + 1;
                    spent += length as u64 + RECORD;
                }
            }
            let end = start + Duration::from_millis(elapsed);
            reported += flood.report(end, true).unwrap_or(0);
            prop_assert_eq!(kept + reported, said);
            prop_assert_eq!(flood.report(end, true), None);
            // One line can be longer than the whole allowance.
            let allowed = burst + elapsed + 400 + RECORD;
            prop_assert!(spent <= allowed, "{} of {}", spent, allowed);
        }
    }

    #[test]
    fn a_flood_leaves_one_report_and_then_lines_are_kept_again() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut flood = Flood::new(Rate { bytes_per_second: 1000, burst: 4000 }, now);
        let text = [b'x'; 900];
        let kept = (0..1000).filter(|_| flood.judge(now, line(&text)).keep).count();
        assert_eq!(kept, 4);
        assert_eq!(flood.due(now), Some(now + second));
        assert_eq!(flood.report(now, false), None);
        let verdict = flood.judge(now + second, line(&text));
        assert_eq!(verdict, Verdict { report: Some(996 * 901), keep: true });
        assert_eq!(flood.due(now + second), None);
    }
}
