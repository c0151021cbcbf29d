//! The audit log: records each call that changes or reveals something, in a file and in journald.
//!
//! `audit.jsonl` in the state directory has one JSON object a line ([`AuditRecord`]). A full file is renamed to
//! `audit.jsonl.1` and replaces the previous one, so the log is bounded. Under journald each record is also a
//! message with the field `AGENTD_AUDIT`.
//!
//! A separate thread writes the file, so a slow disk delays no call. The number of records per minute is limited for
//! each session, named token and other user. So none of them can push other records out of the log.
//!
//! This module does not identify the caller.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};

use agentd_api::audit::{AuditList, AuditRecord, LONGEST_PATH};
use agentd_api::prerequisite::Requester;
use agentd_api::{SessionId, TokenName};
use jiff::Timestamp;
use tokio::sync::oneshot;

use agentd_host::files::open_private_log;
use agentd_metrics::Metrics;

/// Maximum size of each of the two files, in bytes.
const LONGEST: u64 = 8 << 20;
/// Maximum number of records that wait to be written.
const WAITING: usize = 1024;
/// Maximum number of records per minute for calls from inside one session, with one named token, or of another user.
const A_MINUTE: u32 = 120;
/// Target of the messages to journald.
pub const TARGET: &str = "agentd::audit";

/// The audit log of one daemon.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    writer: SyncSender<Task>,
    rates: Mutex<Rates>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
enum Task {
    Write(Box<AuditRecord>),
    /// Sends a reply once all earlier records are written.
    Flush(oneshot::Sender<()>),
}

impl Audit {
    /// Starts the thread that writes `audit.jsonl` in the state directory.
    ///
    /// # Errors
    ///
    /// Fails when the thread cannot be started. A file that cannot be written is no error: the log reports it, and
    /// journald has the records.
    pub fn begin(state: &Path, metrics: Arc<Metrics>) -> io::Result<Self> {
        let path = state.join("audit.jsonl");
        let (writer, tasks) = sync_channel(WAITING);
        let counter = Arc::clone(&metrics);
        let mut log = Log { path: path.clone(), longest: LONGEST, file: None, failed: false, metrics: counter };
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || log.write_all(&tasks))?;
        Ok(Self { path, writer, rates: Mutex::default(), metrics })
    }

    /// Records a call, and returns the record. `None` if the caller has too many records. Does not wait for the disk.
    pub fn record(&self, mut record: AuditRecord) -> Option<AuditRecord> {
        cut(&mut record.path);
        if let Some(party) = Party::of(&record.requester) {
            let minute = record.time.as_second().div_euclid(60);
            let mut rates = self.rates.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let Some(unrecorded) = rates.count(&party, minute) else {
                self.metrics.audit_dropped.count([]);
                return None;
            };
            record.unrecorded = unrecorded;
        }
        say(&record);
        self.metrics.audit_records.count([]);
        if record.code.is_some() {
            self.metrics.audit_refusals.count([]);
        }
        match self.writer.try_send(Task::Write(Box::new(record.clone()))) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                self.metrics.audit_dropped.count([]);
                tracing::warn!("cannot write the audit log fast enough; a record is lost");
            }
            Err(TrySendError::Disconnected(_)) => {
                self.metrics.audit_dropped.count([]);
                tracing::error!("the thread that writes the audit log has ended");
            }
        }
        Some(record)
    }

    /// Reads the newest `limit` records that `wanted` accepts.
    pub async fn read(
        &self,
        limit: usize,
        wanted: impl Fn(&AuditRecord) -> bool + Send + 'static,
    ) -> io::Result<AuditList> {
        let (written, all) = oneshot::channel();
        if self.writer.try_send(Task::Flush(written)).is_ok() {
            // If the thread has ended, the files contain everything.
            let _ = all.await;
        }
        let path = self.path.clone();
        agentd_host::work::blocking(move || read(&path, limit, wanted)).await.map_err(io::Error::other)?
    }
}

/// Cuts a path to the maximum length, at the boundary of a character.
fn cut(path: &mut String) {
    if path.len() > LONGEST_PATH {
        path.truncate(path.floor_char_boundary(LONGEST_PATH));
    }
}

