//! The one task that acts for a session.
//!
//! Decide → append → read → apply → publish. The driver decides (by [`super::rules`] and [`super::next`]), hands records to whoever
//! writes the journal, and learns what is true only by reading the journal back: what it wrote itself and what the agent said
//! come by the same way. A client sees a record after it was applied, never before.
//!
//! A driver's end is not the session's: the keeper goes on, and the next driver finds its place by the journal.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::prerequisite::CheckReport;
use agentd_api::session::Phase;
use agentd_api::{Body, Problem, SessionId, TurnId};
use agentd_fault::Point;
use agentd_journal::{Reader, Retain};
use agentd_keeper::protocol::{FromKeeper, HoldArgs, LaunchRecord, StopTimes, ToKeeper};
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::batch::Batch;
use super::bringup::{self, Prepared, Progress};
use super::document::Document;
use super::follow::{self, Learned};
use super::journal_port::{Journal, Port, PortError};
use super::next::{self, Facts, Step, fail_launch, next};
use super::refresh::{Files, Refresh, refreshed};
use super::rules::{Bounds, Command, Refusal, decide};
use super::state::{Ended, Run, State};
use super::verdict::Needed;
use super::waits::Wait;
use super::{Published, view};
use crate::env::chain;
use crate::launch::{Launcher, Link, UnitLimits};
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
    reader: Option<Reader>,
    pub(super) port: Port,
    asks: mpsc::Receiver<Box<Ask>>,
    publish: watch::Sender<Arc<Published>>,
    bring_up: Option<BringUp>,
    pub(super) stop_sent: bool,
    /// Processes may carry the session's mark that were there when the daemon started.
    pub(super) may_have_remains: bool,
    /// What is waited for, and until when.
    pub(super) waits: Vec<(Wait, Instant, Duration)>,
    /// What of the agent's environment expires, while it is asked for again.
    pub(super) refresh: Refresh,
    pub(super) files: Files,
    /// Something could not be written; tried again then.
    retry: Option<Instant>,
    requests: u64,
    remembered: u64,
    /// Whether the journal has been read to its end, and the keeper taken over or found gone.
    pub(super) current: bool,
    /// The phase that the log has.
    logged: Phase,
}

struct BringUp {
    /// The one that it began in.
    world: Arc<World>,
    progress: mpsc::Receiver<Progress>,
    task: JoinHandle<()>,
}

