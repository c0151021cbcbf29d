//! Schedules: their registry, the decision about what is due, and the task that waits for the next time.
//!
//! Two things look at a schedule: a timer unit of systemd, by a request, and the daemon's own task. Both call
//! [`Schedules::run_due`], which writes the begin of a run to the schedule's file before it starts anything. So two
//! looks at one time start one run, and a daemon that takes over finishes what had begun. `agentd_schedule` has the
//! rules. `running.rs` starts runs and follows them.

mod check;
mod outcome;
mod running;
mod stored;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use agentd_api::schedule::{
    RunOutcome, ScheduleEnvironment, ScheduleList, ScheduleRun, ScheduleSpec, ScheduleView, Timer, UnreadableSchedule,
};
use agentd_api::{Code, Problem, ScheduleName, chain, hint};
use agentd_host::directories::{DirectoryError, make_private};
use agentd_host::files::UNFINISHED;
use agentd_schedule::{Admission, admit, decide};
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::generation::{Generation, Generations};
use crate::{ExpectedGeneration, Sessions, pulse};
use stored::{StoredRun, StoredSchedule};

/// Maximum number of schedules.
const MOST: usize = 500;

/// The registry of schedules. Shared.
#[derive(Debug)]
pub struct Schedules {
    generations: Arc<Generations>,
    sessions: Arc<Sessions>,
    known: Mutex<BTreeMap<ScheduleName, Arc<Schedule>>>,
    unreadable: Mutex<Vec<UnreadableSchedule>>,
    /// Held while a schedule is added or removed.
    adding: tokio::sync::Mutex<()>,
    /// Notified when a next time may have changed.
    changed: Notify,
    tasks: TaskTracker,
    /// Names of the timer units that the manager has.
    set_timers: Mutex<Vec<String>>,
}

/// One schedule.
#[derive(Debug)]
struct Schedule {
    name: ScheduleName,
    /// Contents of the file. Only the holder of `changing` replaces them.
    stored: Mutex<Arc<StoredSchedule>>,
    /// Held while the file is replaced. `false` after the removal.
    changing: tokio::sync::Mutex<bool>,
    timer: Mutex<TimerState>,
    /// The runs that this daemon follows, by their keys.
    running: Mutex<HashMap<String, CancellationToken>>,
    /// Notified when a run has ended.
    ended: Notify,
}

/// State of the timer unit of a schedule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TimerState {
    /// Name of the unit that the schedule needs, as of the last comparison.
    name: Option<String>,
    /// Whether the manager has the unit.
    is_set: bool,
    /// Why the manager does not have the unit.
    error: Option<String>,
}

/// Why a run begins.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Trigger {
    /// A time may be due.
    Due,
    /// A client requests the run, with the idempotency key of the request.
    Requested { key: Option<String> },
}

impl Schedule {
    fn new(stored: StoredSchedule) -> Arc<Self> {
        Arc::new(Self {
            name: stored.spec.name.clone(),
            stored: Mutex::new(Arc::new(stored)),
            changing: tokio::sync::Mutex::new(true),
            timer: Mutex::default(),
            running: Mutex::default(),
            ended: Notify::new(),
        })
    }

    fn stored(&self) -> Arc<StoredSchedule> {
        Arc::clone(&lock(&self.stored))
    }

    /// Returns the next time, in `Ok(None)` also for a suspended schedule.
    fn next(&self) -> Result<Option<Timestamp>, Problem> {
        let stored = self.stored();
        if stored.spec.suspended { Ok(None) } else { Ok(check::times(&stored.spec)?.next(stored.cursor)) }
    }

    fn view(&self, with_history: bool) -> ScheduleView {
        let (stored, next, timer) = (self.stored(), self.next(), lock(&self.timer).clone());
        let last = stored.history.last().map(|stored| stored.run.clone());
        let failure = last.as_ref().filter(|run| run.outcome == RunOutcome::Failed).and_then(|run| run.reason.clone());
        let (next, invalid) = next.map_or_else(|problem| (None, Some(problem.detail)), |next| (next, None));
        let timer_error = timer.error.filter(|_| next.is_some());
        ScheduleView {
            spec: stored.spec.clone(),
            generation: stored.generation,
            created: stored.created,
            next,
            timer: next.map(|_| if timer.is_set { Timer::Systemd } else { Timer::Agentd }),
            active: u64::try_from(stored.active().len()).unwrap_or(u64::MAX),
            error: invalid.or(timer_error).or(failure),
            last,
            history: if with_history {
                stored.history.iter().map(|stored| stored.run.clone()).collect()
            } else {
                Vec::new()
            },
        }
    }
}

