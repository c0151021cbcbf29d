//! Starts the runs of schedules and follows them to their end.
//!
//! Each step can be repeated: a session and a prompt have the run's key, by which they are made once. A failure that
//! may pass, such as a full disk, is tried again for a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::event::Cause;
use agentd_api::prerequisite::{CheckReport, Requester};
use agentd_api::schedule::{PrerequisitePolicy, RunOutcome, ScheduleRun, ScheduleSpec, ScheduledPrompt, WAIT};
use agentd_api::session::SessionSpec;
use agentd_api::{Code, Problem, TurnId};
use agentd_fault::Point;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::outcome::{RunEnd, wait_for_end};
use super::stored::StoredRun;
use super::{Schedule, Schedules, check, lock};
use crate::{Command, LaunchTerms, Session, needs, pulse};

/// Time for which a start that fails is tried again.
const PATIENCE: Duration = Duration::from_mins(1);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(250);
/// Pause between two looks at the prerequisites of a session that runs.
const LOOK: Duration = Duration::from_secs(5);
/// Time limit for the end of a run that is replaced.
const REPLACED: Duration = Duration::from_mins(1);
/// Time that a request waits for the start of its run.
const STARTS: Duration = Duration::from_secs(20);

/// A run that has started.
struct Launched {
    session: Session,
    turn: Option<TurnId>,
    after: u64,
}

/// Reason why a run did not start.
enum NotStarted {
    /// The run is skipped.
    Skipped(String),
    /// A later run replaces the run.
    Replaced,
    Refused(Problem),
}

impl From<Problem> for NotStarted {
    fn from(problem: Problem) -> Self {
        match problem.code {
            Code::PrerequisitesNotMet | Code::Draining => Self::Skipped(problem.detail),
            _ => Self::Refused(problem),
        }
    }
}

/// Reports whether the start may succeed a moment later.
fn may_pass(code: Code) -> bool {
    matches!(
        code,
        Code::Internal | Code::TooBusy | Code::JournalNotWritable | Code::OutOfResources | Code::KeeperSilent
    )
}

impl Schedules {
    /// Continues the runs that an earlier daemon had begun.
    pub(super) fn take_over(self: &Arc<Self>) {
        for schedule in self.all() {
            for key in schedule.stored().active() {
                self.follow(&schedule, key);
            }
        }
    }

    /// Follows the runs with these keys, and returns them when each has started or will not start.
    pub(super) async fn runs_of(self: &Arc<Self>, schedule: &Arc<Schedule>, keys: Vec<String>) -> Vec<ScheduleRun> {
        for key in &keys {
            if schedule.stored().find(key).is_some_and(|stored| stored.run.outcome.is_active()) {
                self.follow(schedule, key.clone());
            }
        }
        let started = async {
            loop {
                let ended = schedule.ended.notified();
                let stored = schedule.stored();
                let is_starting =
                    |key: &String| stored.find(key).is_some_and(|one| one.run.outcome == RunOutcome::Starting);
                if !keys.iter().any(is_starting) {
                    return;
                }
                ended.await;
            }
        };
        let _ = tokio::time::timeout(STARTS, started).await;
        let stored = schedule.stored();
        keys.iter().filter_map(|key| stored.find(key)).map(|stored| stored.run.clone()).collect()
    }

