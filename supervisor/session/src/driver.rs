//! The driver: the one task that acts for a session.
//!
//! The driver decides, appends records, reads them back, applies them and publishes the state. It decides by
//! [`agentd_decide::rules`] and [`agentd_decide::next`]. It learns facts only from the journal: it reads its own
//! records back like the agent's output. Clients see a record only after it was applied.
//!
//! The end of a driver is not the end of the session. The keeper continues, and the next driver reads the journal.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::event::StopRequested;
use agentd_api::prerequisite::CheckReport;
use agentd_api::session::{Phase, UnreadableSession};
use agentd_api::{Body, Code, Problem, SessionId, TurnId};
use agentd_fault::Point;
use agentd_journal::Reader;
use agentd_keeper::protocol::{StopTimes, ToKeeper};
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::document::Document;
use super::journal_port::{Journal, Port};
use super::launching::{BringUp, progress};
use super::recording::Measured;
use super::refresh::{RenewalState, SessionFiles, renewal_result};
use super::silent::{self, ForcedStop};
use super::writable::Writable;
use super::{Published, aside, ending};
use crate::generation::{Generation, Generations};
use crate::launch::{Link, LinkError};
use crate::pulse;
use agentd_api::chain;
use agentd_decide::batch::Batch;
use agentd_decide::next::{Facts, Step, next};
use agentd_decide::rules::{Command, LaunchBounds, Refusal, decide};
use agentd_decide::state::{Run, State};
use agentd_decide::verdict::RequiredPrerequisites;
use agentd_decide::waits::{self, Wait, is_restarted};
use agentd_host::guest::GuestSocket;

/// Request to a driver.
#[derive(Debug)]
pub(crate) enum Request {
    Command {
        command: Command,
        reply: oneshot::Sender<Result<CommandResult, Problem>>,
    },
    /// Asks the driver to give up the session, whose files are about to be removed. Refused while the session is
    /// active.
    Release {
        reply: oneshot::Sender<Result<(), Problem>>,
    },
    /// Reports of a repeated check of the prerequisites; needs no answer. `is_redeclared` tells that their
    /// declaration changed.
    Reports {
        launch: u64,
        reports: Vec<CheckReport>,
        is_redeclared: bool,
    },
}

/// Result of a command.
#[derive(Debug, Clone)]
pub struct CommandResult {
    /// The turn of a prompt.
    pub turn: Option<TurnId>,
    /// The last sequence number before the command's own records.
    pub after_seq: u64,
}

pub(crate) struct Driver {
    /// The generation in force when the driver last woke. A running task keeps its own generation.
    pub(super) generation: Arc<Generation>,
    generations: watch::Receiver<Arc<Generation>>,
    pub(super) journal: Journal,
    pub(super) document: Document,
    /// Label of the agent, for permission rules and plugins.
    agent: String,
    /// The session's prerequisites under this generation.
    needed: RequiredPrerequisites,
    pub(super) state: State,
    /// Reader at the driver's position in the journal. It is opened on demand.
    pub(super) reader: Option<Reader>,
    pub(super) port: Port,
    inbox: mpsc::Receiver<Box<Request>>,
    pub(super) publish: watch::Sender<Arc<Published>>,
    pub(super) bring_up: Option<BringUp>,
    pub(super) stop_sent: bool,
    /// Time by which an agent that was asked to stop must have ended.
    pub(super) stop_due: Option<Instant>,
    /// A stop that ends, or will end, the keeper by force.
    pub(super) forced: Option<ForcedStop>,
    /// Whether processes from before the daemon's start may carry the session's mark.
    pub(super) may_have_remains: bool,
    /// Pending waits, each with its deadline and its duration.
    pub(super) waits: Vec<(Wait, Instant, Duration)>,
    /// Wall-clock time of the next restart of a crashed agent.
    pub(super) next_restart: Option<Timestamp>,
    /// Renewal of expiring variables of the agent's environment.
    pub(super) renewal: RenewalState,
    pub(super) files: SessionFiles,
    /// The guarded agent's control socket, while the agent runs.
    pub(super) guest: Option<GuestSocket>,
    /// Time of the next attempt after a failed write.
    pub(super) retry: Option<Instant>,
    pub(super) requests: u64,
    pub(super) remembered: u64,
    /// Sequence number up to which all records are known to be on the disk.
    pub(super) durable: u64,
    pub(super) writable: Writable,
    /// Time of the last look at the length of the journal.
    pub(super) measured: Measured,
    /// Whether the whole journal is read, and the keeper is taken over or found gone.
    pub(super) current: bool,
    /// The published phase and time of the next restart.
    pub(super) shown: (Phase, Option<Timestamp>),
    /// The phase last written to the log.
    pub(super) logged: Phase,
}

