//! The driver: the one task that acts for a session.
//!
//! The driver decides, appends records, reads them back, applies them and publishes the state. It decides by
//! [`agentd_decide::rules`] and [`agentd_decide::next`]. It learns facts only from the journal: it reads its own
//! records back like the agent's output. Clients see a record only after it was applied.
//!
//! The end of a driver is not the end of the session. The keeper continues, and the next driver reads the journal.

mod completion;
mod keeper;
mod launch;
mod launch_trace;
mod launching;
mod mending;
mod outside;
mod port_events;
mod reading;
mod recorder;
mod release;
mod renewal;
mod repositories;
mod resumed;
mod silent;
mod spec;
mod stopping;
mod terms;
#[cfg(test)]
mod tests;
mod timers;
mod workflow;
mod writable;

use std::sync::Arc;

use agentd_api::event::StopRequested;
use agentd_api::prerequisite::CheckReport;
use agentd_api::session::Phase;
use agentd_api::{Body, Code, Problem, SessionId, TurnId, chain, hint, reason};
use agentd_fault::Point;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::Span;

pub(crate) use keeper::SessionOrigin;
pub(crate) use outside::Processes;

use crate::document::Document;
use crate::follow::DriverError;
use crate::generation::Generations;
use crate::journal_port::{Port, PortError};
use crate::{Published, aside, ending, pulse};
use agentd_decide::batch::Batch;
use agentd_decide::next::{Facts, Step, next};
use agentd_decide::rules::{Command, LaunchBounds, Refusal, decide};
use agentd_decide::state::State;
use agentd_decide::verdict::changed;
use agentd_decide::waits::{self, Wait, is_restarted, over};
use completion::{CompletionTask, completion_report};
use launching::Launching;
use outside::Outside;
use port_events::{KeeperEvent, keeper_event, until};
use reading::{Readings, facts};
use recorder::{Recorder, is_of_the_disk};
use renewal::RenewalState;
use repositories::{RepositoryTask, repository_report};
use stopping::Stop;
use terms::Terms;
use timers::Timers;
use workflow::{WorkflowTask, examination};
use writable::errno_of;

/// Request to a driver.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "each request is sent in a box")]
pub(crate) enum Request {
    Command {
        command: Command,
        /// Span of the request that gave the command.
        span: Span,
        reply: oneshot::Sender<Result<CommandResult, Problem>>,
    },
    /// Asks the driver to give up the session, whose files are about to be removed. Refused while the session is
    /// active, and if `seen` is not its last event.
    Release { seen: Option<u64>, reply: oneshot::Sender<Result<(), Problem>> },
    /// Asks for the present state.
    State { reply: oneshot::Sender<Result<Box<State>, Problem>> },
    /// Reports of a repeated check of the prerequisites; needs no answer. `is_redeclared` tells that their
    /// declaration changed.
    Reports { launch: u64, reports: Vec<CheckReport>, is_redeclared: bool },
}

/// Result of a command.
#[derive(Debug, Clone)]
pub struct CommandResult {
    /// The turn of a prompt.
    pub turn: Option<TurnId>,
    /// The last sequence number before the command's own records.
    pub after_seq: u64,
}

/// A driver, with the owners of its parts. The driver has the loop, and decides what follows from what.
pub(crate) struct Driver {
    /// Settings of the present configuration for the session.
    pub(crate) terms: Terms,
    /// The journal and everything that is known from it.
    pub(crate) recorder: Recorder,
    /// The work of launches beside the driver.
    launching: Launching,
    timers: Timers,
    /// Readings of facts after the agent's work.
    readings: Readings,
    /// The work on a repository beside the running agent.
    repository: Option<RepositoryTask>,
    /// The examination of a workflow beside the running agent.
    workflow: Option<WorkflowTask>,
    /// The work for a completion: the check of an answer, or the gathering of a result.
    completing: Option<CompletionTask>,
    /// The stop that is under way.
    stop: Stop,
    origin: SessionOrigin,
    outside: Arc<dyn Outside>,
    inbox: mpsc::Receiver<Box<Request>>,
}

