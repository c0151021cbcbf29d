//! Collects what the feed has to look at: sessions that published a state, and events of the daemon.
//!
//! Drivers and handlers only leave a note here and never wait. One thread takes the notes ([`Changes::wait`]). Notes
//! about sessions are merged, and events of the daemon are bounded in number.
//!
//! A driver also notes the runs of records that are agent output. So the feed need not read the same records again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agentd_api::SessionId;
use agentd_api::feed::Notice;
use jiff::Timestamp;
use tokio::sync::oneshot;

/// Maximum number of the daemon's events that wait to be taken.
const NOTICES: usize = 1024;
/// Maximum number of runs of agent output that are known of one session.
const RUNS: usize = 256;

/// The notes of one daemon.
#[derive(Debug, Default)]
pub struct Changes {
    noted: Mutex<Noted>,
    arrived: Condvar,
    /// Signalled when notes are no longer gathered.
    hurried: Condvar,
}

/// Everything that was noted since the last look.
#[derive(Debug, Default)]
pub struct Noted {
    /// Sessions that published a state.
    pub touched: BTreeSet<SessionId>,
    /// Runs of records of the kind `agent.out`, by session.
    pub output: BTreeMap<SessionId, OutputRuns>,
    /// Sessions that were removed.
    pub removed: BTreeSet<SessionId>,
    /// Events of the daemon, oldest first.
    pub notices: VecDeque<(Timestamp, Notice)>,
    /// Number of events of the daemon that were dropped, because too many waited.
    pub dropped: u64,
    /// Callers that wait until everything before is stored.
    pub barriers: Vec<oneshot::Sender<()>>,
    /// Whether every session on the disk has been read.
    pub whole: bool,
    /// Whether the daemon is ending.
    pub closed: bool,
    /// Whether there is something to look at.
    is_due: bool,
}

/// Runs of records of the kind `agent.out` in one session's journal, ascending.
///
/// Records outside of the runs can be of any kind. Of too many runs, the oldest are forgotten.
#[derive(Debug, Default)]
pub struct OutputRuns {
    runs: VecDeque<RangeInclusive<u64>>,
    /// Whether earlier runs are no longer true, because records may have been replaced.
    is_reset: bool,
}

impl OutputRuns {
    fn push(&mut self, run: RangeInclusive<u64>) {
        match self.runs.back_mut() {
            Some(last) if last.end() + 1 == *run.start() => *last = *last.start()..=*run.end(),
            _ => self.runs.push_back(run),
        }
        if self.runs.len() > RUNS {
            self.runs.pop_front();
        }
    }

    /// Adds later runs.
    pub fn extend(&mut self, later: Self) {
        if later.is_reset {
            *self = later;
            return;
        }
        for run in later.runs {
            self.push(run);
        }
    }

    /// Returns the last record of the run that has this record, and forgets the runs before it.
    pub fn last_of_run(&mut self, seq: u64) -> Option<u64> {
        while self.runs.pop_front_if(|run| *run.end() < seq).is_some() {}
        self.runs.front().filter(|run| run.contains(&seq)).map(|run| *run.end())
    }
}

impl Changes {
    /// Notes that the records from `first` to `last` of a session are agent output.
    pub fn said(&self, id: &SessionId, first: u64, last: u64) {
        let mut noted = self.lock();
        if let Some(runs) = noted.output.get_mut(id) {
            runs.push(first..=last);
        } else {
            let runs = OutputRuns { runs: [first..=last].into(), is_reset: false };
            noted.output.insert(id.clone(), runs);
        }
    }

    /// Takes what was noted about the output of a session.
    pub fn take_output(&self, id: &SessionId) -> Option<OutputRuns> {
        self.lock().output.remove(id)
    }

    /// Forgets what was noted about the output of a session, because records may have been replaced.
    pub fn forget_output(&self, id: &SessionId) {
        self.lock().output.insert(id.clone(), OutputRuns { runs: VecDeque::new(), is_reset: true });
    }

    /// Notes that a session published a state.
    pub fn touch(&self, id: &SessionId) {
        let mut noted = self.lock();
        if !noted.touched.contains(id) {
            noted.touched.insert(id.clone());
            self.arrive(&mut noted);
        }
    }

    /// Notes that a session was removed.
    pub fn removed(&self, id: &SessionId) {
        let mut noted = self.lock();
        noted.removed.insert(id.clone());
        self.arrive(&mut noted);
    }

    /// Notes an event of the daemon. The oldest event is dropped if too many wait.
    pub fn note(&self, notice: Notice) {
        let mut noted = self.lock();
        noted.push((Timestamp::now(), notice));
        self.arrive(&mut noted);
    }

    /// Notes that every session on the disk has been read.
    pub fn whole(&self) {
        let mut noted = self.lock();
        noted.whole = true;
        self.arrive(&mut noted);
    }

