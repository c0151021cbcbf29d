//! Waits for the next times, and keeps the timer units of systemd equal to the schedules.
//!
//! A schedule with a timer unit is left to the unit. The daemon looks at it too, a little later, so that a unit that
//! was stopped by hand loses no run.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use jiff::{SignedDuration, Timestamp};

use super::{Schedule, Schedules, TimerState, Trigger, lock};
use crate::launch::{ScheduleTimer, TimerNames};
use agentd_api::chain;

/// Longest time between two looks at the clock. The clock can be set, and continues while the machine sleeps.
const LONGEST: Duration = Duration::from_mins(1);
/// Time by which the daemon is later than a timer unit.
const AFTER_UNIT: SignedDuration = SignedDuration::from_secs(30);
/// Time between two comparisons of the timer units.
const COMPARED: Duration = Duration::from_mins(10);
/// Pause after a schedule that cannot be looked at.
const TROUBLE: Duration = Duration::from_secs(5);

impl Schedules {
    /// Runs what is due until the daemon ends.
    #[boxed]
    pub async fn wait(self: Arc<Self>) {
        let shutdown = self.generation().daemon.shutdown.clone();
        // Runs need the sessions that they have created.
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = self.sessions.are_read() => {}
        }
        self.take_over();
        let mut compared = None;
        let mut is_first = true;
        loop {
            let changed = self.changed.notified();
            let now = Timestamp::now();
            let mut pause = LONGEST;
            for schedule in self.all() {
                pause = pause.min(self.look_at(&schedule, now, is_first));
            }
            is_first = false;
            if self.need_comparison() || compared.is_none_or(|at: tokio::time::Instant| at.elapsed() > COMPARED) {
                self.compare_timers().await;
                compared = Some(tokio::time::Instant::now());
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = changed => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Runs a schedule if it is due, in a task of its own. Returns the time until the next look.
    fn look_at(self: &Arc<Self>, schedule: &Arc<Schedule>, now: Timestamp, is_first: bool) -> Duration {
        let Ok(Some(next)) = schedule.next() else { return LONGEST };
        let by_unit = !is_first && lock(&schedule.timer).is_set;
        let at = if by_unit { next.saturating_add(AFTER_UNIT).unwrap_or(next) } else { next };
        if at > now {
            let left = at.duration_since(now);
            // A timer never ends early, but the clock of the calendar has a coarser one.
            return Duration::try_from(left).unwrap_or(LONGEST).saturating_add(Duration::from_millis(1));
        }
        let (schedules, schedule) = (Arc::clone(self), Arc::clone(schedule));
        self.tasks.spawn(async move {
            if let Err(problem) = schedules.look(&schedule, Trigger::Due).await {
                tracing::error!(schedule = %schedule.name, error = %problem.detail, "cannot run a schedule");
            }
        });
        TROUBLE
    }

    /// Reports whether a schedule has another timer than it needs.
    fn need_comparison(&self) -> bool {
        let differs = |schedule: &Arc<Schedule>| {
            let wanted = self.timer(schedule).map(|timer| timer.name);
            lock(&schedule.timer).name != wanted
        };
        self.all().iter().any(differs) || self.has_removed_timers()
    }

    fn has_removed_timers(&self) -> bool {
        let known: Vec<_> = self.all().iter().filter_map(|schedule| lock(&schedule.timer).name.clone()).collect();
        lock(&self.set_timers).iter().any(|name| !known.contains(name))
    }

    /// Returns the timer unit that a schedule needs.
    fn timer(&self, schedule: &Schedule) -> Option<ScheduleTimer> {
        let next = schedule.next().ok().flatten()?;
        let stored = schedule.stored();
        let generation = self.generation();
        let names = TimerNames::new(&generation.daemon.directories.state);
        Some(ScheduleTimer {
            name: names.of(&schedule.name, &stored.id, stored.generation),
            schedule: schedule.name.clone(),
            calendar: super::check::expression(&stored.spec, next),
            program: generation.daemon.programs.ctl.clone(),
            socket: generation.daemon.directories.control_socket(),
        })
    }

    /// Makes the timer units of the manager equal to the schedules.
    async fn compare_timers(&self) {
        let generation = self.generation();
        let names = TimerNames::new(&generation.daemon.directories.state);
        let wanted: Vec<_> =
            self.all().into_iter().filter_map(|schedule| Some((self.timer(&schedule)?, schedule))).collect();
        let timers: Vec<&ScheduleTimer> = wanted.iter().map(|(timer, _)| timer).collect();
        let Some(results) = generation.daemon.launcher.set_timers(&names, &timers).await else { return };
        for schedule in self.all() {
            *lock(&schedule.timer) = TimerState::default();
        }
        let mut set = Vec::new();
        for ((timer, schedule), result) in wanted.iter().zip(results) {
            let error = result.err().map(|error| chain(&error));
            if let Some(error) = &error {
                tracing::warn!(schedule = %schedule.name, error, "no timer unit; agentd waits for the schedule itself");
            } else {
                set.push(timer.name.clone());
            }
            *lock(&schedule.timer) = TimerState { name: Some(timer.name.clone()), is_set: error.is_none(), error };
        }
        *lock(&self.set_timers) = set;
    }
}