    /// Follows a run in a task of its own, unless a task follows it already.
    fn follow(self: &Arc<Self>, schedule: &Arc<Schedule>, key: String) {
        let token = CancellationToken::new();
        {
            let mut running = lock(&schedule.running);
            if running.contains_key(&key) {
                return;
            }
            running.insert(key.clone(), token.clone());
        }
        let (schedules, schedule) = (Arc::clone(self), Arc::clone(schedule));
        let shutdown = self.generation().daemon.shutdown.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                // The next daemon continues the run.
                () = shutdown.cancelled() => {}
                () = Box::pin(schedules.perform(&schedule, &key, &token)) => {}
            }
            lock(&schedule.running).remove(&key);
            schedule.ended.notify_waiters();
        });
    }

    /// Starts a run if it has not started yet, and follows it to its end.
    async fn perform(&self, schedule: &Schedule, key: &str, token: &CancellationToken) {
        let Some(stored) = schedule.stored().find(key).cloned() else { return };
        if stored.replaces {
            end_others(schedule, &stored).await;
        }
        let launched = if stored.run.outcome == RunOutcome::Starting {
            let launched = self.start(schedule, &stored, token).await;
            passed(Point::DaemonScheduleStarted).await;
            self.record(schedule, key, |run| match &launched {
                Ok(launched) => {
                    run.run.outcome = RunOutcome::Started;
                    run.run.session = Some(launched.session.id().clone());
                    run.run.turn.clone_from(&launched.turn);
                    run.after = launched.after;
                }
                Err(why) => close(run, not_started(why)),
            })
            .await;
            passed(Point::DaemonScheduleRecorded).await;
            launched.ok()
        } else {
            self.known(&stored).await
        };
        let end = match launched {
            Some(launched) => follow_to_end(launched, token).await,
            None if schedule.stored().find(key).is_some_and(|stored| stored.run.outcome.is_active()) => {
                (RunOutcome::Failed, Some("the session was removed".to_owned()))
            }
            None => return,
        };
        self.record(schedule, key, |run| close(run, end.clone())).await;
    }

    /// Finds the session of a run that has started.
    async fn known(&self, stored: &StoredRun) -> Option<Launched> {
        let session = self.sessions.find(stored.run.session.as_ref()?.as_str()).await.ok()?;
        Some(Launched { session, turn: stored.run.turn.clone(), after: stored.after })
    }

    /// Starts a run. Repeats the attempt after a failure that may pass.
    async fn start(
        &self,
        schedule: &Schedule,
        stored: &StoredRun,
        token: &CancellationToken,
    ) -> Result<Launched, NotStarted> {
        let (since, spec) = (Instant::now(), schedule.stored().spec.clone());
        passed(Point::DaemonScheduleBegun).await;
        loop {
            let started = tokio::select! {
                () = token.cancelled() => return Err(NotStarted::Replaced),
                started = self.start_once(&spec, stored) => started,
            };
            match started {
                Err(NotStarted::Refused(problem)) if may_pass(problem.code) && since.elapsed() < PATIENCE => {
                    tracing::warn!(schedule = %schedule.name, error = %problem.detail, "a run cannot start yet");
                    tokio::time::sleep(PAUSE).await;
                }
                started => return started,
            }
        }
    }

    async fn start_once(&self, spec: &ScheduleSpec, stored: &StoredRun) -> Result<Launched, NotStarted> {
        match (&spec.session, &spec.prompt) {
            (Some(session), _) => self.create(spec, session, stored).await,
            (None, Some(prompt)) => self.prompt(spec, prompt, stored).await,
            (None, None) => Err(Problem::new(Code::ScheduleInvalid, "the schedule has nothing to start").into()),
        }
    }

    async fn create(
        &self,
        schedule: &ScheduleSpec,
        session: &SessionSpec,
        stored: &StoredRun,
    ) -> Result<Launched, NotStarted> {
        // The key is searched only among sessions that have been read.
        self.sessions.are_read().await;
        let generation = self.generation();
        let created = if let Some(created) = self.sessions.made_with(&stored.key) {
            created
        } else {
            let spec = check::run_spec(&generation, schedule, session, Some(stored.run.due));
            let terms = terms(schedule, stored);
            if terms.wait_until.is_none()
                && let Some(problem) = needs::obstacles(&generation, &spec).await
            {
                return Err(problem.into());
            }
            self.sessions.create(spec, Some(stored.key.clone()), terms, None).await?
        };
        let turn = session.initial_prompt.as_ref().map(|_| TurnId::numbered(1));
        Ok(Launched { session: created, turn, after: 0 })
    }

    async fn prompt(
        &self,
        schedule: &ScheduleSpec,
        prompt: &ScheduledPrompt,
        stored: &StoredRun,
    ) -> Result<Launched, NotStarted> {
        let session = self.sessions.find(&prompt.session).await?;
        session.is_current().await;
        let command = || Command::Prompt {
            text: prompt.text.clone(),
            parts: Vec::new(),
            schema: None,
            key: Some(stored.key.clone()),
            requester: Some(requester()),
        };
        if session.view().status.phase.is_over() {
            match session.ask(command()).await {
                // The prompt was sent before a restart of agentd, and its session has ended since.
                Ok(done) => return Ok(Launched { session, turn: done.turn, after: done.after_seq }),
                Err(problem) if problem.code == Code::WrongPhase => {}
                Err(problem) => return Err(problem.into()),
            }
            match self.sessions.resume(&session, false, terms(schedule, stored)).await {
                Err(problem) if problem.code == Code::WrongPhase && session.view().status.phase.is_active() => {}
                resumed => resumed?,
            }
        } else {
            self.meet(schedule, &session, stored).await?;
        }
        let done = session.ask(command()).await?;
        Ok(Launched { session, turn: done.turn, after: done.after_seq })
    }

    /// Waits for the prerequisites of a session that runs, or skips the run.
    async fn meet(&self, schedule: &ScheduleSpec, session: &Session, stored: &StoredRun) -> Result<(), NotStarted> {
        let until = terms(schedule, stored).wait_until;
        loop {
            let checked = self.sessions.check_all(session).await?;
            let reports = checked.iter().filter_map(|view| view.report.as_ref());
            let missing: Vec<String> = reports.filter(|one| one.is_obstacle()).map(CheckReport::line).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if until.is_none_or(|until| Timestamp::now() >= until) {
                return Err(NotStarted::Skipped(missing.join("; ")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Changes a run in the schedule's file. Repeats the write until it succeeds, since the run has happened.
    async fn record(&self, schedule: &Schedule, key: &str, change: impl Fn(&mut StoredRun)) {
        let mut is_told = false;
        while let Err(problem) = self.record_once(schedule, key, &change).await {
            if !is_told {
                tracing::error!(schedule = %schedule.name, error = %problem.detail, "cannot record a run yet");
            }
            is_told = true;
            // Meanwhile a client can change or remove the schedule.
            tokio::time::sleep(PAUSE).await;
        }
        schedule.ended.notify_waiters();
        self.changed.notify_one();
    }

    async fn record_once(
        &self,
        schedule: &Schedule,
        key: &str,
        change: &impl Fn(&mut StoredRun),
    ) -> Result<(), Problem> {
        let changing = schedule.changing.lock().await;
        let mut next = schedule.stored().as_ref().clone();
        let Some(run) = next.find_mut(key).filter(|_| *changing) else { return Ok(()) };
        change(run);
        self.write(&next).await?;
        *lock(&schedule.stored) = Arc::new(next);
        Ok(())
    }
}

/// Passes a fault point. A point that a test makes fail has no effect, because the step can be repeated.
async fn passed(point: Point) {
    let _ = pulse::blocking(move || agentd_fault::at(point)).await;
}

/// Ends the runs that a run replaces, and waits for their ends.
async fn end_others(schedule: &Schedule, stored: &StoredRun) {
    let others = || {
        let active = schedule.stored().active().into_iter();
        let earlier = active.take_while(|key| *key != stored.key);
        earlier.collect::<Vec<_>>()
    };
    let ended = async {
        loop {
            let ended = schedule.ended.notified();
            let others = others();
            if others.is_empty() {
                return;
            }
            {
                let running = lock(&schedule.running);
                others.iter().filter_map(|key| running.get(key)).for_each(CancellationToken::cancel);
            }
            ended.await;
        }
    };
    if tokio::time::timeout(REPLACED, ended).await.is_err() {
        tracing::warn!(schedule = %schedule.name, "a replaced run did not end in time; the next run starts beside it");
    }
}

/// Waits for the end of a run. A cancelled run is ended first: its turn, or without a turn its session.
async fn follow_to_end(launched: Launched, token: &CancellationToken) -> RunEnd {
    let Launched { session, turn, after } = launched;
    tokio::select! {
        end = wait_for_end(&session, turn.as_ref(), after) => return end,
        () = token.cancelled() => {}
    }
    let cause = Cause::call(requester());
    let reason = "a later run of the schedule replaces this one".to_owned();
    // A run of its own session is that session. A prompt is one turn of a session that others use.
    let is_own = session.view().spec.labels.contains_key(agentd_api::schedule::LABEL);
    let ended = match turn.clone().filter(|_| !is_own) {
        Some(turn) => session.ask(Command::Cancel { turn: Some(turn), cause }).await,
        None => session.ask(Command::Stop { reason, cause }).await,
    };
    if let Err(problem) = ended {
        tracing::debug!(agentd.session = %session.id(), error = %problem.detail, "the replaced run has ended already");
    }
    wait_for_end(&session, turn.as_ref(), after).await
}

fn not_started(why: &NotStarted) -> RunEnd {
    match why {
        NotStarted::Skipped(reason) => (RunOutcome::Skipped, Some(reason.clone())),
        NotStarted::Replaced => (RunOutcome::Failed, None),
        NotStarted::Refused(problem) => {
            let hint = problem.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
            (RunOutcome::Failed, Some(format!("{}{hint}", problem.detail)))
        }
    }
}

/// Sets the end of a run. A replaced run has its reason already.
fn close(stored: &mut StoredRun, (outcome, reason): RunEnd) {
    stored.run.outcome = outcome;
    stored.run.ended = Some(Timestamp::now());
    if outcome == RunOutcome::Succeeded {
        stored.run.reason = None;
    } else if stored.run.reason.is_none() {
        stored.run.reason = reason;
    }
}

/// Returns the terms of a launch. A wait is counted from the begin of the run.
fn terms(schedule: &ScheduleSpec, stored: &StoredRun) -> LaunchTerms {
    let wait = Duration::from_secs(schedule.wait_seconds.unwrap_or(WAIT));
    let until = || stored.run.started.unwrap_or(stored.run.due).checked_add(wait).unwrap_or(Timestamp::MAX);
    let wait_until = (schedule.prerequisites == PrerequisitePolicy::Wait).then(until);
    LaunchTerms { wait_until, forced_by: None, degraded_by: None, requester: Some(requester()) }
}

/// Returns agentd itself as the requester of a run.
fn requester() -> Requester {
    let program = std::env::current_exe().ok().map(|path| path.display().to_string());
    Requester {
        uid: nix::unistd::getuid().as_raw(),
        pid: Some(std::process::id()),
        program,
        session: None,
        token: None,
    }
}
