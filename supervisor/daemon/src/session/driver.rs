//! The one task that acts for a session.
//!
//! Decide → append → read → apply → publish. The driver decides (by [`super::rules`] and [`super::next`]), hands records to whoever
//! writes the journal, and learns what is true only by reading the journal back: what it wrote itself and what the agent said
//! come by the same way. A client sees a record after it was applied, never before.
//!
//! A driver's end is not the session's: the keeper goes on, and the next driver finds its place by the journal.

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

use super::batch::Batch;
use super::document::Document;
use super::journal_port::{Journal, Port};
use super::launching::{BringUp, progress};
use super::next::{Facts, Step, next};
use super::recording::Measured;
use super::refresh::{Files, Refresh, refreshed};
use super::rules::{Bounds, Command, Refusal, decide};
use super::silent::{self, Forced};
use super::state::{Run, State};
use super::verdict::Needed;
use super::waits::{self, Wait, is_restarted};
use super::writable::Writable;
use super::{Published, aside, ending};
use crate::env::chain;
use crate::guest::GuestSocket;
use crate::launch::{Link, LinkError};
use crate::pulse;
use crate::world::{World, Worlds};

/// What a driver is asked.
#[derive(Debug)]
pub(crate) enum Ask {
    Do {
        command: Command,
        reply: oneshot::Sender<Result<Done, Problem>>,
    },
    /// Let go of the session: its files are about to be removed. Refused while it is active.
    Release {
        reply: oneshot::Sender<Result<(), Problem>>,
    },
    /// What was found when its prerequisites were looked at again; `anew` where they are declared otherwise than before. Nobody waits
    /// for what comes of it.
    Found {
        launch: u64,
        reports: Vec<CheckReport>,
        anew: bool,
    },
}

/// What came of a command.
#[derive(Debug, Clone)]
pub(crate) struct Done {
    /// The turn that a prompt became.
    pub(crate) turn: Option<TurnId>,
    /// The last seq before the command's own records.
    pub(crate) after_seq: u64,
}

pub(crate) struct Driver {
    /// As it was when the driver last woke; a task that is under way has its own.
    pub(super) world: Arc<World>,
    worlds: watch::Receiver<Arc<World>>,
    pub(super) journal: Journal,
    pub(super) document: Document,
    /// What the agent is called, in rules and to plugins.
    agent: String,
    /// What the session needs as the world has it.
    needed: Needed,
    pub(super) state: State,
    /// Where the journal has been read to; opened when there is something to read.
    pub(super) reader: Option<Reader>,
    pub(super) port: Port,
    asks: mpsc::Receiver<Box<Ask>>,
    pub(super) publish: watch::Sender<Arc<Published>>,
    pub(super) bring_up: Option<BringUp>,
    pub(super) stop_sent: bool,
    /// When the agent that was told to end is to have ended.
    pub(super) stop_due: Option<Instant>,
    /// The keeper is ended, or is to be, by force.
    pub(super) forced: Option<Forced>,
    /// Processes may carry the session's mark that were there when the daemon started.
    pub(super) may_have_remains: bool,
    /// What is waited for, and until when.
    pub(super) waits: Vec<(Wait, Instant, Duration)>,
    /// When a crashed agent is started again, by the clock on the wall.
    pub(super) next_restart: Option<Timestamp>,
    /// What of the agent's environment expires, while it is asked for again.
    pub(super) refresh: Refresh,
    pub(super) files: Files,
    /// Where the agent reaches the control endpoint, while it runs guarded.
    pub(super) guest: Option<GuestSocket>,
    /// Something could not be written; tried again then.
    pub(super) retry: Option<Instant>,
    pub(super) requests: u64,
    pub(super) remembered: u64,
    /// Everything up to this record is known to be on the disk.
    pub(super) durable: u64,
    pub(super) writable: Writable,
    /// When it was last looked whether the journal is longer than is kept.
    pub(super) measured: Measured,
    /// Whether the journal has been read to its end, and the keeper taken over or found gone.
    pub(super) current: bool,
    /// The phase and the time of the restart that are shown.
    pub(super) shown: (Phase, Option<Timestamp>),
    /// The phase that the log has.
    pub(super) logged: Phase,
}

