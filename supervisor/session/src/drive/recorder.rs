//! The recorder: the only writer of a session's journal on the driver's side, with the state folded from it.
//!
//! The recorder appends, reads back, applies and publishes. It also stores the folded state when a session comes to
//! rest. The driver decides how to react to a lost or silent keeper.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::session::Phase;
use agentd_api::spec::ChangedField;
use agentd_api::{Body, SessionId};
use agentd_fault::Point;
use agentd_journal::{Reader, Retain, Sync};
use agentd_metrics::{Follower, Metrics};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::DriverError;
use super::launch_trace::LaunchTrace;
use super::writable::Writable;
use crate::changes::Changes;
use crate::document::Document;
use crate::follow::{self, FoldStep};
use crate::generation::Generation;
use crate::journal_port::{Journal, Port, PortError, Written};
use crate::patient::patiently;
use crate::view_changes::ViewChanges;
use crate::{Published, pulse, view};
use agentd_api::chain;
use agentd_decide::batch::Batch;
use agentd_decide::state::{Ended, Run, State};

/// Interval between two measurements of a growing journal.
const MEASURE: Duration = Duration::from_secs(1);
/// Number of records of output that are read like others.
const FEW: u64 = 32;

/// A session's journal, and everything that the driver knows from it.
pub(crate) struct Recorder {
    pub(crate) document: Document,
    pub(crate) journal: Journal,
    pub(super) state: State,
    /// The present writer of the journal.
    pub(super) port: Port,
    pub(super) writable: Writable,
    /// Whether the whole journal is read, and the keeper is taken over or found gone.
    pub(crate) current: bool,
    /// Reader at the driver's position in the journal. It is opened on demand.
    pub(super) reader: Option<Reader>,
    /// Whether there is no reader because the last records were not read.
    has_passed: bool,
    /// Sequence number of the state in `session.json`.
    pub(super) remembered: u64,
    /// Sequence number up to which all records are known to be on the disk.
    pub(super) durable: u64,
    /// Changed fields of the specification that the driver has not taken over yet.
    pub(super) spec_changes: Vec<ChangedField>,
    /// Ends the patience of reads when the daemon ends.
    pub(super) shutdown: CancellationToken,
    publish: watch::Sender<Arc<Published>>,
    /// Notes for the feed of events.
    changes: Arc<Changes>,
    view_changes: Arc<ViewChanges>,
    /// Maximum size of the journal.
    keep: Option<u64>,
    requests: u64,
    measured: Measured,
    /// The published phase and time of the next restart.
    shown: (Phase, Option<Timestamp>),
    /// The phase last written to the log.
    logged: Phase,
    metrics: Arc<Metrics>,
    /// Turns the records into values of the metrics.
    follower: Follower,
    /// Turns the records into spans.
    trace: LaunchTrace,
    /// Trace context of the request that is being carried out.
    trace_parent: Option<String>,
}

/// The last measurement of the journal's length.
#[derive(Debug)]
struct Measured {
    at: Instant,
    /// Whether a turn was running when the journal was last read.
    in_turn: bool,
}

impl Recorder {
    pub(super) fn new(
        generation: &Generation,
        document: Document,
        state: State,
        publish: watch::Sender<Arc<Published>>,
    ) -> Self {
        Self {
            journal: Journal {
                directory: generation.daemon.directories.session(&document.id),
                options: generation.config.journal.options(),
            },
            document,
            port: Port::Direct,
            writable: Writable::default(),
            current: false,
            reader: None,
            has_passed: false,
            remembered: state.seq,
            durable: 0,
            spec_changes: Vec::new(),
            shutdown: generation.daemon.shutdown.clone(),
            publish,
            changes: Arc::clone(&generation.daemon.changes),
            view_changes: Arc::clone(&generation.daemon.view_changes),
            keep: generation.config.journal.keep_session.0.0,
            requests: 0,
            measured: Measured { at: Instant::now(), in_turn: false },
            shown: (state.phase(), None),
            logged: state.phase(),
            metrics: Arc::clone(&generation.daemon.metrics),
            follower: Follower::default(),
            trace: LaunchTrace::default(),
            trace_parent: None,
            state,
        }
    }