    /// Notes that the daemon is ending. All notes before are still taken.
    pub fn close(&self) {
        let mut noted = self.lock();
        noted.closed = true;
        self.arrive(&mut noted);
        self.hurried.notify_one();
    }

    /// Returns a receiver that completes when everything noted before was looked at.
    pub fn barrier(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut noted = self.lock();
        noted.barriers.push(sender);
        self.arrive(&mut noted);
        self.hurried.notify_one();
        receiver
    }

    /// Waits for notes, at most for `limit`, and takes them. Blocks the thread.
    pub fn wait(&self, limit: Option<Duration>) -> Noted {
        let mut noted = self.lock();
        if let Some(limit) = limit {
            let waited = self.arrived.wait_timeout_while(noted, limit, |noted| !noted.is_due);
            noted = waited.unwrap_or_else(PoisonError::into_inner).0;
        } else {
            let waited = self.arrived.wait_while(noted, |noted| !noted.is_due);
            noted = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let (whole, closed) = (noted.whole, noted.closed);
        std::mem::replace(&mut *noted, Noted { whole, closed, ..Noted::default() })
    }

    /// Lets notes gather for `time`. Returns early for a caller of [`Changes::barrier`], and when the daemon ends.
    /// Blocks the thread.
    pub fn gather(&self, time: Duration) {
        let waits = |noted: &mut Noted| noted.barriers.is_empty() && !noted.closed;
        let _gathered = self.hurried.wait_timeout_while(self.lock(), time, waits);
    }

    fn arrive(&self, noted: &mut Noted) {
        noted.is_due = true;
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        // No code under this lock can leave the notes inconsistent.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Noted {
    /// Adds an event of the daemon, and drops the oldest if too many wait.
    pub fn push(&mut self, notice: (Timestamp, Notice)) {
        if self.notices.len() >= NOTICES {
            self.notices.pop_front();
            self.dropped += 1;
        }
        self.notices.push_back(notice);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use agentd_api::feed::DrainUndone;

    use super::*;

    #[test]
    fn notes_gather_until_a_caller_waits_for_them_or_the_daemon_ends() {
        let changes = Changes::default();
        changes.touch(&"abcdefghjkmn".parse().unwrap());
        let time = Duration::from_millis(20);
        let begun = Instant::now();
        changes.gather(time);
        assert!(begun.elapsed() >= time, "a touched session does not end it");
        let long = Duration::from_mins(1);
        let begun = Instant::now();
        let _barrier = changes.barrier();
        changes.gather(long);
        assert_eq!(changes.wait(None).touched.len(), 1);
        changes.close();
        changes.gather(long);
        assert!(begun.elapsed() < long);
    }

    #[test]
    fn runs_of_output_are_joined_bounded_and_forgotten() {
        let changes = Changes::default();
        let id: SessionId = "abcdefghjkmn".parse().unwrap();
        changes.said(&id, 3, 5);
        changes.said(&id, 6, 9);
        changes.said(&id, 12, 12);
        changes.touch(&id);
        let mut runs = changes.wait(None).output.remove(&id).unwrap();
        changes.said(&id, 13, 20);
        changes.touch(&id);
        runs.extend(changes.wait(None).output.remove(&id).unwrap());
        assert_eq!(
            [2, 3, 9, 10, 12, 20, 21].map(|seq| runs.last_of_run(seq)),
            [None, Some(9), Some(9), None, Some(20), Some(20), None]
        );
        changes.said(&id, 21, 22);
        changes.forget_output(&id);
        changes.said(&id, 22, 23);
        changes.touch(&id);
        runs.extend(changes.wait(None).output.remove(&id).unwrap());
        assert_eq!([21, 22].map(|seq| runs.last_of_run(seq)), [None, Some(23)]);
        for run in 0..1000 {
            changes.said(&id, 2 * run, 2 * run);
        }
        assert_eq!(changes.lock().output[&id].runs.len(), RUNS);
    }

    #[test]
    fn notes_are_merged_bounded_and_taken_once() {
        let changes = Changes::default();
        let id: SessionId = "abcdefghjkmn".parse().unwrap();
        for _ in 0..3 {
            changes.touch(&id);
        }
        for _ in 0..NOTICES + 2 {
            changes.note(Notice::DrainUndone(DrainUndone {}));
        }
        let noted = changes.wait(None);
        assert_eq!((noted.touched.len(), noted.notices.len(), noted.dropped), (1, NOTICES, 2));
        let noted = changes.wait(Some(Duration::ZERO));
        assert!(noted.touched.is_empty() && noted.notices.is_empty() && !noted.closed);
        changes.close();
        assert!(changes.wait(None).closed && changes.wait(Some(Duration::ZERO)).closed);
    }
}