/// Error that ends a driver.
#[derive(Debug, thiserror::Error)]
pub(super) enum DriverError {
    #[error("the journal cannot be read")]
    Read(#[from] agentd_journal::ReadError),
    #[error("the journal contains an invalid record")]
    Event(#[from] agentd_api::event::InvalidEvent),
    #[error("record {seq} of the journal has an invalid time")]
    Time { seq: u64, source: jiff::Error },
}

impl Driver {
    pub(crate) fn new(
        generations: &Generations,
        document: Document,
        inbox: mpsc::Receiver<Box<Request>>,
        state: State,
        publish: watch::Sender<Arc<Published>>,
        may_have_remains: bool,
    ) -> Self {
        let generation = generations.now();
        Self {
            journal: Journal {
                directory: generation.daemon.directories.session(&document.id),
                options: generation.config.journal.options(),
            },
            agent: generation.agent_label(&document.spec),
            needed: needed(&generation, &document, &state),
            shown: (state.phase(), None),
            logged: state.phase(),
            remembered: state.seq,
            state,
            generation,
            generations: generations.subscribe(),
            document,
            reader: None,
            port: Port::Direct,
            inbox,
            publish,
            bring_up: None,
            stop_sent: false,
            stop_due: None,
            forced: None,
            may_have_remains,
            waits: Vec::new(),
            next_restart: None,
            renewal: RenewalState::default(),
            files: SessionFiles::MayExist,
            guest: None,
            retry: None,
            requests: 0,
            durable: 0,
            writable: Writable::default(),
            measured: Measured { at: Instant::now(), in_turn: false },
            current: false,
        }
    }

    /// Runs until the daemon ends or the session is released. `self` is boxed: otherwise the task would reserve
    /// room for the driver twice, as its argument and as its state.
    pub(crate) async fn run(mut self: Box<Self>) {
        if let Err(error) = self.drive().await {
            let reason = chain(&error);
            tracing::error!(
                agentd.session = %self.document.id, error = %reason,
                "cannot read the session's journal; the session is set aside"
            );
            self.publish.send_replace(Arc::new(Published::unreadable(&self.document, &self.state, reason)));
            // Answer requests with the error until the daemon ends.
            let shutdown = self.generation.daemon.shutdown.clone();
            loop {
                let request = tokio::select! {
                    never = pulse::rest() => match never {},
                    () = shutdown.cancelled() => return,
                    request = self.inbox.recv() => request,
                };
                let Some(request) = request else { return };
                match *request {
                    Request::Command { command: Command::Stop { reason, cause }, reply } => {
                        aside::end(&self.generation, self.id(), self.stop_times(), StopRequested { reason, cause })
                            .await;
                        let _ = reply.send(Ok(CommandResult { turn: None, after_seq: self.state.seq }));
                    }
                    Request::Command { reply, .. } => {
                        let unreadable = UnreadableSession { id: self.id().to_string(), reason: chain(&error) };
                        drop(reply.send(Err(aside::problem(&unreadable))));
                    }
                    Request::Release { reply } if ending::has_keeper(&self.journal.directory).await => {
                        let problem =
                            Problem::new(Code::WrongPhase, "the session is set aside, and its agent is still running");
                        let hint = "stop it with `agentctl stop`, or remove it with `agentctl rm --force`";
                        let _ = reply.send(Err(problem.hint(hint)));
                    }
                    Request::Release { reply } => {
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
        self.current = true;
        self.publish();
        loop {
            self.settle().await?;
            self.mind_guests();
            self.remember(false).await;
            pulse::is_held_up(self.retry.is_some() || self.writable.is_refused());
            let shutdown = self.generation.daemon.shutdown.clone();
            let due = self.due();
            tokio::select! {
                biased;
                never = pulse::rest() => match never {},
                () = shutdown.cancelled() => {
                    self.bring_up = None;
                    self.remember(true).await;
                    return Ok(());
                }
                event = keeper_event(&mut self.port) => {
                    match event {
                        KeeperEvent::Grown => {
                            self.catch_up().await?;
                            self.note_keeper();
                        }
                        KeeperEvent::Lost => self.line_lost().await?,
                        KeeperEvent::Found(keeper) => self.keeper_found(keeper).await?,
                    }
                }
                progress = progress(&mut self.bring_up) => self.advance(progress).await?,
                renewal = renewal_result(&mut self.renewal) => self.renewed(renewal).await?,
                Ok(()) = self.generations.changed() => self.renew(),
                () = until(due) => {
                    self.retry = None;
                    if self.stop_due.is_some_and(|due| due <= Instant::now()) {
                        self.look_after_stop().await;
                    }
                    self.look_for_room().await;
                    self.expire().await?;
                }
                request = self.inbox.recv() => {
                    match request.map(|request| *request) {
                        Some(Request::Command { command, reply }) => {
                            let answer = self.carry_out(command).await?;
                            let _ = reply.send(answer);
                        }
                        Some(Request::Release { reply }) if !self.phase().is_over() && !self.has_ended_unrecorded() => {
                            let refusal = Refusal::NotEnded { phase: self.phase() };
                            let _ = reply.send(Err(refusal.problem()));
                        }
                        Some(Request::Release { reply }) => {
                            if self.has_ended_unrecorded() {
                                // The keeper only waits for room in the journal, which is about to be removed.
                                ending::discard(&self.generation, self.id(), &self.journal.directory).await;
                            }
                            let _ = reply.send(Ok(()));
                            return Ok(());
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
        let waits = self.waits.iter().map(|(_, until, _)| *until).chain(self.renewal.due());
        let waits = waits.filter(|_| !matches!(self.port, Port::Silent(_)));
        waits.chain(self.retry).chain(self.stop_due).chain(self.writable.due()).min()
    }

    pub(super) fn id(&self) -> &SessionId {
        &self.document.id
    }

    /// Takes over the generation in force. Pending waits keep their times.
    pub(super) fn renew(&mut self) {
        self.generation = Arc::clone(&self.generations.borrow_and_update());
        self.journal.options = self.generation.config.journal.options();
        self.needed = needed(&self.generation, &self.document, &self.state);
        if self.state.phase() == Phase::Waiting {
            // The new configuration may declare the prerequisites otherwise: the launch starts over and keeps its
            // limit.
            self.bring_up = None;
        }
    }

    pub(super) fn phase(&self) -> Phase {
        waits::phase(&self.state, &self.facts())
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        Facts {
            spec: &self.document.spec,
            generation: self.document.generation,
            now: Timestamp::now(),
            replay_quiet: self.generation.config.launch.replay_quiet.0,
            agent: &self.agent,
            rules: &self.generation.config.permissions,
            may_allow: self.generation.launchable().is_ok(),
            note: self.generation.resume_note(&self.document.spec),
            restart: self.generation.restart_policy(&self.document.spec),
            drained: self.generation.daemon.drain.is_on(),
            needed: &self.needed,
        }
    }

    /// Carries out the next steps until none is left.
    async fn settle(&mut self) -> Result<(), DriverError> {
        loop {
            if self.retry.is_none() && matches!(self.state.run, Run::Running(_)) && matches!(self.port, Port::Direct) {
                // Messages to the agent need the keeper. Perhaps the record of the keeper's end could not be
                // written yet.
                self.line_lost().await?;
            }
            if self.retry.is_some() {
                self.publish();
                break;
            }
            if matches!(self.port, Port::Silent(_)) {
                self.settle_silent().await?;
                if matches!(self.port, Port::Silent(_)) {
                    break;
                }
                continue;
            }
            let step = next(&self.state, &self.facts());
            match step {
                None => break,
                Some(Step::Append(batch)) => drop(self.append(batch).await?),
                Some(Step::BringUp { launch }) => {
                    // With a keeper, the agent was started and its record is on the way.
                    if self.bring_up.is_none() && matches!(self.port, Port::Direct) && !self.is_put_off().await? {
                        self.begin_bring_up(launch);
                    }
                    break;
                }
                Some(Step::AbandonBringUp { launch }) => {
                    self.bring_up = None;
                    let failed = agentd_api::event::LaunchFailed {
                        launch,
                        reason: "Stopped".to_owned(),
                        message: "the session was stopped before its agent was started".to_owned(),
                    };
                    self.append(Batch::of(Body::LaunchFailed(failed))).await?;
                }
                Some(Step::StopAgent) => {
                    self.stop_agent().await?;
                    break;
                }
            }
        }
        self.arm();
        let shown = (self.phase(), self.next_restart);
        if self.shown != shown {
            // The configuration changed the phase without a record.
            self.publish();
        }
        Ok(())
    }

    async fn stop_agent(&mut self) -> Result<(), DriverError> {
        if self.stop_sent {
            return Ok(());
        }
        let times = self.stop_times();
        if agentd_fault::at(Point::DaemonStopBefore).is_err() {
            return self.line_lost().await;
        }
        let answer = self.keeper_patience().answer;
        let Port::Keeper(link) = &mut self.port else { return self.line_lost().await };
        match link.call(&ToKeeper::Stop(times)).await {
            Ok(_) => {
                self.stop_sent = true;
                let ends = Duration::from_millis(times.close_ms.saturating_add(times.term_ms));
                self.stop_due = Instant::now().checked_add(ends.saturating_add(answer));
            }
            Err(LinkError::Silent { .. }) => {
                let reach = link.reach();
                self.go_silent(reach);
                self.settle_silent().await?;
            }
            Err(_) => self.line_lost().await?,
        }
        Ok(())
    }

    pub(super) fn stop_times(&self) -> StopTimes {
        self.generation.config.launch.stop_times()
    }

    /// Decides on a command and carries it out.
    async fn carry_out(&mut self, command: Command) -> Result<Result<CommandResult, Problem>, DriverError> {
        let restarts = is_restarted(&self.state, &self.facts());
        let bounds = LaunchBounds { queued_turns: self.generation.config.limits.queued_turns, restarts };
        let after_seq = self.state.seq;
        if matches!(command, Command::Resume { .. }) && self.has_ended_unrecorded() {
            return Ok(Err(Refusal::Unclosed.problem()));
        }
        let decision = match decide(&self.state, command.clone(), bounds) {
            Ok(decision) => decision,
            Err(refusal) => return Ok(Err(refusal.problem())),
        };
        let done = CommandResult { turn: decision.turn.clone(), after_seq: decision.known_since.unwrap_or(after_seq) };
        if decision.batch.entries.is_empty() {
            return Ok(Ok(done));
        }
        let is_silent = |driver: &Self| matches!(driver.port, Port::Silent(_));
        let is_stop = matches!(command, Command::Stop { .. });
        let written = !is_silent(self) && self.append(decision.batch).await?;
        if is_silent(self) {
            let Command::Stop { reason, cause } = command else { return Ok(Err(silent::problem())) };
            self.stop_by_force(StopRequested { reason, cause });
            return Ok(Ok(done));
        }
        if let Command::Stop { reason, cause } = command
            && !written
            && matches!(self.port, Port::Keeper(_))
        {
            // An agent can be ended without a disk. The end and the stop are recorded when there is room. Until
            // then the stop is remembered, so that a dead keeper does not look like a crash.
            self.stop_by_force(StopRequested { reason, cause });
            self.stop_agent().await?;
            self.publish();
            return Ok(Ok(done));
        }
        if is_stop && written && matches!(self.state.run, Run::Ended(_)) {
            // The agent ended at the same moment. The end is published after its turn is closed, and the caller
            // must see it.
            self.settle().await?;
        }
        // After a lost connection the journal was read again. If the turn is in it, the prompt was queued.
        let queued = done.turn.as_ref().is_some_and(|turn| *turn != TurnId::numbered(self.state.next_turn));
        if written || queued {
            return Ok(Ok(done));
        }
        Ok(Err(self.not_recorded()))
    }
}

/// Returns the session's prerequisites. An invalid configuration may lack some, so the recorded ones are used
/// instead.
fn needed(generation: &Generation, document: &Document, state: &State) -> RequiredPrerequisites {
    match generation.launchable() {
        Ok(()) => generation.needs(&document.spec),
        Err(_) => state.prerequisites.iter().map(|report| (report.name.clone(), report.on_failure)).collect(),
    }
}

/// Event from the session's keeper.
enum KeeperEvent {
    /// The journal has grown.
    Grown,
    /// The connection to the keeper is lost.
    Lost,
    /// A keeper that did not answer answers again, or is gone.
    Found(Option<Link>),
}

async fn keeper_event(port: &mut Port) -> KeeperEvent {
    match port {
        Port::Keeper(link) => link.grown().await.map_or(KeeperEvent::Lost, |_| KeeperEvent::Grown),
        Port::Silent(search) => KeeperEvent::Found(silent::search(search).await),
        Port::Direct => std::future::pending().await,
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