    pub(crate) fn id(&self) -> &SessionId {
        &self.document.id
    }

    /// Takes over the journal's settings of the generation in force.
    pub(super) fn renew(&mut self, generation: &Generation) {
        self.journal.options = generation.config.journal.options();
        self.keep = generation.config.journal.keep_session.0.0;
    }

    /// Notes the request whose command is carried out from now on.
    pub(super) fn begin_request(&mut self, span: &Span) {
        self.trace_parent = agentd_traces::parent_of(span);
    }

    /// Notes that the command is carried out.
    pub(super) fn end_request(&mut self) {
        self.trace_parent = None;
    }

    /// Returns the span of the launch in progress.
    pub(super) fn launch_span(&mut self) -> Span {
        self.trace.span(&self.document)
    }

    /// Hands the batch to the writer. After [`PortError::Lost`] and [`PortError::Silent`] only the journal shows
    /// whether the batch is written.
    pub(super) async fn write(&mut self, mut batch: Batch) -> Result<Written, PortError> {
        self.requests += 1;
        for entry in &mut batch.entries {
            if let Body::LaunchStarted(started) = &mut entry.body {
                started.trace_parent = self.trace_parent.take();
            }
        }
        let appended = match agentd_fault::at(Point::DaemonAppendBefore) {
            Ok(()) => self.port.append(&self.journal, self.requests, self.state.seq, batch).await,
            Err(error) => Err(PortError::Refused { code: "fault".to_owned(), message: error.to_string(), errno: None }),
        };
        let written = appended.and_then(|written| {
            agentd_fault::at(Point::DaemonAppendAfter).map(|()| written).map_err(|_| PortError::Lost)
        })?;
        if written.durable {
            self.durable = self.durable.max(written.seq);
        }
        Ok(written)
    }

    /// Reads and applies some of the journal's new records. Returns `false` when none was left.
    pub(super) async fn read_on(&mut self) -> Result<bool, DriverError> {
        let reach = self.port.reach();
        let position = self.reader.as_ref().map(Reader::position).or(self.has_passed.then_some(self.state.seq));
        if position.is_some_and(|position| position >= reach) {
            return Ok(false);
        }
        if self.pass_output() {
            return Ok(true);
        }
        let (mut reader, after, upto) = (self.reader.take(), self.state.seq, self.port.reach());
        // No decision is taken before the journal is read.
        let (reader, steps) = patiently(&self.shutdown, || {
            let (reader, directory) = (reader.take(), self.journal.directory.clone());
            move || follow::read_some(reader, &directory, after, upto)
        })
        .await?;
        (self.reader, self.has_passed) = (reader, false);
        let has_read = !steps.is_empty();
        // Only records that this daemon applies live are counted.
        let live = self.current.then_some(&*self.metrics);
        let mut first = None;
        for step in steps {
            match step {
                FoldStep::Event(event) => {
                    if let Body::SpecChanged(changed) = &event.body
                        && self.document.change(changed)
                    {
                        self.spec_changes.extend(changed.changes.iter().cloned());
                    }
                    self.state.apply(&event);
                    self.follower.record(&event, live);
                    self.trace.record(&event);
                    first.get_or_insert(event.time);
                }
                FoldStep::AgentOutput { first: first_seq, seq, time } => {
                    self.state.said(seq, time);
                    self.changes.said(self.id(), first_seq, seq);
                    first.get_or_insert(time);
                }
            }
        }
        if let Some(written) = first {
            self.observe_lag(written);
        }
        Ok(has_read)
    }

    /// Applies output that need not be read, because the keeper has found that it concerns no rule. Returns `false` if
    /// the next records are others, or so few that reading them costs less than finding the place behind them.
    fn pass_output(&mut self) -> bool {
        let next = self.state.seq + 1;
        let Some(run) = self.port.output().filter(|run| run.first <= next && run.last >= next + FEW) else {
            return false;
        };
        self.state.said(run.last, run.time);
        self.changes.said(self.id(), next, run.last);
        self.reader = None;
        self.has_passed = true;
        self.observe_lag(run.time);
        true
    }

