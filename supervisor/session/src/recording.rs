//! Appending and reading back: append, read, apply, publish. Also stores the folded state when a session comes to
//! rest.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::session::Phase;
use agentd_fault::Point;
use agentd_journal::{Retain, Sync};
use tokio::time::Instant;

use super::driver::{Driver, DriverError};
use super::follow::{self, FoldStep};
use super::journal_port::{Port, PortError};
use super::patient::patiently;
use super::writable::errno_of;
use super::{Published, view};
use crate::pulse;
use agentd_api::chain;
use agentd_decide::batch::Batch;
use agentd_decide::next::{Step, next};
use agentd_decide::state::{Ended, Run};

const RETRY: Duration = Duration::from_millis(250);
/// Interval between two looks at the length of a growing journal.
const MEASURE: Duration = Duration::from_secs(1);

/// The last look at the length of the journal.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) at: Instant,
    /// Whether a turn was running when the journal was last read.
    pub(super) in_turn: bool,
}

impl Driver {
    /// Appends records and reads them back. Returns whether they are known to be written. After a failure the same
    /// step comes up again.
    pub(super) async fn append(&mut self, batch: Batch) -> Result<bool, DriverError> {
        self.requests += 1;
        let appended = match agentd_fault::at(Point::DaemonAppendBefore) {
            Ok(()) => self.port.append(&self.journal, self.requests, self.state.seq, batch).await,
            Err(error) => Err(PortError::Refused { code: "fault".to_owned(), message: error.to_string(), errno: None }),
        };
        let appended = appended.and_then(|written| {
            agentd_fault::at(Point::DaemonAppendAfter).map(|()| written).map_err(|_| PortError::Lost)
        });
        match appended {
            Err(PortError::Behind { last, .. }) => {
                self.catch_up().await?;
                if self.state.seq < last {
                    self.retry = Some(Instant::now() + RETRY);
                }
                Ok(false)
            }
            Ok(written) => {
                if written.durable {
                    self.durable = self.durable.max(written.seq);
                }
                if !written.from_reserve && matches!(self.port, Port::Direct) {
                    self.accepted();
                }
                self.catch_up().await.map(|()| true)
            }
            Err(PortError::Silent) => {
                if matches!(self.port, Port::Keeper(_)) {
                    self.go_silent(self.port.reach());
                }
                self.catch_up().await?;
                self.publish();
                Ok(false)
            }
            Err(PortError::Lost) => Box::pin(self.line_lost()).await.map(|()| false),
            Err(error) => {
                tracing::warn!(
                    agentd.session = %self.document.id, error = %chain(&error),
                    "cannot write a record now; retrying"
                );
                if is_of_the_disk(&error) {
                    self.refused(errno_of(&error, self));
                }
                self.retry = Some(Instant::now() + RETRY);
                self.catch_up().await.map(|()| false)
            }
        }
    }

    /// Reads and applies the new records of the journal, and publishes the state.
    pub(super) async fn catch_up(&mut self) -> Result<(), DriverError> {
        loop {
            if self.reader.as_ref().is_some_and(|reader| reader.position() >= self.port.reach()) {
                return Ok(());
            }
            let (mut reader, after, upto) = (self.reader.take(), self.state.seq, self.port.reach());
            // No decision is taken before the journal is read.
            let (reader, steps) = patiently(&self.document.id, &self.generation.daemon.shutdown, || {
                let (reader, directory) = (reader.take(), self.journal.directory.clone());
                move || follow::read_some(reader, &directory, after, upto)
            })
            .await?;
            self.reader = reader;
            let count = steps.len();
            for step in steps {
                match step {
                    FoldStep::Event(event) => self.state.apply(&event),
                    FoldStep::AgentOutput { seq, time } => self.state.said(seq, time),
                }
            }
            self.forget_files().await;
            if count > 0 {
                // This fault point has no error to return.
                let _ = agentd_fault::at(Point::DaemonApplyAfter);
                self.publish();
                self.shorten().await;
            }
            if count == 0 {
                if matches!(self.state.run, Run::Ended(_)) {
                    // A session at rest holds no file descriptor: there may be thousands of sessions.
                    self.reader = None;
                }
                return Ok(());
            }
        }
    }