impl Drop for BringUp {
    fn drop(&mut self) {
        self.task.abort();
    }
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

const RETRY: Duration = Duration::from_millis(250);

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
            needed: world.needs(&document.spec),
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
            may_have_remains,
            waits: Vec::new(),
            refresh: Refresh::default(),
            files: Files::Perhaps,
            retry: None,
            requests: 0,
            current: false,
        }
    }

    /// Runs until the daemon ends or the session is released. Boxed, since a task has room for what it is given and for what it
    /// makes of it: that would be the driver twice.
    pub(crate) async fn run(mut self: Box<Self>) {
        let result = self.drive().await;
        if let Err(broken) = result {
            let reason = chain(&broken);
            tracing::error!(agentd.session = %self.document.id, error = %reason, "the session is set aside");
            self.publish.send_replace(Arc::new(Published::broken(&self.document, &self.state, reason)));
            // Whoever asks is told, until the daemon ends.
            let shutdown = self.world.shutdown.clone();
            loop {
                let ask = tokio::select! {
                    () = shutdown.cancelled() => return,
                    ask = self.asks.recv() => ask,
                };
                let Some(ask) = ask else { return };
                let problem = Problem::new(agentd_api::Code::SessionUnreadable, chain(&broken))
                    .hint("the journal is kept as it is; `agentctl rm --force` removes the session");
                match *ask {
                    Ask::Do { reply, .. } => drop(reply.send(Err(problem))),
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
            self.remember(false).await;
            let shutdown = self.world.shutdown.clone();
            let due = self.waits.iter().map(|(_, until, _)| *until).chain(self.retry).chain(self.refresh.due()).min();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {
                    self.bring_up = None;
                    self.remember(true).await;
                    return Ok(());
                }
                grown = grown(&mut self.port) => {
                    match grown {
                        Ok(()) => self.catch_up().await?,
                        Err(()) => self.line_lost().await?,
                    }
                }
                progress = progress(&mut self.bring_up) => {
                    self.advance(progress).await?;
                }
                renewal = refreshed(&mut self.refresh) => {
                    self.renewed(renewal).await?;
                }
                Ok(()) = self.worlds.changed() => self.renew(),
                () = until(due) => {
                    self.retry = None;
                    self.expire().await?;
                }
                ask = self.asks.recv() => {
                    match ask.map(|ask| *ask) {
                        Some(Ask::Do { command, reply }) => {
                            let answer = self.carry_out(command).await?;
                            let _ = reply.send(answer);
                        }
                        Some(Ask::Release { reply }) if self.state.phase().is_active() => {
                            let refusal = Refusal::NotEnded { phase: self.state.phase() };
                            let _ = reply.send(Err(refusal.problem()));
                        }
                        Some(Ask::Release { reply }) => {
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

    pub(super) fn id(&self) -> &SessionId {
        &self.document.id
    }

    /// Looks at the world in force. What is waited for already keeps its time.
    pub(super) fn renew(&mut self) {
        self.world = Arc::clone(&self.worlds.borrow_and_update());
        self.journal.options = self.world.config.journal.options();
        self.needed = self.world.needs(&self.document.spec);
        if self.state.phase() == Phase::Waiting {
            // What it waits for may be declared otherwise now; the launch begins anew, and keeps its limit.
            self.bring_up = None;
        }
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        Facts {
            spec: &self.document.spec,
            generation: self.document.generation,
            now: Timestamp::now(),
            replay_quiet: self.world.config.launch.replay_quiet.0,
            agent: &self.agent,
            rules: &self.world.config.permissions,
            note: self.world.resume_note(&self.document.spec),
            restart: self.document.spec.restart.unwrap_or(self.world.config.launch.restart),
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
            let step = next(&self.state, &self.facts());
            match step {
                None => break,
                Some(Step::Append(batch)) => drop(self.append(batch).await?),
                Some(Step::BringUp { launch }) => {
                    // With a keeper the agent was started, and its record is on the way.
                    if self.bring_up.is_none() && matches!(self.port, Port::Direct) {
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
        Ok(())
    }

    fn begin_bring_up(&mut self, launch: u64) {
        let (report, progress) = mpsc::channel(16);
        let job = self.job(launch);
        let world = Arc::clone(&self.world);
        let task = tokio::spawn(bringup::run(Arc::clone(&world), job, report));
        self.bring_up = Some(BringUp { world, progress, task });
    }

    async fn stop_agent(&mut self) -> Result<(), Broken> {
        if self.stop_sent {
            return Ok(());
        }
        let times = self.stop_times();
        if agentd_fault::at(Point::DaemonStopBefore).is_err() {
            return self.line_lost().await;
        }
        let Port::Keeper(link) = &mut self.port else { return self.line_lost().await };
        match link.call(&ToKeeper::Stop(times)).await {
            Ok(_) => self.stop_sent = true,
            Err(_) => self.line_lost().await?,
        }
        Ok(())
    }

    pub(super) fn stop_times(&self) -> StopTimes {
        let milliseconds = |span: crate::config::Span| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX);
        let launch = &self.world.config.launch;
        StopTimes { close_ms: milliseconds(launch.stop_close), term_ms: milliseconds(launch.stop_term) }
    }

    /// What the bring-up reports.
    async fn advance(&mut self, progress: Option<Progress>) -> Result<(), Broken> {
        let Run::Preparing(preparing) = &self.state.run else {
            self.bring_up = None;
            return Ok(());
        };
        let launch = preparing.launch;
        match progress {
            Some(Progress::Record(body)) => self.append(Batch::of(*body)).await.map(drop),
            Some(Progress::Condition { kind, status, reason, message }) => {
                let body = next::condition(&self.state, &self.facts(), kind, status, &reason, message);
                self.append(Batch::of(body)).await.map(drop)
            }
            Some(Progress::Failed { kind, reason, message }) => {
                self.bring_up = None;
                let batch = fail_launch(&self.state, launch, kind, reason, &message, &self.facts());
                self.append(batch).await.map(drop)
            }
            Some(Progress::Ready(prepared)) => {
                let begun = self.bring_up.take();
                let world = begun.map_or_else(|| Arc::clone(&self.world), |begun| Arc::clone(&begun.world));
                // Once in a launch; every task would have room for it always.
                Box::pin(self.start_agent(&world, launch, *prepared)).await
            }
            None => {
                self.bring_up = None;
                let message = "the launch ended without a word, which is a defect of agentd; its log has more";
                let kind = agentd_api::session::ConditionType::EnvironmentReady;
                let batch = fail_launch(&self.state, launch, kind, "Internal", message, &self.facts());
                self.append(batch).await.map(drop)
            }
        }
    }

    /// Starts the keeper, which takes the journal, and gives it the agent.
    async fn start_agent(&mut self, world: &World, launch: u64, prepared: Prepared) -> Result<(), Broken> {
        let Prepared { record, files } = prepared;
        if let Err(error) = self.provide_files(files).await {
            let message = format!("the files of its environment cannot be written: {error}");
            let kind = agentd_api::session::ConditionType::EnvironmentReady;
            let batch = fail_launch(&self.state, launch, kind, "FilesNotWritten", &message, &self.facts());
            return self.append(batch).await.map(drop);
        }
        let args = HoldArgs {
            session: self.document.id.to_string(),
            launch,
            state: self.journal.directory.clone(),
            socket: world.directories.keeper_socket(&self.document.id),
            journal: world.config.journal.options(),
            orphan_ttl: world.config.limits.orphan.map(|span| span.0),
        };
        let (own, configured) = (&self.document.spec.limits, &world.config.limits);
        let limits = UnitLimits { memory: own.memory.or(configured.memory), tasks: own.tasks.or(configured.tasks) };
        let started = start_keeper(&world.launcher, &self.document.id, &args, limits, record).await;
        match started {
            Ok(link) => {
                self.port = Port::Keeper(link);
                self.stop_sent = false;
                self.catch_up().await
            }
            Err(error) => {
                // An agent that could not be executed has its record when the keeper lets the journal go, and that record ends
                // the launch; one that was started all the same is found.
                self.line_lost().await?;
                if matches!(self.state.run, Run::Preparing(_)) {
                    let kind = agentd_api::session::ConditionType::AgentStarted;
                    let batch = fail_launch(&self.state, launch, kind, "KeeperFailed", &error, &self.facts());
                    self.append(batch).await?;
                }
                Ok(())
            }
        }
    }

    /// Decides on a command and carries it out.
    async fn carry_out(&mut self, command: Command) -> Result<Result<Done, Problem>, Broken> {
        let bounds = Bounds { queued_turns: self.world.config.limits.queued_turns };
        let after_seq = self.state.seq;
        let decision = match decide(&self.state, command.clone(), bounds) {
            Ok(decision) => decision,
            Err(refusal) => return Ok(Err(refusal.problem())),
        };
        let done = Done { turn: decision.turn.clone(), after_seq: decision.known_since.unwrap_or(after_seq) };
        if decision.batch.entries.is_empty() {
            return Ok(Ok(done));
        }
        let written = self.append(decision.batch).await?;
        // After a broken line the journal was read again, and a turn that is in it was queued.
        let queued = done.turn.as_ref().is_some_and(|turn| *turn != TurnId::numbered(self.state.next_turn));
        if written || queued {
            return Ok(Ok(done));
        }
        Ok(Err(Problem::new(
            agentd_api::Code::TooBusy,
            "the session's journal cannot be written now; nothing was changed",
        )
        .hint("is the disk full? `agentctl show` has the session's state; try again")))
    }

    /// Hands records over and reads them back; whether they are known to be written. What cannot be written now is not done
    /// now: the same step comes up again.
    pub(super) async fn append(&mut self, batch: Batch) -> Result<bool, Broken> {
        self.requests += 1;
        let appended = match agentd_fault::at(Point::DaemonAppendBefore) {
            Ok(()) => self.port.append(&self.journal, self.requests, batch).await,
            Err(error) => Err(PortError::Refused { code: "fault".to_owned(), message: error.to_string() }),
        };
        let appended = appended.and_then(|()| agentd_fault::at(Point::DaemonAppendAfter).map_err(|_| PortError::Lost));
        match appended {
            Ok(()) => self.catch_up().await.map(|()| true),
            Err(PortError::Lost) => Box::pin(self.line_lost()).await.map(|()| false),
            Err(error) => {
                tracing::warn!(agentd.session = %self.document.id, error = %chain(&error), "a record waits");
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
            let (reader, directory, after) = (self.reader.take(), self.journal.directory.clone(), self.state.seq);
            let upto = self.port.reach();
            let read = move || follow::read_some(reader, &directory, after, upto);
            let (reader, learned) = tokio::task::spawn_blocking(read)
                .await
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
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
        let phase = self.state.phase();
        if self.logged != phase {
            self.logged = phase;
            let id = self.document.id.as_str();
            let why = match &self.state.run {
                Run::Ended(Ended::Failed(message)) => format!(": {message}"),
                _ => String::new(),
            };
            tracing::info!(agentd.session = id, "session {id} is {}{why}", phase.as_str());
        }
        self.publish.send_replace(Arc::new(Published::new(
            view(&self.document, &self.state),
            self.remembered,
            self.current,
        )));
    }

    /// Writes the fold down when the session comes to rest, so that the next daemon need not read it all.
    async fn remember(&mut self, last: bool) {
        let resting = matches!(self.state.phase(), Phase::Idle | Phase::Stopped | Phase::Failed);
        if self.state.seq == self.remembered || !(resting || last) {
            return;
        }
        let (mut document, state) = (self.document.clone(), self.state.clone());
        let (directory, keep) = (self.journal.directory.clone(), self.world.config.journal.keep_session);
        let seq = self.state.seq;
        let written = tokio::task::spawn_blocking(move || {
            document.remember(&state);
            document.write(&directory)?;
            match keep {
                Some(at_most) => agentd_journal::retain(&directory, Retain { at_most, keep_after: seq })
                    .map(drop)
                    .map_err(std::io::Error::other),
                None => Ok(()),
            }
        });
        self.remembered = seq;
        if let Ok(Err(error)) = written.await {
            tracing::warn!(agentd.session = %self.document.id, %error, "session.json could not be written; the journal has everything");
        }
    }
}

/// Starts the keeper and hands it the launch record. The error is for people.
async fn start_keeper(
    launcher: &Launcher,
    id: &agentd_api::SessionId,
    args: &HoldArgs,
    limits: UnitLimits,
    record: LaunchRecord,
) -> Result<Link, String> {
    let mut link = launcher.start(id, args, limits).await.map_err(|error| chain(&error))?;
    agentd_fault::at(Point::DaemonLaunchLinked).map_err(|error| error.to_string())?;
    match link.call(&ToKeeper::Launch(Box::new(record))).await {
        Ok(FromKeeper::Launched { .. }) => {
            agentd_fault::at(Point::DaemonLaunchDone).map_err(|error| error.to_string())?;
            Ok(link)
        }
        Ok(other) => Err(format!("the keeper answered the launch with {other:?}")),
        Err(error) => Err(chain(&error)),
    }
}

async fn grown(port: &mut Port) -> Result<(), ()> {
    match port {
        Port::Keeper(link) => link.grown().await.map(drop).map_err(drop),
        Port::Direct => std::future::pending().await,
    }
}

async fn progress(bring_up: &mut Option<BringUp>) -> Option<Progress> {
    match bring_up {
        Some(bring_up) => bring_up.progress.recv().await,
        None => std::future::pending().await,
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