    /// Measures the time from the write of a record until now. Only records that this daemon applies live count.
    fn observe_lag(&self, written: Timestamp) {
        if self.current {
            let lag = Duration::try_from(Timestamp::now().duration_since(written)).unwrap_or_default();
            self.metrics.journal_lag.observe([], lag);
        }
    }

    /// Closes the journal of an ended session. A session at rest holds no file descriptor: there may be thousands of
    /// sessions.
    pub(super) fn rest(&mut self) {
        if self.has_ended() {
            self.reader = None;
        }
    }

    /// Writes a change of the phase to the log.
    pub(super) fn log(&mut self, phase: Phase) {
        if self.logged == phase {
            return;
        }
        self.logged = phase;
        let id = self.document.id.as_str();
        let why = match &self.state.run {
            Run::Ended(Ended::Failed(message)) => format!(": {message}"),
            _ => String::new(),
        };
        tracing::info!("session {id} is {}{why}", phase.as_str());
    }

    /// Reports whether this phase and this time of the next restart are published.
    pub(super) fn has_shown(&self, shown: (Phase, Option<Timestamp>)) -> bool {
        self.shown == shown
    }

    /// Publishes the present state with its phase and the time of the next restart.
    pub(super) fn show(&mut self, shown: (Phase, Option<Timestamp>), stop_sent: bool) {
        self.shown = shown;
        let mut view = view(&self.document, &self.state, shown);
        view.status.conditions.extend(self.silence());
        self.show_writable(&mut view, stop_sent);
        self.send(Published::new(view, &self.document, &self.state, self.remembered, self.current));
    }

    fn send(&self, published: Published) {
        self.publish.send_replace(Arc::new(Published { number: self.view_changes.count(), ..published }));
        // A list that was made in the meantime may have the former view.
        self.view_changes.count();
        self.changes.touch(self.id());
    }

    /// Returns to an earlier state, because records after it may have been replaced.
    pub(super) fn start_over(&mut self, state: State) {
        self.state = state;
        (self.reader, self.has_passed) = (None, false);
        self.changes.forget_output(self.id());
    }

    /// Publishes that the journal cannot be read.
    pub(super) fn set_aside(&self, reason: String) {
        self.send(Published::unreadable(&self.document, &self.state, reason));
    }

    /// Reports whether the keeper holds the journal and does not answer.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.port, Port::Silent(_))
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state.run, Run::Running(_))
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state.run, Run::Ended(_))
    }

    /// Stores the folded state when the session comes to rest, so that the next daemon need not read the whole
    /// journal. With `now` stores it in each phase.
    pub(super) async fn remember(&mut self, now: bool) {
        let phase = self.state.phase();
        let resting = phase.is_settled() && phase != Phase::Busy;
        // A keeper that does not answer may roll its last records back.
        let is_known = !matches!(self.port, Port::Silent(_));
        if self.state.seq != self.remembered && (resting || now) && is_known {
            self.write_fold().await;
        }
    }

    /// Shortens the journal of a session that does not come to rest. If this is too slow, the keeper leaves out
    /// agent output.
    pub(super) async fn shorten(&mut self) {
        let is_known = !matches!(self.port, Port::Silent(_));
        let Some(keep) = self.keep.filter(|_| is_known) else { return };
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
        let (directory, keep) = (self.journal.directory.clone(), self.keep);
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
                    error = %chain(&error),
                    "cannot write session.json; nothing is lost, since the journal is complete"
                );
            }
        }
    }
}

/// Reports whether the disk refuses the records, in contrast to an agent that does not read.
pub(super) fn is_of_the_disk(error: &PortError) -> bool {
    match error {
        PortError::Refused { code, .. } => code == "journal-blocked",
        PortError::Append { .. } => true,
        PortError::Open { .. } => error.errno().is_some(),
        PortError::Lost | PortError::Silent | PortError::Behind { .. } => false,
    }
}