impl Schedules {
    /// Reads all schedules. A file that cannot be read is set aside with the reason, and stays unchanged. This blocks.
    ///
    /// # Errors
    ///
    /// The directory of schedules cannot be created.
    pub fn open(generations: Arc<Generations>, sessions: Arc<Sessions>) -> Result<Self, DirectoryError> {
        let generation = generations.now();
        let directories = &generation.daemon.directories;
        for directory in [directories.schedules(), directories.schedule_environments()] {
            make_private(&directory)?;
            remove_unfinished(&directory);
        }
        let (mut known, mut unreadable) = (BTreeMap::new(), Vec::new());
        for name in names(&directories.schedules()) {
            let parsed = name.parse::<ScheduleName>().map_err(|error| error.to_string());
            let read = parsed
                .and_then(|name| StoredSchedule::read(&directories.schedules(), &name).map_err(|error| chain(&error)));
            match read {
                Ok(stored) => _ = known.insert(stored.spec.name.clone(), Schedule::new(stored)),
                Err(reason) => {
                    tracing::error!(schedule = %name, %reason, "cannot read a schedule; it is set aside");
                    unreadable.push(UnreadableSchedule { name, reason });
                }
            }
        }
        let schedules = Self {
            known: Mutex::new(known),
            unreadable: Mutex::new(unreadable),
            adding: tokio::sync::Mutex::default(),
            changed: Notify::new(),
            tasks: TaskTracker::new(),
            set_timers: Mutex::default(),
            sessions,
            generations,
        };
        for schedule in schedules.all() {
            schedules.restore_environment(&schedule);
        }
        schedules.name_environments();
        Ok(schedules)
    }

    fn all(&self) -> Vec<Arc<Schedule>> {
        lock(&self.known).values().cloned().collect()
    }

    fn generation(&self) -> Arc<Generation> {
        self.generations.now()
    }

    /// Lists the schedules.
    pub fn list(&self) -> ScheduleList {
        let schedules = self.all().iter().map(|schedule| schedule.view(false)).collect();
        ScheduleList { schedules, unreadable: lock(&self.unreadable).clone() }
    }

    /// Shows a schedule.
    pub fn show(&self, name: &str) -> Result<ScheduleView, Problem> {
        Ok(self.find(name)?.view(true))
    }

    fn find(&self, name: &str) -> Result<Arc<Schedule>, Problem> {
        let parsed: Option<ScheduleName> = name.parse().ok();
        if let Some(found) = parsed.and_then(|name| lock(&self.known).get(&name).cloned()) {
            return Ok(found);
        }
        if let Some(found) = lock(&self.unreadable).iter().find(|unreadable| unreadable.name == name) {
            let detail = format!("the schedule {name:?} cannot be read: {}", found.reason);
            return Err(Problem::new(Code::ScheduleUnreadable, detail)
                .hint("correct or remove its file in the state directory, and restart agentd"));
        }
        Err(Problem::new(Code::NoSuchSchedule, format!("there is no schedule {name:?}")).hint(hint::LIST_SCHEDULES))
    }

    /// Adds a schedule.
    #[boxed]
    pub async fn add(&self, spec: ScheduleSpec) -> Result<ScheduleView, Problem> {
        let (now, generation) = (Timestamp::now(), self.generation());
        check::check(&generation, &spec, now).await?;
        let _adding = self.adding.lock().await;
        self.is_free(&spec.name)?;
        self.keep_environment(&spec).await?;
        let schedule = Schedule::new(StoredSchedule::new(spec, now));
        self.write(&schedule.stored()).await?;
        let view = schedule.view(true);
        lock(&self.known).insert(schedule.name.clone(), schedule);
        self.name_environments();
        self.changed.notify_one();
        Ok(view)
    }

    fn is_free(&self, name: &ScheduleName) -> Result<(), Problem> {
        if lock(&self.known).contains_key(name)
            || lock(&self.unreadable).iter().any(|unreadable| unreadable.name == name.as_str())
        {
            return Err(Problem::new(Code::NameTaken, format!("there is a schedule \"{name}\" already"))
                .hint("choose another name, or change the schedule with PUT or `agentctl apply`"));
        }
        if lock(&self.known).len() >= MOST {
            let detail = format!("there are {MOST} schedules, which is the limit");
            return Err(Problem::new(Code::TooBusy, detail).hint("remove a schedule with `agentctl schedule rm`"));
        }
        Ok(())
    }