impl Driver {
    pub(crate) fn new(
        generations: &Generations,
        document: Document,
        inbox: mpsc::Receiver<Box<Request>>,
        state: State,
        publish: watch::Sender<Arc<Published>>,
        origin: SessionOrigin,
        outside: Arc<dyn Outside>,
    ) -> Self {
        let terms = Terms::new(generations, &document, &state);
        let directories = &terms.generation.daemon.directories;
        Self {
            launching: Launching::new(directories.session_files(&document.id), origin != SessionOrigin::Created),
            recorder: Recorder::new(&terms.generation, document, state, publish),
            terms,
            timers: Timers::default(),
            readings: Readings::default(),
            repository: None,
            workflow: None,
            completing: None,
            stop: Stop::default(),
            origin,
            outside,
            inbox,
        }
    }

    /// Runs until the daemon ends or the session is released. `self` is boxed: otherwise the task would reserve
    /// room for the driver twice, as its argument and as its state.
    pub(crate) async fn run(mut self: Box<Self>) {
        if let Err(error) = self.drive().await {
            let reason = chain(&error);
            tracing::error!(
                error = %reason,
                "cannot read the session's journal; the session is set aside"
            );
            self.recorder.set_aside(reason);
            // Answer requests with the error until the daemon ends.
            let shutdown = self.terms.generation.daemon.shutdown.clone();
            loop {
                let request = tokio::select! {
                    never = pulse::rest() => match never {},
                    () = shutdown.cancelled() => return,
                    request = self.inbox.recv() => request,
                };
                let Some(request) = request else { return };
                match *request {
                    Request::Command { command: Command::Stop { reason, cause }, reply, .. } => {
                        aside::end(
                            &self.terms.generation,
                            self.id(),
                            self.terms.stop_times(),
                            StopRequested { reason, cause },
                        )
                        .await;
                        let _ = reply.send(Ok(CommandResult { turn: None, after_seq: self.recorder.state.seq }));
                    }
                    Request::State { reply } => drop(reply.send(Err(self.unreadable(&error)))),
                    Request::Command { reply, .. } => drop(reply.send(Err(self.unreadable(&error)))),
                    Request::Release { reply, .. } if ending::has_keeper(&self.recorder.journal.directory).await => {
                        let problem =
                            Problem::new(Code::WrongPhase, "the session is set aside, and its agent is still running");
                        let hint = hint::STOP_OR_REMOVE;
                        let _ = reply.send(Err(problem.hint(hint)));
                    }
                    Request::Release { reply, .. } => {
                        let _ = reply.send(Ok(()));
                        return;
                    }
                    Request::Reports { .. } => {}
                }
            }
        }
    }

    async fn drive(&mut self) -> Result<(), DriverError> {
        self.renew();
        self.take_over().await?;
        self.recorder.current = true;
        self.publish();
        loop {
            self.settle().await?;
            let daemon = &self.terms.generation.daemon;
            self.launching.mind_guests(daemon, &self.recorder.document.id, &self.recorder.state.run);
            self.recorder.remember(false).await;
            pulse::is_held_up(self.timers.is_retrying() || self.recorder.writable.is_refused());
            let shutdown = self.terms.generation.daemon.shutdown.clone();
            let due = self.due();
            tokio::select! {
                biased;
                never = pulse::rest() => match never {},
                () = shutdown.cancelled() => {
                    self.launching.bring_up = None;
                    (self.repository, self.workflow, self.completing) = (None, None, None);
                    self.recorder.remember(true).await;
                    return Ok(());
                }
                event = keeper_event(&mut self.recorder.port) => {
                    match event {
                        KeeperEvent::Grown => {
                            self.catch_up().await?;
                            self.note_keeper();
                        }
                        KeeperEvent::Lost => self.line_lost().await?,
                        KeeperEvent::Found(keeper) => self.keeper_found(keeper).await?,
                    }
                }
                event = self.launching.event() => self.launch_event(event).await?,
                read = facts(&mut self.readings) => self.facts_read(read).await?,
                report = repository_report(&mut self.repository) => self.repository_reported(report).await?,
                examined = examination(&mut self.workflow) => self.workflow_examined(examined).await?,
                done = completion_report(&mut self.completing) => self.completion_done(done).await?,
                true = self.terms.changed() => self.renew(),
                () = until(due) => {
                    if self.timers.begin() {
                        self.look_after_stop().await;
                    }
                    if self.recorder.look_for_room().await {
                        self.publish();
                    }
                    self.expire().await?;
                }
                request = self.inbox.recv() => {
                    match request.map(|request| *request) {
                        Some(Request::Command { command, span, reply }) => {
                            self.recorder.begin_request(&span);
                            let answer = self.carry_out(command).await?;
                            self.recorder.end_request();
                            let _ = reply.send(answer);
                        }
                        Some(Request::State { reply }) => {
                            let _ = reply.send(Ok(Box::new(self.state().clone())));
                        }
                        Some(Request::Release { seen, reply }) => {
                            let released = self.release(seen).await;
                            let is_released = released.is_ok();
                            let _ = reply.send(released);
                            if is_released {
                                return Ok(());
                            }
                        }
                        Some(Request::Reports { launch, reports, is_redeclared }) => {
                            self.found(launch, &reports, is_redeclared).await?;
                        }
                        None => return Ok(()),
                    }
                }
            }
        }
    }