/// Sends the message to journald. Other logs leave it out ([`TARGET`]), since the file has it.
fn say(record: &AuditRecord) {
    let AuditRecord { request, method, path, session, requester, status, code, .. } = record;
    tracing::info!(
        target: TARGET,
        {
            agentd.audit = 1,
            agentd.session = session.as_deref(),
            agentd.caller.uid = requester.uid,
            agentd.caller.pid = requester.pid,
            agentd.caller.program = requester.program.as_deref(),
            agentd.caller.session = requester.session.as_ref().map(SessionId::as_str),
            agentd.caller.token = requester.token.as_ref().map(TokenName::as_str),
            agentd.request = request,
            agentd.status = status,
            agentd.code = code.map(agentd_api::Code::as_str)
        },
        "{method} {path:?} by {requester}: {status}"
    );
}

/// Callers whose records are limited together. The owner's records are not limited.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    Session(SessionId),
    Token(TokenName),
    /// Another user, by the read-only socket.
    User(u32),
}

impl Party {
    fn of(requester: &Requester) -> Option<Self> {
        let Requester { session, token, uid, .. } = requester;
        let is_other = *uid != 0 && *uid != nix::unistd::geteuid().as_raw();
        let token = || token.clone().map(Self::Token);
        session.clone().map(Self::Session).or_else(token).or_else(|| is_other.then_some(Self::User(*uid)))
    }
}

/// Number of calls of each party in the present minute.
#[derive(Debug, Default)]
struct Rates {
    minute: i64,
    calls: BTreeMap<Party, u32>,
    unrecorded: BTreeMap<Party, u64>,
}

impl Rates {
    /// Counts a call. Returns `None` over the limit, else the number of unrecorded calls since the last recorded
    /// one.
    fn count(&mut self, party: &Party, minute: i64) -> Option<u64> {
        if self.minute != minute {
            self.minute = minute;
            self.calls.clear();
        }
        let calls = self.calls.entry(party.clone()).or_default();
        *calls = calls.saturating_add(1);
        if *calls > A_MINUTE {
            *self.unrecorded.entry(party.clone()).or_default() += 1;
            return None;
        }
        Some(self.unrecorded.remove(party).unwrap_or_default())
    }
}

/// The file, owned by the writing thread.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    longest: u64,
    file: Option<File>,
    /// Whether the last write failed. A series of failures is logged once.
    failed: bool,
    metrics: Arc<Metrics>,
}

impl Log {
    fn write_all(&mut self, tasks: &Receiver<Task>) {
        while let Ok(task) = tasks.recv() {
            match task {
                Task::Write(record) => self.write(&record),
                Task::Flush(written) => drop(written.send(())),
            }
        }
    }

    fn write(&mut self, record: &AuditRecord) {
        match self.append(record) {
            Ok(()) => self.failed = false,
            Err(error) => {
                self.file = None;
                self.metrics.audit_dropped.count([]);
                if !self.failed {
                    tracing::error!(
                        path = %self.path.display(), %error,
                        "cannot write the audit log; records are lost"
                    );
                }
                self.failed = true;
            }
        }
    }

    fn append(&mut self, record: &AuditRecord) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        let mut file = match self.file.take() {
            Some(file) => file,
            None => open_private_log(&self.path)?,
        };
        let length = file.metadata()?.len();
        if length > 0 && length + line.len() as u64 > self.longest {
            std::fs::rename(&self.path, before(&self.path))?;
            file = open_private_log(&self.path)?;
        }
        // One write call, so that a killed daemon leaves no partial line.
        file.write_all(&line)?;
        self.file = Some(file);
        Ok(())
    }
}

/// Returns the path of the previous file.
fn before(path: &Path) -> PathBuf {
    path.with_extension("jsonl.1")
}

