//! Journal access of the keeper. Output that was read from the agent is written eventually, also after disk errors.
//!
//! If a write fails, the records wait in memory, in order, and the keeper retries every [`RETRY`]. It reads nothing
//! more from the agent until a write succeeds. The waiting records are therefore limited to one read of each pipe.
//!
//! A journal at its bound takes only essential records ([`Bound`]).
//!
//! After the agent's end, a full disk must not keep the session open. The waiting records then go into the journal's
//! reserve ([`agentd_journal::ReserveUse`]). Records that do not fit are dropped, except requests, responses and the
//! keeper's own records. An `agent.dropped` record reports their number.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use agentd_api::event::{AgentDropped, Body};
use agentd_journal::{AppendError, Record, ReserveUse, Writer};
use jiff::Timestamp;
use serde_json::value::RawValue;

use crate::bound::Bound;
use crate::essential::is_essential;
use crate::output::{OutputRun, RULES};
use crate::protocol::{NewRecord, Tail};

/// Time between a failed write and its retry.
pub(crate) const RETRY: Duration = Duration::from_millis(250);

/// Record that waits for the disk.
#[derive(Debug)]
pub(crate) struct Waiting {
    kind: String,
    data: Box<RawValue>,
}

/// Journal access of the keeper; see the module comment.
#[derive(Debug)]
pub(crate) struct Log {
    writer: Writer,
    bound: Bound,
    /// Waiting records. Each batch was one append and is written as one append.
    waiting: VecDeque<Vec<Waiting>>,
    /// Whether a sync to the disk failed and must be retried.
    unsynced: bool,
    retry_at: Option<Instant>,
    /// Value of `errno` of the last failure, until a write succeeds.
    errno: Option<i32>,
    /// Whether the agent has ended, so that its last records may use the reserve.
    is_last: bool,
    /// Whether the output that is being written concerns no rule.
    is_quiet: bool,
    /// Output at the end of the journal that concerns no rule.
    output: Option<OutputRun>,
}

impl Log {
    pub(crate) fn new(writer: Writer, bound: Bound) -> Self {
        Self {
            writer,
            bound,
            waiting: VecDeque::new(),
            unsynced: false,
            retry_at: None,
            errno: None,
            is_last: false,
            is_quiet: false,
            output: None,
        }
    }

    /// Writes the records, now or as soon as the disk takes them. At the journal's bound, writes only the essential
    /// records and reports the number of dropped ones.
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