    pub(super) fn publish(&mut self) {
        // The end of a run is published after its turn and requests are closed, so that clients see no open turn
        // after it.
        let ended = matches!(self.state.run, Run::Ended(_));
        if ended && self.retry.is_none() && matches!(next(&self.state, &self.facts()), Some(Step::Append(_))) {
            return;
        }
        let phase = self.phase();
        if self.logged != phase {
            self.logged = phase;
            let id = self.document.id.as_str();
            let why = match &self.state.run {
                Run::Ended(Ended::Failed(message)) => format!(": {message}"),
                _ => String::new(),
            };
            tracing::info!(agentd.session = id, "session {id} is {}{why}", phase.as_str());
        }
        self.show();
    }

    /// Publishes the present state.
    pub(super) fn show(&mut self) {
        if self.phase() == Phase::BackingOff && self.next_restart.is_none() {
            // The phase is published together with the time of the restart.
            self.arm();
        }
        self.shown = (self.phase(), self.next_restart);
        let mut view = view(&self.document, &self.state, self.shown);
        view.status.conditions.extend(self.silence());
        self.show_writable(&mut view);
        self.publish.send_replace(Arc::new(Published::new(view, self.remembered, self.current)));
    }

    /// Stores the folded state when the session comes to rest, so that the next daemon need not read the whole
    /// journal.
    pub(super) async fn remember(&mut self, last: bool) {
        let resting = matches!(self.state.phase(), Phase::Idle | Phase::Stopped | Phase::Failed);
        // A keeper that does not answer may roll its last records back.
        let is_known = !matches!(self.port, Port::Silent(_));
        if self.state.seq != self.remembered && (resting || last) && is_known {
            self.write_fold().await;
        }
    }

    /// Shortens the journal of a session that does not come to rest. If this is too slow, the keeper leaves out
    /// agent output.
    async fn shorten(&mut self) {
        let is_known = !matches!(self.port, Port::Silent(_));
        let Some(keep) = self.generation.config.journal.keep_session.0.0.filter(|_| is_known) else { return };
        // The journal is shortened at the end of each turn at once, to make room for the output of the next.
        let in_turn = matches!(&self.state.run, Run::Running(running) if running.turn.is_some());
        let has_ended = std::mem::replace(&mut self.measured.in_turn, in_turn) && !in_turn;
        if !has_ended && self.measured.at.elapsed() < MEASURE {
            return;
        }
        let directory = self.journal.directory.clone();
        let looked = pulse::blocking(move || agentd_journal::is_longer(&directory, keep).unwrap_or(false)).await;
        if looked {
            self.write_fold().await;
        }
        self.measured.at = Instant::now();
    }

    /// Stores the folded state, and removes old records beyond the configured size. The records before it are
    /// synced first: after a power cut, a state ahead of its journal would hide new records with the lost numbers.
    async fn write_fold(&mut self) {
        let (mut document, state) = (self.document.clone(), self.state.clone());
        let (directory, keep) = (self.journal.directory.clone(), self.generation.config.journal.keep_session.0.0);
        let (seq, durable) = (self.state.seq, self.durable);
        // Without durability nothing is ever synced; the next start handles a journal that ends before its state.
        // `Sync::Always` says nothing about the keeper's records: a keeper writes with the options of the daemon
        // that started it.
        let must_sync = self.journal.options.sync != Sync::Never && durable < seq;
        let is_over = matches!(self.state.run, Run::Ended(_));
        let written = pulse::blocking(move || {
            if must_sync {
                agentd_journal::sync_behind(&directory, durable).map_err(std::io::Error::other)?;
            }
            document.remember(&state);
            document.write(&directory)?;
            if is_over {
                // The run is over. If a keeper still holds the journal, it is about to release it.
                let _ = agentd_journal::release_reserve(&directory);
            }
            if let Some(at_most) = keep
                && let Err(error) = agentd_journal::retain(&directory, Retain { at_most, keep_after: seq })
            {
                tracing::warn!(directory = %directory.display(), error = %chain(&error), "cannot shorten a journal");
            }
            Ok::<(), std::io::Error>(())
        });
        match written.await {
            Ok(()) => (self.remembered, self.durable) = (seq, durable.max(seq)),
            Err(error) => {
                tracing::warn!(
                    agentd.session = %self.document.id, error = %chain(&error),
                    "cannot write session.json; nothing is lost, since the journal is complete"
                );
            }
        }
    }
}

/// Reports whether the disk refuses the records, in contrast to an agent that does not read.
fn is_of_the_disk(error: &PortError) -> bool {
    match error {
        PortError::Refused { code, .. } => code == "journal-blocked",
        PortError::Append { .. } => true,
        PortError::Open { .. } => error.errno().is_some(),
        PortError::Lost | PortError::Silent | PortError::Behind { .. } => false,
    }
}