fn read(path: &Path, limit: usize, wanted: impl Fn(&AuditRecord) -> bool) -> io::Result<AuditList> {
    let mut found = std::collections::VecDeque::new();
    let mut unreadable = 0;
    for path in [before(path), path.to_owned()] {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file).split(b'\n') {
            match serde_json::from_slice::<AuditRecord>(&line?) {
                Ok(record) if wanted(&record) => {
                    if found.len() == limit {
                        found.pop_front();
                    }
                    found.push_back(record);
                }
                Ok(_) => {}
                Err(_) => unreadable += 1,
            }
        }
    }
    Ok(AuditList { records: found.into(), unreadable })
}

/// Reports whether a time is not before `since`.
pub(crate) fn is_since(time: Timestamp, since: Option<Timestamp>) -> bool {
    since.is_none_or(|since| time >= since)
}

#[cfg(test)]
mod tests {
    use agentd_api::prerequisite::Requester;

    use super::*;

    fn record(number: i64, session: Option<&str>) -> AuditRecord {
        AuditRecord {
            time: Timestamp::from_second(number).unwrap(),
            request: format!("1-{number}"),
            method: "POST".to_owned(),
            path: "/v1/sessions/x/stop".to_owned(),
            session: None,
            requester: Requester {
                uid: 1,
                pid: Some(2),
                program: None,
                session: session.map(|id| id.parse().unwrap()),
                token: None,
            },
            status: 202,
            code: None,
            unrecorded: 0,
        }
    }

    #[tokio::test]
    async fn the_next_daemon_reads_the_records_back() {
        let state = tempfile::tempdir().unwrap();
        for number in 0..2 {
            Audit::begin(state.path(), Arc::new(Metrics::new("0"))).unwrap().record(record(number, None));
        }
        let audit = Audit::begin(state.path(), Arc::new(Metrics::new("0"))).unwrap();
        audit.record(record(2, None));
        // The threads of the earlier daemons write independently, so the test waits for their records.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            let all = audit.read(10, |_| true).await.unwrap();
            if all.records.len() == 3 {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{all:?}");
        }
        let some = audit.read(10, |record| is_since(record.time, Timestamp::from_second(1).ok())).await.unwrap();
        assert_eq!(some.records.len(), 2);
        assert_eq!(audit.read(1, |_| true).await.unwrap().records.len(), 1, "the limit holds");
    }

    #[test]
    fn the_log_is_bounded_and_a_damaged_line_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        std::fs::write(&path, "half a line\n").unwrap();
        let mut log =
            Log { path: path.clone(), longest: 2000, file: None, failed: false, metrics: Arc::new(Metrics::new("0")) };
        for number in 0..10 {
            log.write(&record(number, None));
        }
        let list = read(&path, 100, |_| true).unwrap();
        assert_eq!((list.unreadable, list.records.len()), (1, 10));
        for number in 10..1000 {
            log.write(&record(number, None));
        }
        for file in [path.clone(), before(&path)] {
            assert!(std::fs::metadata(&file).unwrap().len() <= 2000, "{file:?}");
        }
        let list = read(&path, 100, |_| true).unwrap();
        assert_eq!(list.records.last(), Some(&record(999, None)));
        let numbers: Vec<i64> = list.records.iter().map(|record| record.time.as_second()).collect();
        assert!(numbers.is_sorted_by(|a, b| a + 1 == *b), "{numbers:?}");
    }

    #[test]
    fn a_session_that_floods_the_log_is_limited_and_delays_no_other() {
        let session = |id: &str| Party::Session(id.parse().unwrap());
        let (mut rates, noisy, other) = (Rates::default(), session("abcdefghjkmn"), Party::User(4711));
        let recorded = (0..1000).filter(|_| rates.count(&noisy, 7).is_some()).count();
        assert_eq!(recorded, 120);
        assert_eq!(rates.count(&other, 7), Some(0));
        assert_eq!(rates.count(&noisy, 8), Some(880), "the next record has the number of missing ones");
        assert_eq!(rates.count(&noisy, 8), Some(0));
    }

    #[test]
    fn a_long_path_is_cut_between_characters() {
        let mut path = "/".to_owned() + &"ä".repeat(LONGEST_PATH);
        cut(&mut path);
        assert_eq!(path.len(), LONGEST_PATH - 1);
    }
}
