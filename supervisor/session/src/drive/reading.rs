//! Reads the facts about the session's directory after the agent's work, in a task beside the driver.
//!
//! A reading delays no turn. A launch waits for it, because it compares with the facts after the work. A stop waits
//! too, because changes after a stop are not the agent's work.

use std::sync::Arc;

use agentd_api::facts::SessionFacts;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::{Driver, DriverError};
use crate::pulse;
use agentd_decide::facts::DueReading;
use agentd_decide::staleness::reread;
use agentd_decide::state::Run;

/// Age of the work after which its facts are not read any more. A daemon that was stopped would take the changes of
/// others for the agent's own.
const RECENT: SignedDuration = SignedDuration::from_secs(10);

/// The readings of a driver.
#[derive(Debug, Default)]
pub(super) struct Readings {
    running: Option<RunningReading>,
    /// Sequence number of the work whose facts were read last.
    done: u64,
}

#[derive(Debug)]
struct RunningReading {
    due: DueReading,
    answer: oneshot::Receiver<SessionFacts>,
    task: JoinHandle<()>,
}

impl Drop for RunningReading {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Driver {
    /// Begins the reading that is due, and reports whether one is in progress.
    pub(super) fn is_reading(&mut self) -> bool {
        let state = &self.recorder.state;
        let in_turn = matches!(&state.run, Run::Running(running) if running.turn.is_some());
        let is_recent = |due: &DueReading| {
            let age = Timestamp::now().duration_since(due.since);
            SignedDuration::ZERO <= age && age < RECENT
        };
        // The directory of a session on a place is not looked at.
        let is_here = state.placed().is_none();
        let due = state.facts.due.filter(|due| is_here && !in_turn && due.seq > self.readings.done);
        let Some(due) = due else {
            self.readings.running = None;
            return false;
        };
        if self.readings.running.as_ref().is_some_and(|running| running.due == due) {
            return true;
        }
        if !is_recent(&due) {
            self.readings.done = due.seq;
            return false;
        }
        let (say, answer) = oneshot::channel();
        let (outside, generation) = (Arc::clone(&self.outside), Arc::clone(&self.terms.generation));
        let directory = self.recorder.document.spec.directory.clone();
        let reading = async move {
            // The receiver is gone when the facts are not needed any more.
            let _ = say.send(outside.facts(generation, directory).await);
        };
        let task = tokio::spawn(reading.in_current_span());
        self.readings.running = Some(RunningReading { due, answer, task });
        true
    }

    /// Records the facts if they are news.
    pub(super) async fn facts_read(
        &mut self,
        (due, facts): (DueReading, Option<SessionFacts>),
    ) -> Result<(), DriverError> {
        self.readings.done = self.readings.done.max(due.seq);
        // A turn may have started, or the agent ended, in the meantime.
        let facts = facts.filter(|_| self.recorder.state.facts.due == Some(due));
        match facts.and_then(|facts| reread(&self.recorder.state, due.moment, facts)) {
            Some(batch) => self.append(batch).await.map(drop),
            None => Ok(()),
        }
    }
}

/// Waits for the facts of the running reading; waits forever without one.
pub(super) async fn facts(readings: &mut Readings) -> (DueReading, Option<SessionFacts>) {
    let Some(running) = &mut readings.running else { return std::future::pending().await };
    let answer = pulse::elsewhere(&mut running.answer).await.ok();
    let due = running.due;
    readings.running = None;
    (due, answer)
}
