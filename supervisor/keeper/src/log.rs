//! The journal as the keeper writes it: what was read from the agent is written in the end, whatever the disk does meanwhile.
//!
//! When a write fails the records stay here, in order, and are tried again every [`RETRY`]; until that succeeds the keeper reads
//! nothing more from the agent, so what is kept is bounded by one read of each pipe.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use agentd_api::event::Body;
use agentd_journal::{AppendError, Record, Writer};
use jiff::Timestamp;
use serde_json::value::RawValue;

use crate::protocol::{NewRecord, Tail};

/// How long after a failure it is tried again.
pub(crate) const RETRY: Duration = Duration::from_millis(250);

/// One record that waits for the disk.
#[derive(Debug)]
pub(crate) struct Waiting {
    kind: String,
    data: Box<RawValue>,
}

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct Log {
    writer: Writer,
    /// Each was one append and will be one append.
    waiting: VecDeque<Vec<Waiting>>,
    /// What was written is to be brought to the disk, and that failed.
    unsynced: bool,
    retry_at: Option<Instant>,
}

impl Log {
    pub(crate) fn new(writer: Writer) -> Self {
        Self { writer, waiting: VecDeque::new(), unsynced: false, retry_at: None }
    }

    /// Writes the records, now or as soon as the disk takes them.
    pub(crate) fn write(&mut self, records: &[Record<'_>]) {
        if records.is_empty() || (!self.is_blocked() && self.append(records).is_ok()) {
            return;
        }
        self.defer(records);
    }

    /// Keeps the records as if the disk had not taken them.
    pub(crate) fn defer(&mut self, records: &[Record<'_>]) {
        let own = |record: &Record<'_>| Waiting { kind: record.kind.to_owned(), data: record.data.to_owned() };
        self.waiting.push_back(records.iter().map(own).collect());
        self.retry_at.get_or_insert_with(|| Instant::now() + RETRY);
    }

    /// Writes one of the keeper's own records.
    pub(crate) fn write_body(&mut self, body: &Body) {
        self.write(&[Record { kind: body.kind(), data: &body.to_data() }]);
    }

    /// Writes the daemon's records now or not at all. An error is of no concern to what comes after.
    pub(crate) fn try_write(&mut self, records: &[NewRecord]) -> Result<u64, AppendError> {
        let records: Vec<_> = records.iter().map(|record| Record { kind: &record.kind, data: &record.data }).collect();
        self.append(&records)
    }

    /// Brings what was written to the disk, now or as soon as it can be; says whether it is there.
    pub(crate) fn sync(&mut self) -> bool {
        self.unsynced = true;
        self.settle()
    }

    /// Tries again, where it is time to; says whether nothing waits any more.
    pub(crate) fn retry(&mut self, now: Instant) -> bool {
        match self.retry_at {
            None => true,
            Some(at) if now < at => false,
            Some(_) => {
                self.retry_at = None;
                self.settle()
            }
        }
    }

    /// When [`Log::retry`] is due.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether the disk does not take what it is given.
    pub(crate) fn is_blocked(&self) -> bool {
        self.retry_at.is_some()
    }

    pub(crate) fn tail(&self) -> Tail {
        Tail { seq: self.writer.last_seq(), blocked: self.is_blocked() }
    }

    fn settle(&mut self) -> bool {
        while let Some(batch) = self.waiting.pop_front() {
            let records: Vec<_> =
                batch.iter().map(|waiting| Record { kind: &waiting.kind, data: &waiting.data }).collect();
            if self.append(&records).is_err() {
                self.waiting.push_front(batch);
                return false;
            }
        }
        if self.unsynced {
            if self.writer.sync().is_err() {
                self.retry_at = Some(Instant::now() + RETRY);
                return false;
            }
            self.unsynced = false;
        }
        true
    }

    fn append(&mut self, records: &[Record<'_>]) -> Result<u64, AppendError> {
        let appended = self.writer.append(Timestamp::now(), records);
        if let Err(AppendError::Write { .. }) = &appended {
            self.retry_at = Some(Instant::now() + RETRY);
        }
        appended
    }
}
