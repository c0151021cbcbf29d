//! How much of stderr is kept: an agent that floods it is neither slowed down nor does it fill the disk.
//!
//! Whole lines are left out, from the one that is too much until a good part of the allowance is there again; then one record
//! says how many bytes that were. Which lines came before and after it, the journal's order says.

use std::time::{Duration, Instant};

use crate::lines::Piece;
use crate::protocol::Rate;
use crate::rate::Bucket;

/// What a record takes beside its text, bytes.
const RECORD: u64 = 100;
/// This part of the allowance must be there again before anything is kept: else a steady flood made two records of every line kept.
const PART: u64 = 4;

/// What is to be done about a line, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Say that so many bytes were left out.
    pub(crate) tell: Option<u64>,
    pub(crate) keep: bool,
}

#[derive(Debug)]
pub(crate) struct Flood {
    bucket: Bucket,
    /// How many bytes were left out, line breaks included, that nobody was told of yet.
    dropped: u64,
}

impl Flood {
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        Self { bucket: Bucket::new(rate, now), dropped: 0 }
    }

    pub(crate) fn judge(&mut self, now: Instant, line: Piece<'_>) -> Verdict {
        let tell = self.tell(now, false);
        let length = line.text.len() as u64;
        let cost = (length + RECORD).min(self.bucket.burst());
        let keep = self.dropped == 0 && self.bucket.wait(now, cost) == Duration::ZERO;
        if keep {
            self.bucket.take(now, length + RECORD);
        } else {
            self.dropped += length + line.cut + 1;
        }
        Verdict { tell, keep }
    }

    /// How many bytes were left out, where it is time to say so, or with `end` in any case.
    pub(crate) fn tell(&mut self, now: Instant, end: bool) -> Option<u64> {
        let due = self.due(now).is_some_and(|due| end || due <= now);
        due.then(|| std::mem::take(&mut self.dropped))
    }

    /// When it is time to say what was left out; absent where nothing was.
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
        Piece { text, cut: 0 }
    }

    proptest! {
        #[test]
        fn every_byte_is_kept_or_told_of_and_what_is_kept_is_bounded(
            burst in 1_u64..3000,
            lines in proptest::collection::vec((0_usize..400, 0_u64..500), 1..200),
        ) {
            let start = Instant::now();
            let rate = Rate { bytes_per_second: 1000, burst };
            let mut flood = Flood::new(rate, start);
            let (mut elapsed, mut kept, mut told, mut said, mut spent) = (0, 0, 0, 0, 0);
            for (length, pause) in lines {
                elapsed += pause;
                let verdict = flood.judge(start + Duration::from_millis(elapsed), line(&vec![b'x'; length]));
                said += length as u64 + 1;
                told += verdict.tell.unwrap_or(0);
                if verdict.keep {
                    kept += length as u64 + 1;
                    spent += length as u64 + RECORD;
                }
            }
            let end = start + Duration::from_millis(elapsed);
            told += flood.tell(end, true).unwrap_or(0);
            prop_assert_eq!(kept + told, said);
            prop_assert_eq!(flood.tell(end, true), None);
            // One line may be longer than the whole allowance.
            let allowed = burst + elapsed + 400 + RECORD;
            prop_assert!(spent <= allowed, "{} of {}", spent, allowed);
        }
    }

    #[test]
    fn a_flood_leaves_one_record_for_what_it_cost_and_then_it_is_listened_to_again() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut flood = Flood::new(Rate { bytes_per_second: 1000, burst: 4000 }, now);
        let text = [b'x'; 900];
        let kept = (0..1000).filter(|_| flood.judge(now, line(&text)).keep).count();
        assert_eq!(kept, 4);
        assert_eq!(flood.due(now), Some(now + second));
        assert_eq!(flood.tell(now, false), None);
        let verdict = flood.judge(now + second, line(&text));
        assert_eq!(verdict, Verdict { tell: Some(996 * 901), keep: true });
        assert_eq!(flood.due(now + second), None);
    }
}