    /// Writes agent output like [`Log::write`]. `is_quiet` is whether all records of the kind `agent.out` concern no
    /// rule.
    pub(crate) fn write_output(&mut self, records: &[Record<'_>], is_quiet: bool) {
        self.is_quiet = is_quiet;
        self.write(records);
        self.is_quiet = false;
    }

    fn say_dropped(&mut self, now: Instant, quiet: bool) {
        if let Some(dropped) = self.bound.report(now, quiet) {
            self.put(&[Record { kind: dropped.kind(), data: &dropped.to_data() }]);
        }
    }

    fn put(&mut self, records: &[Record<'_>]) {
        if records.is_empty() || (!self.is_blocked() && self.append(ReserveUse::Ordinary, records).is_ok()) {
            return;
        }
        self.defer(records);
    }

    /// Queues the records as if a write had failed.
    pub(crate) fn defer(&mut self, records: &[Record<'_>]) {
        let own = |record: &Record<'_>| Waiting { kind: record.kind.to_owned(), data: record.data.to_owned() };
        self.waiting.push_back(records.iter().map(own).collect());
        self.retry_at.get_or_insert_with(|| Instant::now() + RETRY);
    }

    /// Releases memory that only an agent with much output needs.
    pub(crate) fn shrink(&mut self) {
        self.writer.shrink();
    }

    /// Writes one of the keeper's own records.
    pub(crate) fn write_body(&mut self, body: &Body) {
        self.write(&[Record { kind: body.kind(), data: &body.to_data() }]);
    }

    /// Writes the daemon's records now or not at all. An error does not affect later records.
    pub(crate) fn try_write(&mut self, need: ReserveUse, records: &[NewRecord]) -> Result<u64, AppendError> {
        self.bound.look_again();
        let records: Vec<_> = records.iter().map(|record| Record { kind: &record.kind, data: &record.data }).collect();
        self.append(need, &records)
    }

    /// Marks all records from now on as the session's last. Reports whether all of them are in the journal and on the
    /// disk.
    pub(crate) fn finish(&mut self) -> bool {
        self.is_last = true;
        self.unsynced = true;
        // Without a known system error, the retry comes at its usual time.
        (!self.is_blocked() || self.errno.is_some()) && self.settle()
    }

    /// Syncs written records to the disk, even while other records wait. Reports whether the sync succeeded. For
    /// records that were written ahead of the waiting ones.
    pub(crate) fn sync_written(&mut self) -> bool {
        self.writer.sync().is_ok()
    }

    /// Syncs written records to the disk, now or as soon as possible. Reports whether the sync succeeded.
    pub(crate) fn sync(&mut self) -> bool {
        self.unsynced = true;
        self.settle()
    }

    /// Retries a failed write or sync if it is due. Reports whether nothing waits any more.
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

    /// Returns when [`Log::retry`] is due.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Reports whether the disk refuses writes.
    pub(crate) fn is_blocked(&self) -> bool {
        self.retry_at.is_some()
    }

    /// Reports whether the journal is longer than allowed without a daemon that shortens it.
    pub(crate) fn is_passed(&self) -> bool {
        self.bound.is_passed()
    }

    pub(crate) fn tail(&self) -> Tail {
        let errno = self.errno.filter(|_| self.is_blocked());
        Tail { seq: self.writer.last_seq(), blocked: self.is_blocked(), errno, ended: false, output: self.output }
    }

    fn settle(&mut self) -> bool {
        while let Some(batch) = self.waiting.pop_front() {
            let need = if self.is_last { ReserveUse::Late } else { ReserveUse::Ordinary };
            let written =
                self.append(need, &records(&batch)).is_ok() || (self.is_last && self.append_essential(&batch));
            if !written {
                self.waiting.push_front(batch);
                return false;
            }
            self.retry_at = None;
        }
        // A failed write of the daemon's records is not retried here. After the last record, no further space is
        // needed.
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

    /// Writes the essential records of a batch, after one record with the number and bytes of the dropped records.
    /// Reports whether the write succeeded.
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
        self.append(ReserveUse::Final, &told.into_iter().chain(kept).collect::<Vec<_>>()).is_ok()
    }

    fn append(&mut self, need: ReserveUse, records: &[Record<'_>]) -> Result<u64, AppendError> {
        let now = Timestamp::now();
        // The time as the records have it.
        let now = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
        let appended = self.writer.append_as(need, now, records);
        match &appended {
            Ok(last) => {
                self.output = self.run_with(records, *last, now);
                let bytes = records.iter().map(|record| record.data.get().len() as u64).sum();
                self.bound.grew(Instant::now(), records.len() as u64, bytes);
            }
            Err(AppendError::Write { source, .. }) => self.failed(source.raw_os_error()),
            Err(_) => {}
        }
        appended
    }

    /// Returns the run of output at the end of the journal after these records were appended.
    fn run_with(&self, records: &[Record<'_>], last: u64, time: Timestamp) -> Option<OutputRun> {
        let is_quiet = self.is_quiet && records.iter().all(|record| matches!(record.kind, "agent.out" | "place.read"));
        let before = last - records.len() as u64;
        let first = self.output.filter(|run| run.last == before).map_or(before + 1, |run| run.first);
        is_quiet.then_some(OutputRun { rules: RULES, first, last, time })
    }

    fn failed(&mut self, errno: Option<i32>) {
        self.retry_at = Some(Instant::now() + RETRY);
        self.errno = errno;
    }
}

fn records(batch: &[Waiting]) -> Vec<Record<'_>> {
    batch.iter().map(|waiting| Record { kind: &waiting.kind, data: &waiting.data }).collect()
}

#[cfg(test)]
mod tests {
    use agentd_journal::Options;

    use super::*;
    use crate::protocol::JournalSizeLimit;

    #[test]
    fn a_run_of_output_lasts_until_another_record_and_has_the_time_of_its_last_record() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(directory.path(), Options::default()).unwrap();
        let bound = Bound::new(directory.path().to_owned(), JournalSizeLimit(None), 1 << 20);
        let mut log = Log::new(writer, bound);
        let data = RawValue::from_string("{}".to_owned()).unwrap();
        let (out, noise) = (Record { kind: "agent.out", data: &data }, Record { kind: "agent.noise", data: &data });
        let run = |log: &Log| log.tail().output.map(|run| (run.first, run.last));
        log.write_output(&[out], false);
        assert_eq!(run(&log), None);
        log.write_output(&[out, out], true);
        log.write_output(&[out], true);
        assert_eq!(run(&log), Some((2, 4)));
        let mut reader = agentd_journal::Reader::open(directory.path(), 3).unwrap();
        let last = reader.next().unwrap().unwrap();
        let time: Timestamp = last.parts().unwrap().time.parse().unwrap();
        assert_eq!(log.tail().output.map(|run| run.time), Some(time));
        log.write_output(&[out, noise], true);
        assert_eq!(run(&log), None);
        log.write_output(&[out], true);
        assert_eq!(run(&log), Some((7, 7)));
        log.write(&[out]);
        assert_eq!(run(&log), None);
    }
}