    /// Replaces the specification of a schedule. Times that have passed are not made up for, if the times changed.
    #[boxed]
    pub async fn set(
        &self,
        name: &str,
        spec: ScheduleSpec,
        expected: ExpectedGeneration,
    ) -> Result<ScheduleView, Problem> {
        let schedule = self.find(name)?;
        if spec.name != schedule.name {
            let detail = format!("the request changes the name of the schedule \"{name}\"");
            return Err(Problem::new(Code::FieldFixed, detail).hint("add a schedule with the other name"));
        }
        let changing = schedule.changing.lock().await;
        if !*changing {
            return self.find(name).map(|_| schedule.view(true));
        }
        let before = schedule.stored();
        expected.check(before.generation)?;
        let spec = with_snapshot(spec, &before.spec);
        if spec == before.spec {
            return Ok(schedule.view(true));
        }
        let (now, is_same) = (Timestamp::now(), has_same_times(&spec, &before.spec));
        // The time of a schedule that is over stays valid.
        let from = if is_same { Timestamp::MIN } else { now };
        check::check(&self.generation(), &spec, from).await?;
        self.keep_environment(&spec).await?;
        let mut next = StoredSchedule::clone(&before);
        if !is_same || (before.spec.suspended && !spec.suspended) {
            next.cursor = now;
        }
        next.generation += 1;
        next.spec = spec;
        self.write(&next).await?;
        *lock(&schedule.stored) = Arc::new(next);
        drop(changing);
        self.name_environments();
        self.changed.notify_one();
        Ok(schedule.view(true))
    }