/// What ends a driver without anybody's wish.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the journal cannot be read")]
    Read(#[from] agentd_journal::ReadError),
    #[error("the journal holds something that is not a record")]
    Event(#[from] agentd_api::event::InvalidEvent),
    #[error("record {seq} of the journal has no time")]
    Time { seq: u64, source: jiff::Error },
}

impl Driver {
    pub(crate) fn new(
        worlds: &Worlds,
        document: Document,
        asks: mpsc::Receiver<Box<Ask>>,
        state: State,
        publish: watch::Sender<Arc<Published>>,
        may_have_remains: bool,
    ) -> Self {
        let world = worlds.now();
        Self {
            journal: Journal {
                directory: world.directories.session(&document.id),
                options: world.config.journal.options(),
            },
            agent: world.agent_label(&document.spec),
            needed: needed(&world, &document, &state),
            shown: (state.phase(), None),
            logged: state.phase(),
            remembered: state.seq,
            state,
            world,
            worlds: worlds.subscribe(),
            document,
            reader: None,
            port: Port::Direct,
            asks,
            publish,
            bring_up: None,
            stop_sent: false,
            stop_due: None,
            forced: None,
            may_have_remains,
            waits: Vec::new(),
            next_restart: None,
            refresh: Refresh::default(),
            files: Files::Perhaps,
            guest: None,
            retry: None,
            requests: 0,
            durable: 0,
            writable: Writable::default(),
            measured: Measured { at: Instant::now(), in_turn: false },
            current: false,
        }
    }

    /// Runs until the daemon ends or the session is released. Boxed, since a task has room for what it is given and for what it
    /// makes of it: that would be the driver twice.
    pub(crate) async fn run(mut self: Box<Self>) {
        if let Err(broken) = self.drive().await {
            let reason = chain(&broken);
            tracing::error!(agentd.session = %self.document.id, error = %reason, "the session is set aside");
            self.publish.send_replace(Arc::new(Published::broken(&self.document, &self.state, reason)));
            // Whoever asks is told, until the daemon ends.
            let shutdown = self.world.shutdown.clone();
            loop {
                let ask = tokio::select! {
                    never = pulse::rest() => match never {},
                    () = shutdown.cancelled() => return,
                    ask = self.asks.recv() => ask,
                };
                let Some(ask) = ask else { return };
                match *ask {
                    Ask::Do { command: Command::Stop { reason, cause }, reply } => {
                        aside::end(&self.world, self.id(), self.stop_times(), StopRequested { reason, cause }).await;
                        let _ = reply.send(Ok(Done { turn: None, after_seq: self.state.seq }));
                    }
                    Ask::Do { reply, .. } => {
                        let unreadable = UnreadableSession { id: self.id().to_string(), reason: chain(&broken) };
                        drop(reply.send(Err(aside::problem(&unreadable))));
                    }
                    Ask::Release { reply } if ending::has_keeper(&self.journal.directory).await => {
                        let problem = Problem::new(Code::WrongPhase, "the session is set aside, and its agent runs");
                        let hint = "stop it first with `agentctl stop`, or remove it with `agentctl rm --force`";
                        let _ = reply.send(Err(problem.hint(hint)));
                    }
                    Ask::Release { reply } => {
                        let _ = reply.send(Ok(()));
                        return;
                    }
                    Ask::Found { .. } => {}
                }
            }
        }
    }

    async fn drive(&mut self) -> Result<(), Broken> {
        self.renew();
        self.take_over().await?;
        self.current = true;
        self.publish();
        loop {
            self.settle().await?;
            self.mind_guests();
            self.remember(false).await;
            pulse::is_held_up(self.retry.is_some() || self.writable.is_refused());
            let shutdown = self.world.shutdown.clone();
            let due = self.due();
            tokio::select! {
                biased;
                never = pulse::rest() => match never {},
                () = shutdown.cancelled() => {
                    self.bring_up = None;
                    self.remember(true).await;
                    return Ok(());
                }
                news = news(&mut self.port) => {
                    match news {
                        News::Grown => {
                            self.catch_up().await?;
                            self.note_keeper();
                        }
                        News::Lost => self.line_lost().await?,
                        News::Found(keeper) => self.keeper_found(keeper).await?,
                    }
                }
                progress = progress(&mut self.bring_up) => self.advance(progress).await?,
                renewal = refreshed(&mut self.refresh) => self.renewed(renewal).await?,
                Ok(()) = self.worlds.changed() => self.renew(),
                () = until(due) => {
                    self.retry = None;
                    if self.stop_due.is_some_and(|due| due <= Instant::now()) {
                        self.look_after_stop().await;
                    }
                    self.look_for_room().await;
                    self.expire().await?;
                }
                ask = self.asks.recv() => {
                    match ask.map(|ask| *ask) {
                        Some(Ask::Do { command, reply }) => {
                            let answer = self.carry_out(command).await?;
                            let _ = reply.send(answer);
                        }
                        Some(Ask::Release { reply }) if !self.phase().is_over() && !self.has_ended_unrecorded() => {
                            let refusal = Refusal::NotEnded { phase: self.phase() };
                            let _ = reply.send(Err(refusal.problem()));
                        }
                        Some(Ask::Release { reply }) => {
                            if self.has_ended_unrecorded() {
                                // Its keeper only waits for room in the journal, which is about to be removed.
                                ending::discard(&self.world, self.id(), &self.journal.directory).await;
                            }
                            let _ = reply.send(Ok(()));
                            return Ok(());
                        }
                        Some(Ask::Found { launch, reports, anew }) => self.found(launch, &reports, anew).await?,
                        None => return Ok(()),
                    }
                }
            }
        }
    }

    /// When something is due. Of what is waited for nothing can be recorded while the keeper does not answer.
    fn due(&self) -> Option<Instant> {
        let waits = self.waits.iter().map(|(_, until, _)| *until).chain(self.refresh.due());
        let waits = waits.filter(|_| !matches!(self.port, Port::Silent(_)));
        waits.chain(self.retry).chain(self.stop_due).chain(self.writable.due()).min()
    }

    pub(super) fn id(&self) -> &SessionId {
        &self.document.id
    }

    /// Looks at the world in force. What is waited for already keeps its time.
    pub(super) fn renew(&mut self) {
        self.world = Arc::clone(&self.worlds.borrow_and_update());
        self.journal.options = self.world.config.journal.options();
        self.needed = needed(&self.world, &self.document, &self.state);
        if self.state.phase() == Phase::Waiting {
            // What it waits for may be declared otherwise now; the launch begins anew, and keeps its limit.
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
            replay_quiet: self.world.config.launch.replay_quiet.0,
            agent: &self.agent,
            rules: &self.world.config.permissions,
            may_allow: self.world.launchable().is_ok(),
            note: self.world.resume_note(&self.document.spec),
            restart: self.world.restart(&self.document.spec),
            drained: self.world.drain.is_on(),
            needed: &self.needed,
        }
    }

    /// Does what is to be done, until nothing is.
    async fn settle(&mut self) -> Result<(), Broken> {
        loop {
            if self.retry.is_none() && matches!(self.state.run, Run::Running(_)) && matches!(self.port, Port::Direct) {
                // What is for the agent cannot be sent without its keeper; that it is gone could not be written, perhaps.
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
                    // With a keeper the agent was started, and its record is on the way.
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
            // What is configured has changed, and not what is recorded.
            self.publish();
        }
        Ok(())
    }

    async fn stop_agent(&mut self) -> Result<(), Broken> {
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
        self.world.config.launch.stop_times()
    }

    /// Decides on a command and carries it out.
    async fn carry_out(&mut self, command: Command) -> Result<Result<Done, Problem>, Broken> {
        let restarts = is_restarted(&self.state, &self.facts());
        let bounds = Bounds { queued_turns: self.world.config.limits.queued_turns, restarts };
        let after_seq = self.state.seq;
        if matches!(command, Command::Resume { .. }) && self.has_ended_unrecorded() {
            return Ok(Err(Refusal::Unclosed.problem()));
        }
        let decision = match decide(&self.state, command.clone(), bounds) {
            Ok(decision) => decision,
            Err(refusal) => return Ok(Err(refusal.problem())),
        };
        let done = Done { turn: decision.turn.clone(), after_seq: decision.known_since.unwrap_or(after_seq) };
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
            // An agent can be ended without a disk. Its end is recorded when there is room, and the stop with it: a keeper that dies
            // meanwhile is not to look like a crash.
            self.stop_by_force(StopRequested { reason, cause });
            self.stop_agent().await?;
            self.publish();
            return Ok(Ok(done));
        }
        if is_stop && written && matches!(self.state.run, Run::Ended(_)) {
            // The agent ended in the same moment. That is not shown before its turn is closed, and the caller is to see it.
            self.settle().await?;
        }
        // After a broken line the journal was read again, and a turn that is in it was queued.
        let queued = done.turn.as_ref().is_some_and(|turn| *turn != TurnId::numbered(self.state.next_turn));
        if written || queued {
            return Ok(Ok(done));
        }
        Ok(Err(self.not_recorded()))
    }
}

/// What the session needs. What is read of a configuration that is refused may lack it: then what is known to be needed still is.
fn needed(world: &World, document: &Document, state: &State) -> Needed {
    match world.launchable() {
        Ok(()) => world.needs(&document.spec),
        Err(_) => state.prerequisites.iter().map(|report| (report.name.clone(), report.on_failure)).collect(),
    }
}

/// What a session's keeper has for its driver.
enum News {
    /// The journal has grown.
    Grown,
    /// The line to the keeper is lost.
    Lost,
    /// One that did not answer does, or is gone.
    Found(Option<Link>),
}

async fn news(port: &mut Port) -> News {
    match port {
        Port::Keeper(link) => link.grown().await.map_or(News::Lost, |_| News::Grown),
        Port::Silent(search) => News::Found(silent::search(search).await),
        Port::Direct => std::future::pending().await,
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