    /// Returns the time of the next scheduled action. Waits that need a record are left out while the keeper does
    /// not answer.
    fn due(&self) -> Option<Instant> {
        let waits = self.timers.next_wait().into_iter().chain(self.launching.renewal.due());
        let waits = waits.filter(|_| !self.recorder.is_silent());
        waits.chain(self.timers.others()).chain(self.recorder.writable.due()).min()
    }

    pub(crate) fn id(&self) -> &SessionId {
        self.recorder.id()
    }

    /// Takes over the generation in force. Pending waits keep their times.
    pub(crate) fn renew(&mut self) {
        self.terms.renew(&self.recorder.document, &self.recorder.state);
        self.recorder.renew(&self.terms.generation);
        if self.recorder.state.phase() == Phase::Waiting {
            // The new configuration may declare the prerequisites otherwise: the launch starts over and keeps its
            // limit.
            self.launching.bring_up = None;
        }
    }

    fn phase(&self) -> Phase {
        waits::phase(&self.recorder.state, &self.facts())
    }

    fn facts(&self) -> Facts<'_> {
        Facts { is_examining: self.launching.examining.is_some(), ..self.terms.facts(&self.recorder.document) }
    }

    /// Appends records and reads them back. Returns whether they are known to be written. After a failure the same
    /// step comes up again.
    async fn append(&mut self, batch: Batch) -> Result<bool, DriverError> {
        match self.recorder.write(batch).await {
            Err(PortError::Behind { last, .. }) => {
                self.catch_up().await?;
                if self.recorder.state.seq < last {
                    self.timers.retry_later();
                }
                Ok(false)
            }
            Ok(written) => {
                let is_direct = matches!(self.recorder.port, Port::Direct);
                if !written.from_reserve && is_direct && self.recorder.accepted() {
                    self.publish();
                }
                // No other process writes directly, so the journal ends with these records.
                self.catch_up_to(if is_direct { written.seq } else { u64::MAX }).await.map(|()| true)
            }
            Err(PortError::Silent) => {
                if matches!(self.recorder.port, Port::Keeper(_)) {
                    self.go_silent(self.recorder.port.reach());
                }
                self.catch_up().await?;
                self.publish();
                Ok(false)
            }
            Err(PortError::Lost) => Box::pin(self.line_lost()).await.map(|()| false),
            Err(error) => {
                tracing::warn!(
                    error = %chain(&error),
                    "cannot write a record now; retrying"
                );
                if is_of_the_disk(&error) && self.recorder.refused(errno_of(&error, &self.recorder.port)) {
                    self.publish();
                }
                self.timers.retry_later();
                self.catch_up().await.map(|()| false)
            }
        }
    }

    /// Reads and applies the new records of the journal, and publishes the state.
    async fn catch_up(&mut self) -> Result<(), DriverError> {
        self.catch_up_to(u64::MAX).await
    }

    /// Reads and applies the new records of the journal, at least up to `end`.
    async fn catch_up_to(&mut self, end: u64) -> Result<(), DriverError> {
        while self.recorder.state.seq < end && self.recorder.read_on().await? {
            self.forget_files().await;
            self.take_over_spec().await;
            self.take_over_workflow();
            // This fault point has no error to return.
            let _ = agentd_fault::at(Point::DaemonApplyAfter);
            self.publish();
            self.recorder.shorten().await;
        }
        self.recorder.rest();
        self.forget_files().await;
        Ok(())
    }

    /// Removes the files of an ended agent, before its end is published.
    async fn forget_files(&mut self) {
        self.launching.files.forget(&self.recorder.state.run).await;
    }

    /// Publishes the present state, unless records about the end of the agent are missing.
    pub(crate) fn publish(&mut self) {
        // The end of a run is published after its turn and requests are closed, so that clients see no open turn
        // after it.
        let is_next = || matches!(next(&self.recorder.state, &self.facts()), Some(Step::Append(_)));
        if self.recorder.has_ended() && !self.timers.is_retrying() && is_next() {
            return;
        }
        self.recorder.log(self.phase());
        self.show();
    }

    /// Publishes the present state.
    pub(crate) fn show(&mut self) {
        let phase = self.phase();
        if phase == Phase::BackingOff && self.timers.next_restart.is_none() {
            // The phase is published together with the time of the restart.
            self.arm();
        }
        self.recorder.show((self.phase(), self.timers.next_restart), self.stop.sent);
    }

    /// Sets the deadlines of the current waits.
    fn arm(&mut self) {
        if !self.recorder.is_running() {
            self.launching.renewal = RenewalState::default();
        }
        let document = &self.recorder.document;
        let (facts, patience) = (self.terms.facts(document), self.terms.patience(document));
        self.timers.arm(&self.recorder.state, &facts, &patience, self.launching.renewal.is_free());
    }

    /// Handles one expired wait. Only one at a time, since its records may end the others.
    async fn expire(&mut self) -> Result<(), DriverError> {
        let now = Instant::now();
        if self.launching.renewal.is_due(now) {
            self.begin_renewal();
            return Ok(());
        }
        let Some((wait, limit)) = self.timers.take_expired(now) else { return Ok(()) };
        if matches!(wait, Wait::Restart { .. }) && self.terms.generation.launchable().is_err() {
            // The restart waits further, until the configuration allows launches.
            return Ok(());
        }
        if let Wait::Expiry { at } = wait {
            if at <= Timestamp::now() {
                self.begin_renewal();
            }
            return Ok(());
        }
        match over(&self.recorder.state, &wait, limit, &self.facts()) {
            Some(batch) => self.append(batch).await.map(drop),
            None => Ok(()),
        }
    }

    /// Records reports about the session's prerequisites if they are new.
    async fn found(&mut self, launch: u64, reports: &[CheckReport], is_redeclared: bool) -> Result<(), DriverError> {
        let of_now = launch == self.recorder.state.launches;
        match changed(&self.recorder.state, reports, is_redeclared, &self.facts()).filter(|_| of_now) {
            Some(batch) => self.append(batch).await.map(drop),
            None => Ok(()),
        }
    }

    /// Takes over the keeper's report about the journal.
    fn note_keeper(&mut self) {
        if self.recorder.note_keeper() {
            self.publish();
        }
    }

    /// Carries out the next steps until none is left.
    async fn settle(&mut self) -> Result<(), DriverError> {
        loop {
            if !self.timers.is_retrying() && self.recorder.is_running() && matches!(self.recorder.port, Port::Direct) {
                // Messages to the agent need the keeper. Perhaps the record of the keeper's end could not be
                // written yet.
                self.line_lost().await?;
            }
            if self.timers.is_retrying() {
                self.publish();
                break;
            }
            if self.recorder.is_silent() {
                self.settle_silent().await?;
                if self.recorder.is_silent() {
                    break;
                }
                continue;
            }
            let step = next(&self.recorder.state, &self.facts());
            match step {
                None => break,
                Some(Step::Append(batch)) => drop(self.append(batch).await?),
                Some(Step::BringUp { launch }) => {
                    // With a keeper, the agent was started and its record is on the way.
                    if self.launching.bring_up.is_none()
                        && !self.is_reading()
                        && matches!(self.recorder.port, Port::Direct)
                        && !self.is_put_off().await?
                    {
                        self.begin_bring_up(launch);
                    }
                    break;
                }
                Some(Step::AbandonBringUp { launch }) => {
                    self.launching.bring_up = None;
                    let failed = agentd_api::event::LaunchFailed {
                        launch,
                        reason: reason::STOPPED.to_owned(),
                        message: "the session was stopped before its agent was started".to_owned(),
                    };
                    self.append(Batch::of(Body::LaunchFailed(failed))).await?;
                }
                Some(Step::StopAgent) => {
                    // Changes after the stop are not the agent's work.
                    if !self.is_reading() {
                        self.stop_agent().await?;
                        if self.recorder.has_ended() {
                            // The keeper was gone already. No event follows, so its end is completed now.
                            continue;
                        }
                    }
                    break;
                }
                Some(Step::CheckAnswer(due)) => {
                    self.begin_check(due);
                    break;
                }
                Some(Step::Conclude) => {
                    self.begin_conclusion();
                    break;
                }
            }
        }
        self.is_reading();
        self.mind_repositories();
        self.mind_workflow();
        self.arm();
        if !self.recorder.has_shown((self.phase(), self.timers.next_restart)) {
            // The configuration changed the phase without a record.
            self.publish();
        }
        Ok(())
    }

    /// Decides on a command and carries it out.
    async fn carry_out(&mut self, command: Command) -> Result<Result<CommandResult, Problem>, DriverError> {
        let restarts = is_restarted(&self.recorder.state, &self.facts());
        let queued_turns = self.terms.generation.config.limits.queued_turns;
        let bounds = LaunchBounds { queued_turns, generation: self.recorder.document.generation, restarts };
        let after_seq = self.recorder.state.seq;
        if matches!(command, Command::Resume { .. }) && self.recorder.has_ended_unrecorded(self.stop.sent) {
            return Ok(Err(Refusal::Unclosed.problem()));
        }
        let stop = match &command {
            Command::Stop { reason, cause } => Some(StopRequested { reason: reason.clone(), cause: cause.clone() }),
            Command::Prompt { .. }
            | Command::Cancel { .. }
            | Command::Resume { .. }
            | Command::Answer { .. }
            | Command::AnswerRequest(_)
            | Command::ChangeContext { .. }
            | Command::SetHint { .. }
            | Command::SetTitle { .. }
            | Command::ReportProgress { .. }
            | Command::ProposeScript { .. }
            | Command::ChangeSpec(_)
            | Command::Observe { .. }
            | Command::ReportPlace(_) => None,
        };
        let decision = match decide(&self.recorder.state, command, bounds) {
            Ok(decision) => decision,
            Err(refusal) => return Ok(Err(refusal.problem())),
        };
        let done = CommandResult { turn: decision.turn.clone(), after_seq: decision.known_since.unwrap_or(after_seq) };
        if decision.batch.entries.is_empty() {
            return Ok(Ok(done));
        }
        let requested = stop.clone();
        let written = !self.recorder.is_silent() && self.append(decision.batch).await?;
        if self.recorder.is_silent() {
            let Some(stop) = stop else { return Ok(Err(silent::problem())) };
            self.stop_by_force(stop);
            return Ok(Ok(done));
        }
        if let Some(stop) = stop
            && !written
            && matches!(self.recorder.port, Port::Keeper(_))
        {
            // An agent can be ended without a disk. The end and the stop are recorded when there is room. Until
            // then the stop is remembered, so that a dead keeper does not look like a crash.
            self.stop_by_force(stop);
            self.stop_agent().await?;
            self.publish();
            return Ok(Ok(done));
        }
        if let Some(StopRequested { reason, cause }) = &requested
            && !written
            && self.recorder.state.seq > after_seq
            && !self.recorder.writable.is_refused()
        {
            // The connection was lost because the agent ended at the same moment. The journal was read again, so a stop
            // that it has already is not recorded twice.
            self.settle().await?;
            let (reason, cause) = (reason.clone(), cause.clone());
            return Box::pin(self.carry_out(Command::Stop { reason, cause })).await;
        }
        if requested.is_some() && written && self.recorder.has_ended() {
            // The agent ended at the same moment. The end is published after its turn is closed, and the caller
            // must see it.
            self.settle().await?;
        }
        // After a lost connection the journal was read again. If the turn is in it, the prompt was queued.
        let queued = done.turn.as_ref().is_some_and(|turn| *turn != TurnId::numbered(self.recorder.state.next_turn));
        if written || queued {
            return Ok(Ok(done));
        }
        Ok(Err(self.recorder.not_recorded()))
    }
}
