//! Upper bound of a journal's length while no daemon shortens it.
//!
//! The daemon removes old segments as soon as the journal exceeds its target size. If the daemon is down or slower
//! than the agent, the keeper enforces a bound: above it, the keeper drops notifications, noise and stderr. Requests,
//! responses and the keeper's own records are always written.
//!
//! One `agent.dropped` record reports each run of dropped records. It is written before the next kept record, and
//! every [`REPORT_EVERY`] while the run lasts.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use agentd_api::event::{AgentDropped, Body};
use agentd_journal::Record;

use crate::protocol::JournalSizeLimit;

/// Interval at which a journal at its bound is measured, because the daemon may have shortened it.
const LOOK: Duration = Duration::from_millis(250);
/// Maximum length of a run before it is reported, so that clients and the daemon hear of the agent.
const REPORT_EVERY: Duration = Duration::from_mins(1);
/// Minimum size of a segment in bytes for the bound. One line can be longer than a short segment.
const LEAST_SEGMENT: u64 = 1 << 20;
/// Approximate size in bytes of a record without its data.
const RECORD: u64 = 100;

/// Bound of a journal's length; see the module comment.
#[derive(Debug)]
pub(crate) struct Bound {
    directory: PathBuf,
    /// Bound in bytes; `None` if the journal is unbounded.
    most: Option<u64>,
    /// Size of one segment in bytes.
    segment: u64,
    /// Length of the journal in bytes: the last measurement, and an estimate of the bytes written since.
    length: u64,
    measured: Option<Instant>,
    run: Option<Run>,
}

/// Dropped records that no `agent.dropped` has reported yet.
#[derive(Debug)]
struct Run {
    lines: u64,
    bytes: u64,
    since: Instant,
}

impl Bound {
    /// Makes the bound of the journal in this directory from its target size and its segment size. The bound leaves
    /// space for two more segments: a segment being written, and a segment being read by the daemon.
    pub(crate) fn new(directory: PathBuf, keep: JournalSizeLimit, segment: u64) -> Self {
        let segment = segment.max(LEAST_SEGMENT);
        let most = keep.0.map(|keep| keep.saturating_add(segment.saturating_mul(2)));
        let mut bound = Self { directory, most, segment, length: 0, measured: None, run: None };
        bound.measure(Instant::now());
        bound
    }

    /// Counts written records and their bytes of data. If the estimate passes the bound, measures the journal.
    pub(crate) fn grew(&mut self, now: Instant, records: u64, bytes: u64) {
        let had_passed = self.is_passed();
        self.length += records * RECORD + bytes;
        if self.is_passed() && !had_passed {
            self.measure(now);
        }
    }

    /// Forces a measurement before the next record. The connected daemon may have shortened the journal.
    pub(crate) fn look_again(&mut self) {
        self.measured = None;
    }

    /// Reports whether only essential records may be written.
    pub(crate) fn is_reached(&mut self, now: Instant) -> bool {
        let Some(most) = self.most else { return false };
        if self.length >= most && self.measured.is_none_or(|measured| now >= measured + LOOK) {
            self.measure(now);
        }
        self.length >= most
    }

    /// Reports whether essential records have passed the bound by a whole segment. This check does not measure the
    /// journal again, because only a daemon shortens it.
    pub(crate) fn is_passed(&self) -> bool {
        self.most.is_some_and(|most| self.length >= most.saturating_add(self.segment))
    }

    /// Counts a dropped record.
    pub(crate) fn left_out(&mut self, now: Instant, record: &Record<'_>) {
        let run = self.run.get_or_insert(Run { lines: 0, bytes: 0, since: now });
        run.lines += 1;
        run.bytes += record.data.get().len() as u64;
    }

    /// Returns the report to write before the next record. With `quiet`, there is no next record, and only a long run
    /// is reported.
    pub(crate) fn report(&mut self, now: Instant, quiet: bool) -> Option<Body> {
        let most = self.most?;
        let run = self.run.take_if(|run| !quiet || now >= run.since + REPORT_EVERY)?;
        let reason = format!(
            "the journal has reached its bound of {most} bytes: journal.keep_session and room for two segments"
        );
        Some(Body::AgentDropped(AgentDropped { lines: run.lines, bytes: run.bytes, reason }))
    }

    fn measure(&mut self, now: Instant) {
        self.measured = Some(now);
        // If the measurement fails, the estimate stays.
        if self.most.is_some()
            && let Ok(length) = agentd_journal::size(&self.directory)
        {
            self.length = length;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn a_bound_is_reached_until_the_journal_is_shortened_and_a_run_is_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join(agentd_journal::JOURNAL);
        let data = RawValue::from_string("\"xxxxxxxx\"".to_owned()).unwrap();
        let record = Record { kind: "agent.noise", data: &data };
        let mut bound = Bound::new(directory.path().to_owned(), JournalSizeLimit(Some(1000)), LEAST_SEGMENT);
        let now = Instant::now();
        assert!(!bound.is_reached(now));
        let most = 1000 + 2 * LEAST_SEGMENT;
        let has = |length: u64| std::fs::File::create(&journal).unwrap().set_len(length).unwrap();
        has(most);
        bound.grew(now, 1, most - RECORD);
        assert!(bound.is_reached(now + LOOK));
        assert!(!bound.is_passed());
        for _ in 0..3 {
            bound.left_out(now, &record);
        }
        assert!(bound.report(now, true).is_none());
        let Some(Body::AgentDropped(dropped)) = bound.report(now, false) else { panic!("it is said") };
        assert_eq!((dropped.lines, dropped.bytes), (3, 30));
        assert!(dropped.reason.contains(&format!("{most} bytes")), "{}", dropped.reason);
        assert!(bound.report(now, false).is_none());
        bound.left_out(now, &record);
        assert!(bound.report(now + REPORT_EVERY, true).is_some(), "a long run is said while it lasts");
        bound.grew(now + LOOK, 1, LEAST_SEGMENT);
        assert!(!bound.is_passed(), "what was written is shorter than was reckoned");
        has(most + LEAST_SEGMENT);
        bound.grew(now + LOOK, 1, LEAST_SEGMENT);
        assert!(bound.is_passed());
        has(most - 1);
        assert!(bound.is_reached(now + LOOK + LOOK / 2), "it is not measured at every record");
        assert!(!bound.is_reached(now + 2 * LOOK));
        assert!(!bound.is_passed());
    }

    #[test]
    fn a_journal_that_is_never_shortened_has_no_bound() {
        let directory = tempfile::tempdir().unwrap();
        let mut bound = Bound::new(directory.path().to_owned(), JournalSizeLimit(None), 1);
        bound.grew(Instant::now(), 1, u64::MAX / 2);
        assert!(!bound.is_reached(Instant::now()) && !bound.is_passed());
    }
}
