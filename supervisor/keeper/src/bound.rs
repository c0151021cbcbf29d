//! How long a journal may become while nobody shortens it.
//!
//! The daemon removes old segments as soon as more is there than is kept. Where it is down, or slower than the agent, the keeper holds the
//! bound: above it notifications, noise and stderr are left out. Requests, responses and the keeper's own records are written all the same.
//! A run of records that are left out is one `agent.dropped`, written before the next record that is kept, and every [`SAY`] while it lasts.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use agentd_api::event::{AgentDropped, Body};
use agentd_journal::Record;

use crate::protocol::Keep;

/// At the bound the journal is measured this often: the daemon may have shortened it.
const LOOK: Duration = Duration::from_millis(250);
/// How long a run may be before it is said, so that clients and the daemon hear of the agent.
const SAY: Duration = Duration::from_mins(1);
/// A segment counts as at least so long, bytes: one line may be longer than a short segment.
const LEAST_SEGMENT: u64 = 1 << 20;
/// About what a record takes in the journal beside its data, bytes.
const RECORD: u64 = 100;

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct Bound {
    directory: PathBuf,
    /// Absent: there is none.
    most: Option<u64>,
    /// Of one segment.
    segment: u64,
    /// How many bytes the journal has: as measured, and about what was written since.
    length: u64,
    measured: Option<Instant>,
    run: Option<Run>,
}

/// What was left out that no record speaks of yet.
#[derive(Debug)]
struct Run {
    lines: u64,
    bytes: u64,
    since: Instant,
}

impl Bound {
    /// Of the journal in this directory, of which so much is kept, in segments of so many bytes. A segment that is being written and one
    /// that the daemon reads meanwhile have their place beside what is kept.
    pub(crate) fn new(directory: PathBuf, keep: Keep, segment: u64) -> Self {
        let segment = segment.max(LEAST_SEGMENT);
        let most = keep.0.map(|keep| keep.saturating_add(segment.saturating_mul(2)));
        let mut bound = Self { directory, most, segment, length: 0, measured: None, run: None };
        bound.measure(Instant::now());
        bound
    }

    /// So many bytes of data were written, in so many records. What seems to pass the bound by that is measured.
    pub(crate) fn grew(&mut self, now: Instant, records: u64, bytes: u64) {
        let had_passed = self.is_passed();
        self.length += records * RECORD + bytes;
        if self.is_passed() && !had_passed {
            self.measure(now);
        }
    }

    /// The daemon writes, which may have shortened the journal before: the next record is measured anew.
    pub(crate) fn look_again(&mut self) {
        self.measured = None;
    }

    /// Whether only what is essential may be written.
    pub(crate) fn is_reached(&mut self, now: Instant) -> bool {
        let Some(most) = self.most else { return false };
        if self.length >= most && self.measured.is_none_or(|measured| now >= measured + LOOK) {
            self.measure(now);
        }
        self.length >= most
    }

    /// Whether even what is essential has grown above the bound by a segment. It is not measured again after that, since nobody shortens
    /// a journal without a daemon.
    pub(crate) fn is_passed(&self) -> bool {
        self.most.is_some_and(|most| self.length >= most.saturating_add(self.segment))
    }

    /// The record was left out.
    pub(crate) fn left_out(&mut self, now: Instant, record: &Record<'_>) {
        let run = self.run.get_or_insert(Run { lines: 0, bytes: 0, since: now });
        run.lines += 1;
        run.bytes += record.data.get().len() as u64;
    }

    /// What is to be written before the next record, or, with `quiet`, though there is none.
    pub(crate) fn say(&mut self, now: Instant, quiet: bool) -> Option<Body> {
        let most = self.most?;
        let run = self.run.take_if(|run| !quiet || now >= run.since + SAY)?;
        let reason = format!(
            "the journal has reached its bound of {most} bytes: journal.keep_session and room for two segments"
        );
        Some(Body::AgentDropped(AgentDropped { lines: run.lines, bytes: run.bytes, reason }))
    }

    fn measure(&mut self, now: Instant) {
        self.measured = Some(now);
        // Where it cannot be measured, the estimate stands.
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
    fn a_bound_is_reached_until_the_journal_is_shortened_and_a_run_is_said_once() {
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join(agentd_journal::JOURNAL);
        let data = RawValue::from_string("\"xxxxxxxx\"".to_owned()).unwrap();
        let record = Record { kind: "agent.noise", data: &data };
        let mut bound = Bound::new(directory.path().to_owned(), Keep(Some(1000)), LEAST_SEGMENT);
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
        assert!(bound.say(now, true).is_none());
        let Some(Body::AgentDropped(dropped)) = bound.say(now, false) else { panic!("it is said") };
        assert_eq!((dropped.lines, dropped.bytes), (3, 30));
        assert!(dropped.reason.contains(&format!("{most} bytes")), "{}", dropped.reason);
        assert!(bound.say(now, false).is_none());
        bound.left_out(now, &record);
        assert!(bound.say(now + SAY, true).is_some(), "a long run is said while it lasts");
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
    fn a_journal_that_is_kept_whole_has_no_bound() {
        let directory = tempfile::tempdir().unwrap();
        let mut bound = Bound::new(directory.path().to_owned(), Keep(None), 1);
        bound.grew(Instant::now(), 1, u64::MAX / 2);
        assert!(!bound.is_reached(Instant::now()) && !bound.is_passed());
    }
}
