//! What a driver writes and what it learns by reading: append → read → apply → publish, and the fold that is put down at rest.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::session::Phase;
use agentd_fault::Point;
use agentd_journal::{Retain, Sync};
use tokio::time::Instant;

use super::batch::Batch;
use super::driver::{Broken, Driver};
use super::follow::{self, Learned};
use super::journal_port::{Port, PortError};
use super::next::{Step, next};
use super::patient::patiently;
use super::state::{Ended, Run};
use super::writable::errno_of;
use super::{Published, view};
use crate::env::chain;
use crate::pulse;

const RETRY: Duration = Duration::from_millis(250);
/// How often it is looked whether a journal that grows is longer than is kept.
const MEASURE: Duration = Duration::from_secs(1);

/// When the length of the journal was looked at last.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) at: Instant,
    /// Whether a turn was running when the journal was read last.
    pub(super) in_turn: bool,
}

impl Driver {
    /// Hands records over and reads them back; whether they are known to be written. What cannot be written now is not done
    /// now: the same step comes up again.
    pub(super) async fn append(&mut self, batch: Batch) -> Result<bool, Broken> {
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
                tracing::warn!(agentd.session = %self.document.id, error = %chain(&error), "a record waits");
                if is_of_the_disk(&error) {
                    self.refused(errno_of(&error, self));
                }
                self.retry = Some(Instant::now() + RETRY);
                self.catch_up().await.map(|()| false)
            }
        }
    }

    /// Reads and applies what the journal has grown by, and lets clients see it.
    pub(super) async fn catch_up(&mut self) -> Result<(), Broken> {
        loop {
            if self.reader.as_ref().is_some_and(|reader| reader.position() >= self.port.reach()) {
                return Ok(());
            }
            let (mut reader, after, upto) = (self.reader.take(), self.state.seq, self.port.reach());
            // Nothing is decided before the journal is read.
            let (reader, learned) = patiently(&self.document.id, &self.world.shutdown, || {
                let (reader, directory) = (reader.take(), self.journal.directory.clone());
                move || follow::read_some(reader, &directory, after, upto)
            })
            .await?;
            self.reader = reader;
            let count = learned.len();
            for learned in learned {
                match learned {
                    Learned::Event(event) => self.state.apply(&event),
                    Learned::Said { seq, time } => self.state.said(seq, time),
                }
            }
            self.forget_files().await;
            if count > 0 {
                // There is nothing here that could fail.
                let _ = agentd_fault::at(Point::DaemonApplyAfter);
                self.publish();
                self.shorten().await;
            }
            if count == 0 {
                if matches!(self.state.run, Run::Ended(_)) {
                    // A session at rest holds no descriptor: there may be thousands.
                    self.reader = None;
                }
                return Ok(());
            }
        }
    }

    pub(super) fn publish(&mut self) {
        // An end is shown when everything that it ends is closed, so that who waits for it finds no open turn beside it.
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

    /// Shows the session as it is known at this moment.
    pub(super) fn show(&mut self) {
        if self.phase() == Phase::BackingOff && self.next_restart.is_none() {
            // So that the time of the restart is shown together with the phase.
            self.arm();
        }
        self.shown = (self.phase(), self.next_restart);
        let mut view = view(&self.document, &self.state, self.shown);
        view.status.conditions.extend(self.silence());
        self.show_writable(&mut view);
        self.publish.send_replace(Arc::new(Published::new(view, self.remembered, self.current)));
    }

    /// Writes the fold down when the session comes to rest, so that the next daemon need not read it all.
    pub(super) async fn remember(&mut self, last: bool) {
        let resting = matches!(self.state.phase(), Phase::Idle | Phase::Stopped | Phase::Failed);
        // What a keeper that does not answer has written it may have to take back.
        let is_known = !matches!(self.port, Port::Silent(_));
        if self.state.seq != self.remembered && (resting || last) && is_known {
            self.write_fold().await;
        }
    }

    /// Removes what is not kept of a journal that grows without coming to rest. The keeper leaves out what the agent says where this is too
    /// slow for it.
    async fn shorten(&mut self) {
        let is_known = !matches!(self.port, Port::Silent(_));
        let Some(keep) = self.world.config.journal.keep_session.0.0.filter(|_| is_known) else { return };
        // At the end of a turn there is no wait: what the agent says in the next one is to have room.
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

    /// Writes the fold down, and removes what is not kept of the journal before it. Before that everything behind it is on the disk: a fold
    /// ahead of its journal would hide what is written next under the numbers that a power cut took.
    async fn write_fold(&mut self) {
        let (mut document, state) = (self.document.clone(), self.state.clone());
        let (directory, keep) = (self.journal.directory.clone(), self.world.config.journal.keep_session.0.0);
        let (seq, durable) = (self.state.seq, self.durable);
        // Without durability nothing is ever brought to the disk, and a journal that ends before its fold is found at the next start. A keeper
        // writes as the daemon that started it was configured, so `Sync::Always` says nothing of what it wrote.
        let must_sync = self.journal.options.sync != Sync::Never && durable < seq;
        let is_over = matches!(self.state.run, Run::Ended(_));
        let written = pulse::blocking(move || {
            if must_sync {
                agentd_journal::sync_behind(&directory, durable).map_err(std::io::Error::other)?;
            }
            document.remember(&state);
            document.write(&directory)?;
            if is_over {
                // Nothing is left that would have to be ended. Where a keeper holds the journal still, it is only about to let it go.
                let _ = agentd_journal::release(&directory);
            }
            if let Some(at_most) = keep
                && let Err(error) = agentd_journal::retain(&directory, Retain { at_most, keep_after: seq })
            {
                tracing::warn!(directory = %directory.display(), error = %chain(&error), "a journal cannot be shortened");
            }
            Ok::<(), std::io::Error>(())
        });
        match written.await {
            Ok(()) => (self.remembered, self.durable) = (seq, durable.max(seq)),
            Err(error) => {
                tracing::warn!(agentd.session = %self.document.id, error = %chain(&error), "session.json could not be written; the journal has everything");
            }
        }
    }
}

/// Whether it is the disk that does not take the records, and not the agent that does not read them.
fn is_of_the_disk(error: &PortError) -> bool {
    match error {
        PortError::Refused { code, .. } => code == "journal-blocked",
        PortError::Append { .. } => true,
        PortError::Open { .. } => error.errno().is_some(),
        PortError::Lost | PortError::Silent | PortError::Behind { .. } => false,
    }
}
