//! The journal as the keeper writes it: what was read from the agent is written in the end, whatever the disk does meanwhile.
//!
//! When a write fails the records stay here, in order, and are tried again every [`RETRY`]; until that succeeds the keeper reads
//! nothing more from the agent, so what is kept is bounded by one read of each pipe.
//!
//! A journal that has reached its bound takes only what is essential ([`Bound`]).
//!
//! Once the agent has ended, a disk that is full must not keep the session open. What waits is then written into the reserve of the journal
//! ([`agentd_journal::Need`]). What does not fit there is left out, except requests, responses and the keeper's own records, and an
//! `agent.dropped` says how much that was.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use agentd_api::event::{AgentDropped, Body};
use agentd_journal::{AppendError, Need, Record, Writer};
use jiff::Timestamp;
use serde_json::value::RawValue;

use crate::bound::Bound;
use crate::essential::is_essential;
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
    bound: Bound,
    /// Each was one append and will be one append.
    waiting: VecDeque<Vec<Waiting>>,
    /// What was written is to be brought to the disk, and that failed.
    unsynced: bool,
    retry_at: Option<Instant>,
    /// The error number of the last failure, until it is over.
    errno: Option<i32>,
    /// The agent has ended: its last records may use the reserve.
    is_last: bool,
}

impl Log {
    pub(crate) fn new(writer: Writer, bound: Bound) -> Self {
        Self { writer, bound, waiting: VecDeque::new(), unsynced: false, retry_at: None, errno: None, is_last: false }
    }

    /// Writes the records, now or as soon as the disk takes them. At the journal's bound only those that are essential, and says how many
    /// were left out.
    pub(crate) fn write(&mut self, records: &[Record<'_>]) {
        let now = Instant::now();
        if !self.bound.is_reached(now) {
            self.say_dropped(now, records.is_empty());
            return self.put(records);
        }
        let (kept, left): (Vec<Record<'_>>, Vec<_>) = records.iter().copied().partition(is_essential);
        for record in &left {
            self.bound.left_out(now, record);
        }
        self.say_dropped(now, kept.is_empty());
        self.put(&kept);
    }

    fn say_dropped(&mut self, now: Instant, quiet: bool) {
        if let Some(dropped) = self.bound.say(now, quiet) {
            self.put(&[Record { kind: dropped.kind(), data: &dropped.to_data() }]);
        }
    }

    fn put(&mut self, records: &[Record<'_>]) {
        if records.is_empty() || (!self.is_blocked() && self.append(Need::Ordinary, records).is_ok()) {
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
    pub(crate) fn try_write(&mut self, need: Need, records: &[NewRecord]) -> Result<u64, AppendError> {
        self.bound.look_again();
        let records: Vec<_> = records.iter().map(|record| Record { kind: &record.kind, data: &record.data }).collect();
        self.append(need, &records)
    }

    /// From here on what is written is the last of the session's records. Says whether all of it is in the journal and on the disk.
    pub(crate) fn finish(&mut self) -> bool {
        self.is_last = true;
        self.unsynced = true;
        // Where no error of the system's is known the next try is at its time.
        (!self.is_blocked() || self.errno.is_some()) && self.settle()
    }

    /// Brings what was written to the disk, whatever waits; says whether it is there. For records that went ahead of what waits.
    pub(crate) fn sync_written(&mut self) -> bool {
        self.writer.sync().is_ok()
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

    /// Whether the journal is longer than it may be without a daemon that shortens it.
    pub(crate) fn is_passed(&self) -> bool {
        self.bound.is_passed()
    }

    pub(crate) fn tail(&self) -> Tail {
        let errno = self.errno.filter(|_| self.is_blocked());
        Tail { seq: self.writer.last_seq(), blocked: self.is_blocked(), errno, ended: false }
    }

    fn settle(&mut self) -> bool {
        while let Some(batch) = self.waiting.pop_front() {
            let need = if self.is_last { Need::Late } else { Need::Ordinary };
            let written =
                self.append(need, &records(&batch)).is_ok() || (self.is_last && self.append_essential(&batch));
            if !written {
                self.waiting.push_front(batch);
                return false;
            }
            self.retry_at = None;
        }
        // A write of the daemon's failed, and is not tried again here. Behind the last record there is nothing that would need more room.
        if !self.is_last
            && let Some(errno) = self.errno
            && let Err(error) = self.writer.probe()
        {
            self.failed(error.raw_os_error().or(Some(errno)));
            return false;
        }
        if self.unsynced {
            if let Err(AppendError::Sync { source, .. } | AppendError::Write { source, .. }) = self.writer.sync() {
                self.failed(source.raw_os_error());
                return false;
            }
            self.unsynced = false;
        }
        (self.errno, self.retry_at) = (None, None);
        true
    }

    /// Writes of a batch what may never be left out, and how much of it was.
    fn append_essential(&mut self, batch: &[Waiting]) -> bool {
        let (kept, left): (Vec<_>, Vec<_>) = records(batch).into_iter().partition(is_essential);
        let bytes = left.iter().map(|record| record.data.get().len() as u64).sum();
        let reason = match self.errno {
            Some(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
            None => "the journal could not be written".to_owned(),
        };
        let dropped = Body::AgentDropped(AgentDropped { lines: left.len() as u64, bytes, reason });
        let data = dropped.to_data();
        let told = (!left.is_empty()).then(|| Record { kind: dropped.kind(), data: &data });
        self.append(Need::Final, &told.into_iter().chain(kept).collect::<Vec<_>>()).is_ok()
    }

    fn append(&mut self, need: Need, records: &[Record<'_>]) -> Result<u64, AppendError> {
        let appended = self.writer.append_as(need, Timestamp::now(), records);
        match &appended {
            Ok(_) => {
                let bytes = records.iter().map(|record| record.data.get().len() as u64).sum();
                self.bound.grew(Instant::now(), records.len() as u64, bytes);
            }
            Err(AppendError::Write { source, .. }) => self.failed(source.raw_os_error()),
            Err(_) => {}
        }
        appended
    }

    fn failed(&mut self, errno: Option<i32>) {
        self.retry_at = Some(Instant::now() + RETRY);
        self.errno = errno;
    }
}

fn records(batch: &[Waiting]) -> Vec<Record<'_>> {
    batch.iter().map(|waiting| Record { kind: &waiting.kind, data: &waiting.data }).collect()
}