    /// Removes a schedule, or the file of a schedule that cannot be read. Its sessions stay.
    #[boxed]
    pub async fn remove(&self, name: &str) -> Result<(), Problem> {
        let _adding = self.adding.lock().await;
        let schedule = match self.find(name) {
            Err(problem) if problem.code == Code::ScheduleUnreadable => None,
            found => Some(found?),
        };
        let directories = &self.generation().daemon.directories;
        let file = directories.schedules().join(format!("{name}.json"));
        let environment = directories.schedule_environments().join(format!("{name}.json"));
        let mut changing = match &schedule {
            Some(schedule) => Some(schedule.changing.lock().await),
            None => None,
        };
        let removed = pulse::blocking(move || {
            let _ = std::fs::remove_file(environment);
            std::fs::remove_file(file)
        });
        match removed.await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(not_written(&error)),
            _ => {}
        }
        if let Some(changing) = &mut changing {
            **changing = false;
        }
        lock(&self.unreadable).retain(|unreadable| unreadable.name != name);
        if let Some(schedule) = &schedule {
            lock(&self.known).remove(&schedule.name);
        }
        self.name_environments();
        self.changed.notify_one();
        Ok(())
    }

    /// Runs a schedule if a time is due. Returns the runs that began, were skipped or missed.
    pub async fn run_due(self: &Arc<Self>, name: &str) -> Result<Vec<ScheduleRun>, Problem> {
        let schedule = self.find(name)?;
        self.look(&schedule, Trigger::Due).await
    }

    /// Runs a schedule now. A repeated request with the same key begins one run.
    pub async fn run(self: &Arc<Self>, name: &str, key: Option<String>) -> Result<Vec<ScheduleRun>, Problem> {
        let schedule = self.find(name)?;
        self.look(&schedule, Trigger::Requested { key }).await
    }

    /// Writes what is due to the schedule's file, and then starts it. Returns when the runs have started.
    async fn look(self: &Arc<Self>, schedule: &Arc<Schedule>, trigger: Trigger) -> Result<Vec<ScheduleRun>, Problem> {
        let changing = schedule.changing.lock().await;
        if !*changing {
            return Ok(Vec::new());
        }
        let before = schedule.stored();
        let mut next = StoredSchedule::clone(&before);
        let keys = begin(&mut next, trigger, Timestamp::now())?;
        if next == *before {
            drop(changing);
            return Ok(self.runs_of(schedule, keys).await);
        }
        self.write(&next).await?;
        *lock(&schedule.stored) = Arc::new(next);
        drop(changing);
        self.changed.notify_one();
        Ok(self.runs_of(schedule, keys).await)
    }

    /// Replaces the file of a schedule.
    async fn write(&self, stored: &StoredSchedule) -> Result<(), Problem> {
        let (directory, stored) = (self.generation().daemon.directories.schedules(), stored.clone());
        pulse::blocking(move || stored.write(&directory)).await.map_err(|error| not_written(&error))
    }

    /// Stores the terminal's environment that a session of the schedule begins with.
    async fn keep_environment(&self, spec: &ScheduleSpec) -> Result<(), Problem> {
        let Some(id) = captured(spec).cloned() else { return Ok(()) };
        let generation = self.generation();
        let path = stored::path(&generation.daemon.directories.schedule_environments(), &spec.name);
        let held = id.clone();
        let kept = pulse::blocking(move || generation.snapshots.keep_terminal(&held, &path)).await;
        match kept {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Problem::new(Code::NoSuchSnapshot, format!("there is no terminal environment with the id {id:?}"))
                    .hint("send the environment with POST /v1/snapshots, and use the id of the response"))
            }
            Err(error) => {
                let detail = format!("the captured environment cannot be stored: {error}");
                Err(Problem::new(Code::KeyUnavailable, detail)
                    .hint("see environment.encryption in the configuration, or leave `environment` out"))
            }
        }
    }

    /// Holds the captured environment of a schedule again, after a restart.
    fn restore_environment(&self, schedule: &Schedule) {
        let (generation, stored) = (self.generation(), schedule.stored());
        let Some(id) = captured(&stored.spec) else { return };
        let path = stored::path(&generation.daemon.directories.schedule_environments(), &schedule.name);
        match generation.snapshots.restore_terminal(id, &path) {
            Ok(true) => {}
            Ok(false) => tracing::warn!(schedule = %schedule.name, "the captured environment is missing"),
            Err(error) => tracing::error!(schedule = %schedule.name, %error, "cannot read the captured environment"),
        }
    }

    /// Keeps the captured environments of all schedules in memory.
    fn name_environments(&self) {
        let ids: BTreeSet<String> =
            self.all().iter().filter_map(|schedule| captured(&schedule.stored().spec).cloned()).collect();
        self.sessions.set_scheduled_terminals(ids);
    }

    /// Waits until every run is left to the next daemon. The caller has cancelled the shutdown token before.
    #[boxed]
    pub async fn closed(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Decides what begins now, and adds it to the history. Returns the keys of the runs and of times without a run.
fn begin(next: &mut StoredSchedule, trigger: Trigger, now: Timestamp) -> Result<Vec<String>, Problem> {
    let mut keys = Vec::new();
    let mut begun = match trigger {
        Trigger::Due if next.spec.suspended => return Ok(keys),
        Trigger::Due => {
            let decision = decide(&check::times(&next.spec)?, next.cursor, now, next.spec.missed);
            next.cursor = decision.cursor;
            if let Some(missed) = decision.missed {
                let mut run = StoredRun::new(next.key_of(missed.last), missed.last, RunOutcome::Missed);
                (run.run.count, run.run.ended) = (Some(missed.count), Some(now));
                keys.push(run.key.clone());
                next.add(run);
            }
            let Some(due) = decision.run else { return Ok(keys) };
            StoredRun::new(next.key_of(due), due, RunOutcome::Starting)
        }
        Trigger::Requested { key } => {
            let key = next.key_of_request(&key.unwrap_or_else(|| now.to_string()));
            if next.find(&key).is_some() {
                return Ok(vec![key]);
            }
            let mut run = StoredRun::new(key, now, RunOutcome::Starting);
            run.run.requested = true;
            run
        }
    };
    let active = next.active();
    match admit(next.spec.concurrency, active.len()) {
        Admission::Start => {}
        Admission::Replace => begun.replaces = true,
        Admission::Skip => {
            let due = next.find(&active[0]).map(|stored| stored.run.due.to_string()).unwrap_or_default();
            begun.run.outcome = RunOutcome::Skipped;
            begun.run.reason = Some(format!("the run of {due} is still active"));
        }
    }
    if begun.replaces {
        for key in active {
            if let Some(stored) = next.find_mut(&key) {
                stored.run.reason = Some(format!("replaced by the run of {}", begun.run.due));
            }
        }
    }
    if begun.run.outcome == RunOutcome::Starting {
        begun.run.started = Some(now);
    } else {
        begun.run.ended = Some(now);
    }
    keys.push(begun.key.clone());
    next.add(begun);
    Ok(keys)
}

/// Returns the id of the terminal's environment that a session of the schedule begins with.
fn captured(spec: &ScheduleSpec) -> Option<&String> {
    let session = spec.session.as_ref().filter(|_| spec.environment == ScheduleEnvironment::Captured)?;
    session.environment.snapshot.as_ref()
}

/// Fills in the environment that the schedule has captured already, unless the request names another one.
fn with_snapshot(mut spec: ScheduleSpec, before: &ScheduleSpec) -> ScheduleSpec {
    let kept = captured(before).cloned();
    if spec.environment == ScheduleEnvironment::Captured
        && let Some(session) = &mut spec.session
    {
        session.environment.snapshot = session.environment.snapshot.take().or(kept);
    }
    spec
}

fn has_same_times(one: &ScheduleSpec, other: &ScheduleSpec) -> bool {
    (one.at, &one.calendar, &one.timezone) == (other.at, &other.calendar, &other.timezone)
}

/// Removes the unfinished files that a killed daemon left.
fn remove_unfinished(directory: &std::path::Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns the names of the files of schedules, without their ending.
fn names(directory: &std::path::Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names =
        entries.filter_map(|entry| entry.file_name().to_string_lossy().strip_suffix(".json").map(str::to_owned));
    names.collect()
}

fn not_written(error: &std::io::Error) -> Problem {
    Problem::new(Code::Internal, format!("cannot write the file of the schedule: {error}"))
        .hint("check the free space and the permissions of agentd's state directory")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // No code under these locks can leave the values inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use agentd_api::schedule::Concurrency;

    use super::*;

    fn stored(concurrency: Concurrency) -> StoredSchedule {
        let text = r#"{"name":"n","calendar":"*:0/10","timezone":"UTC","prompt":{"session":"a","text":"go"}}"#;
        let mut spec: ScheduleSpec = serde_json::from_str(text).unwrap();
        spec.concurrency = concurrency;
        StoredSchedule::new(spec, at("2026-01-01T00:00:00Z"))
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn two_looks_at_one_time_begin_one_run() {
        let mut schedule = stored(Concurrency::Allow);
        assert_eq!(begin(&mut schedule, Trigger::Due, at("2026-01-01T00:09:59Z")).unwrap(), Vec::<String>::new());
        let keys = begin(&mut schedule, Trigger::Due, at("2026-01-01T00:10:01Z")).unwrap();
        assert_eq!(keys, [schedule.key_of(at("2026-01-01T00:10:00Z"))]);
        assert!(begin(&mut schedule, Trigger::Due, at("2026-01-01T00:10:02Z")).unwrap().is_empty());
        assert_eq!(schedule.history.len(), 1);
    }

    #[test]
    fn a_run_beside_an_active_one_follows_the_policy() {
        for (policy, outcome, replaces) in [
            (Concurrency::Allow, RunOutcome::Starting, false),
            (Concurrency::Forbid, RunOutcome::Skipped, false),
            (Concurrency::Replace, RunOutcome::Starting, true),
        ] {
            let mut schedule = stored(policy);
            begin(&mut schedule, Trigger::Due, at("2026-01-01T00:10:00Z")).unwrap();
            begin(&mut schedule, Trigger::Due, at("2026-01-01T00:20:00Z")).unwrap();
            let [first, second] = &schedule.history[..] else { panic!("{schedule:?}") };
            assert_eq!((second.run.outcome, second.replaces), (outcome, replaces), "{policy:?}");
            assert_eq!(first.run.reason.is_some(), replaces);
        }
    }

    #[test]
    fn a_repeated_request_and_a_suspended_schedule_begin_nothing_more() {
        let mut schedule = stored(Concurrency::Allow);
        let asked = || Trigger::Requested { key: Some("once".to_owned()) };
        let first = begin(&mut schedule, asked(), at("2026-01-01T00:01:00Z")).unwrap();
        assert_eq!(begin(&mut schedule, asked(), at("2026-01-01T00:02:00Z")).unwrap(), first);
        assert_eq!(schedule.history.len(), 1);
        schedule.spec.suspended = true;
        assert!(begin(&mut schedule, Trigger::Due, at("2026-01-02T00:00:00Z")).unwrap().is_empty());
    }
}
