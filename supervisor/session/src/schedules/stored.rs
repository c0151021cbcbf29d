//! `schedules/NAME.json`: a schedule's specification, the last time that was dealt with, and the history of its runs.
//!
//! The file is the truth. It is replaced atomically before anything is started, so a killed daemon knows each run that
//! had begun.

use std::io;
use std::path::{Path, PathBuf};

use agentd_api::schedule::{HISTORY, RunOutcome, ScheduleRun, ScheduleSpec};
use agentd_api::{ScheduleName, SessionId};
use agentd_host::files;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Version of the file. A file of another version is not read and stays unchanged.
const VERSION: u32 = 1;

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredSchedule {
    version: u32,
    /// Random id. A schedule that is removed and added again has another one, so its runs have other keys.
    pub(super) id: SessionId,
    pub(super) generation: u64,
    pub(super) created: Timestamp,
    pub(super) spec: ScheduleSpec,
    /// Times up to this one are dealt with.
    pub(super) cursor: Timestamp,
    pub(super) history: Vec<StoredRun>,
}

/// A run in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredRun {
    /// The idempotency key of the session or prompt, by which a run is started once.
    pub(super) key: String,
    /// Whether the run ends the earlier active runs before it starts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) replaces: bool,
    /// Sequence number of the session's journal before the records of the turn.
    #[serde(default)]
    pub(super) after: u64,
    pub(super) run: ScheduleRun,
}

/// The field that every version of the file has.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StoredError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path:?} is not a schedule")]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error("{path:?} has version {found}, but this agentd supports version {VERSION}; the file is unchanged")]
    Version { path: PathBuf, found: u64 },
    #[error("{path:?} belongs to the schedule \"{found}\"")]
    Misplaced { path: PathBuf, found: ScheduleName },
}

/// Returns the path of a schedule's file.
pub(super) fn path(directory: &Path, name: &ScheduleName) -> PathBuf {
    directory.join(format!("{name}.json"))
}

impl StoredSchedule {
    pub(super) fn new(spec: ScheduleSpec, now: Timestamp) -> Self {
        let id = SessionId::random();
        Self { version: VERSION, id, generation: 1, created: now, spec, cursor: now, history: Vec::new() }
    }

    pub(super) fn read(directory: &Path, name: &ScheduleName) -> Result<Self, StoredError> {
        let path = path(directory, name);
        let bytes = std::fs::read(&path).map_err(|source| StoredError::Read { path: path.clone(), source })?;
        let parse = |source| StoredError::Parse { path: path.clone(), source };
        let found = serde_json::from_slice::<Versioned>(&bytes).map_err(parse)?.version;
        if found != u64::from(VERSION) {
            return Err(StoredError::Version { path, found });
        }
        let stored: Self = serde_json::from_slice(&bytes).map_err(parse)?;
        if stored.spec.name != *name {
            return Err(StoredError::Misplaced { path, found: stored.spec.name });
        }
        Ok(stored)
    }

    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        files::write_json(&path(directory, &self.spec.name), self)
    }

    pub(super) fn find(&self, key: &str) -> Option<&StoredRun> {
        self.history.iter().find(|stored| stored.key == key)
    }

    pub(super) fn find_mut(&mut self, key: &str) -> Option<&mut StoredRun> {
        self.history.iter_mut().find(|stored| stored.key == key)
    }

    /// Returns the keys of the runs that may be at work.
    pub(super) fn active(&self) -> Vec<String> {
        let is_active = |stored: &&StoredRun| stored.run.outcome.is_active();
        self.history.iter().filter(is_active).map(|stored| stored.key.clone()).collect()
    }

    /// Adds a run, and forgets the oldest runs above the limit. Active runs are not forgotten.
    pub(super) fn add(&mut self, run: StoredRun) {
        self.history.push(run);
        let limit = usize::try_from(self.spec.history_limit.unwrap_or(HISTORY)).unwrap_or(usize::MAX);
        let mut surplus = self.history.len().saturating_sub(limit);
        self.history.retain(|stored| {
            let is_forgotten = surplus > 0 && !stored.run.outcome.is_active();
            surplus -= usize::from(is_forgotten);
            !is_forgotten
        });
    }

    /// Returns the key of the run that is due at this time.
    pub(super) fn key_of(&self, due: Timestamp) -> String {
        format!("agentd-schedule-{}-{}-{due}", self.spec.name, self.id)
    }

    /// Returns the key of the run that a request with this key began.
    pub(super) fn key_of_request(&self, key: &str) -> String {
        format!("agentd-schedule-{}-{}-request-{key}", self.spec.name, self.id)
    }
}

impl StoredRun {
    pub(super) fn new(key: String, due: Timestamp, outcome: RunOutcome) -> Self {
        let run = ScheduleRun {
            due,
            requested: false,
            outcome,
            started: None,
            ended: None,
            session: None,
            turn: None,
            reason: None,
            count: None,
        };
        Self { key, replaces: false, after: 0, run }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(limit: u32) -> StoredSchedule {
        let text = format!(
            r#"{{"name":"nightly","calendar":"daily","prompt":{{"session":"a","text":"go"}},"history_limit":{limit}}}"#
        );
        StoredSchedule::new(serde_json::from_str(&text).unwrap(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_file_comes_back_and_another_one_is_refused_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let name: ScheduleName = "nightly".parse().unwrap();
        let written = stored(3);
        written.write(directory.path()).unwrap();
        assert_eq!(StoredSchedule::read(directory.path(), &name).unwrap(), written);
        let other: ScheduleName = "other".parse().unwrap();
        std::fs::copy(path(directory.path(), &name), path(directory.path(), &other)).unwrap();
        assert!(matches!(StoredSchedule::read(directory.path(), &other), Err(StoredError::Misplaced { .. })));
        std::fs::write(path(directory.path(), &name), r#"{"version":2}"#).unwrap();
        assert!(matches!(StoredSchedule::read(directory.path(), &name), Err(StoredError::Version { found: 2, .. })));
        std::fs::write(path(directory.path(), &name), "{").unwrap();
        assert!(matches!(StoredSchedule::read(directory.path(), &name), Err(StoredError::Parse { .. })));
    }

    #[test]
    fn the_history_forgets_the_oldest_runs_that_are_over() {
        let mut schedule = stored(2);
        let outcomes = [RunOutcome::Started, RunOutcome::Missed, RunOutcome::Failed, RunOutcome::Skipped];
        for (second, outcome) in outcomes.into_iter().enumerate() {
            let due = Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
            schedule.add(StoredRun::new(schedule.key_of(due), due, outcome));
        }
        let left: Vec<RunOutcome> = schedule.history.iter().map(|stored| stored.run.outcome).collect();
        assert_eq!(left, [RunOutcome::Started, RunOutcome::Skipped]);
        assert_eq!(schedule.active(), [schedule.key_of(Timestamp::UNIX_EPOCH)]);
    }
}
