//! Takes over the keeper of a session, or makes sure that no process of the session is left. Runs at the daemon's
//! start, and after a connection to a keeper is lost.
//!
//! A keeper belongs to a session only if everything agrees:
//!
//! - it answers on the session's socket
//! - it names the session's id and launch
//! - it is the process that owns the socket
//! - it has the start time that the journal records
//! - under systemd, it runs in the session's unit
//!
//! A keeper that holds the journal and does not answer is waited for ([`super::silent`]): only one process may
//! write the journal.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::event::{AgentExited, DaemonRecovered, JournalRepaired, StopRequested};
use agentd_api::session::{Phase, UnreadableSession};
use agentd_api::{Body, Problem, chain};
use agentd_fault::Point;
use agentd_keeper::protocol::{Hello, ToKeeper};
use tokio::time::Instant;

use super::mending::together;
use super::silent::{self, ForcedStop};
use super::{Driver, DriverError};
use crate::document::Document;
use crate::journal_port::{Port, is_held};
use crate::launch::{Connection, Launcher, LinkError};
use crate::pulse;
use crate::{aside, ending};
use agentd_decide::batch::Batch;
use agentd_decide::next::next;
use agentd_decide::state::{KeeperId, Run, State};
use agentd_decide::waits::waits;
use agentd_host::platform;

/// Number of connection attempts while a keeper holds the journal. The keeper may not listen yet, or may be about
/// to release the journal.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// Where a driver's session comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionOrigin {
    /// This daemon has just created the session. No keeper has run, and the journal is whole.
    Created,
    /// The session was found on the disk.
    Read {
        /// Whether processes from before the daemon's start may carry the session's mark.
        may_have_remains: bool,
    },
}

impl SessionOrigin {
    const READ: Self = Self::Read { may_have_remains: false };

    fn may_have_remains(self) -> bool {
        self == Self::Read { may_have_remains: true }
    }
}

/// Result of the search for a session's keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeeperSearchResult {
    /// Connected. The keeper has an agent, or the end of an agent that it cannot record yet.
    Connected,
    /// A keeper holds the journal but does not answer.
    Silent,
    /// No keeper. The journal is free, or is about to be.
    Absent,
}

impl Driver {
    /// Returns the present state.
    pub(crate) fn state(&self) -> &State {
        &self.recorder.state
    }

    /// Returns the refusal of a request to a session whose journal cannot be read.
    pub(super) fn unreadable(&self, error: &DriverError) -> Problem {
        aside::problem(&UnreadableSession { id: self.id().to_string(), reason: chain(error) })
    }

    /// Reports whether the session needs no task: it has ended, nothing is due, no process is left, and the state
    /// includes the whole journal.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.recorder.has_ended()
            && !self.origin.may_have_remains()
            && next(&self.recorder.state, &self.facts()).is_none()
            && waits(&self.recorder.state, &self.facts()).is_empty()
            // Test the keeper before the journal: a keeper that is gone has written all its records.
            && !self.terms.generation.daemon.directories.keeper_socket(self.id()).exists()
            && !self.terms.generation.daemon.directories.session_files(self.id()).exists()
            && agentd_journal::last_seq(&self.recorder.journal.directory)
                .is_ok_and(|last| last == self.recorder.state.seq)
    }

    /// Reads the journal, and takes over the keeper if one lives.
    pub(super) async fn take_over(&mut self) -> Result<(), DriverError> {
        if self.origin == SessionOrigin::Created {
            self.origin = SessionOrigin::READ;
            // The first read has all records of the creation.
            return self.catch_up_to(1).await;
        }
        // Search the keeper first: records that it has not announced yet must not be read. Its socket may have
        // been removed.
        let may_live = self.terms.generation.daemon.directories.keeper_socket(self.id()).exists()
            || is_held(&self.recorder.journal).await;
        let found = if may_live { self.connect().await } else { KeeperSearchResult::Absent };
        if found == KeeperSearchResult::Silent {
            self.catch_up().await?;
        } else {
            let repaired = self.recorder.mend().await?;
            self.catch_up_mended(repaired).await?;
        }
        self.publish();
        if found == KeeperSearchResult::Silent {
            return Ok(());
        }
        let (has_keeper, running) = (found == KeeperSearchResult::Connected, self.recorder.is_running());
        if has_keeper || running {
            let agent_alive = matches!(&self.recorder.port, Port::Keeper(link) if link.hello().agent_pid.is_some());
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let recovered = DaemonRecovered { version, agent_alive, killed: 0 };
            self.append(Batch::of(Body::DaemonRecovered(recovered))).await?;
        }
        if has_keeper {
            return Ok(());
        }
        if running {
            return if self.resume().await? { Ok(()) } else { self.bury().await };
        }
        if std::mem::replace(&mut self.origin, SessionOrigin::READ).may_have_remains() {
            // The session has ended, or its agent has no keeper: nothing controls the remaining processes.
            self.terms.generation.daemon.launcher.sweep(self.id()).await;
            let killed = platform::kill_remains(self.id().as_str()).await;
            if killed == 0 {
                return Ok(());
            }
            tracing::warn!(killed, "killed processes that were left of an ended session");
            let recovered =
                DaemonRecovered { version: env!("CARGO_PKG_VERSION").to_owned(), agent_alive: false, killed };
            self.append(Batch::of(Body::DaemonRecovered(recovered))).await?;
        }
        Ok(())
    }

    /// Connects to the session's keeper.
    pub(super) async fn connect(&mut self) -> KeeperSearchResult {
        let (socket, patience) = (
            self.terms.generation.daemon.directories.keeper_socket(self.id()),
            self.terms.generation.keeper_patience(),
        );
        for _ in 0..TRIES {
            let answer = self.outside.connect(&socket, &patience).await;
            let is_silent = matches!(answer, Err(LinkError::Silent { .. }));
            match answer {
                Ok(link) => match self.disagreement(&*link) {
                    None if agentd_fault::at(Point::DaemonTakeOverConnected).is_err() => {}
                    None => {
                        if self.take(link).await {
                            return KeeperSearchResult::Connected;
                        }
                    }
                    Some(reason) => {
                        tracing::error!(reason, "ignoring a keeper that does not belong to this session");
                        return KeeperSearchResult::Absent;
                    }
                },
                Err(error) => tracing::debug!(%error, "no keeper answers"),
            }
            if !is_held(&self.recorder.journal).await {
                return KeeperSearchResult::Absent;
            }
            if is_silent {
                break;
            }
            pulse::elsewhere(tokio::time::sleep(PAUSE)).await;
        }
        // The announced end of the journal is unknown. The whole journal is read, and read again if the keeper
        // rolls records back.
        self.go_silent(u64::MAX);
        KeeperSearchResult::Silent
    }

    /// Makes a keeper the session's own. A keeper without an agent is asked to end, and the result is then `false`.
    pub(super) async fn take(&mut self, link: Box<dyn Connection>) -> bool {
        self.terms.generation.daemon.launcher.keepers().enter(link.hello().pid, link.hello().start_time, self.id());
        let has_ended = link.tail().ended;
        if link.hello().agent_pid.is_none() && !has_ended {
            // The keeper has no agent yet, since the daemon ended before it sent the launch record; or its agent
            // has just ended.
            self.dismiss(link).await;
            return false;
        }
        self.recorder.port = Port::Keeper(link);
        // An ended agent needs no stop. Its end may wait for room in the journal.
        self.stop.sent = has_ended;
        self.note_keeper();
        true
    }

    async fn dismiss(&self, mut link: Box<dyn Connection>) {
        let _ = link.call(&ToKeeper::Stop(self.terms.stop_times())).await;
    }

    /// Returns the reason why a keeper does not belong to the session, if there is one.
    pub(super) fn disagreement(&self, link: &dyn Connection) -> Option<&'static str> {
        let Hello { session, launch, pid, start_time, .. } = link.hello();
        if session != self.id().as_str() {
            return Some("it names another session");
        }
        if link.peer().is_some_and(|peer| peer != *pid) {
            return Some("the socket belongs to another process than the one that answers");
        }
        if platform::start_time(*pid).is_some_and(|started| started != *start_time) {
            return Some("another process has its pid by now");
        }
        // A keeper that ended before it had an agent may have been replaced by another one for the same launch.
        let lives = |known: &KeeperId| platform::start_time(known.pid) == Some(known.start_time);
        let known = self.recorder.state.keeper.filter(|known| known.launch == *launch && lives(known));
        if known.is_some_and(|known| known.pid != *pid || known.start_time != *start_time) {
            return Some("the journal names another keeper for this launch");
        }
        if *launch < self.recorder.state.launches {
            return Some("it belongs to an earlier launch");
        }
        if !Launcher::is_at_home(self.id(), *pid) {
            return Some("it does not run in the session's unit");
        }
        None
    }

    /// Handles the end of the connection to the keeper, by looking for the keeper again.
    pub(super) async fn line_lost(&mut self) -> Result<(), DriverError> {
        self.recorder.port = Port::Direct;
        let found = self.connect().await;
        self.catch_up().await?;
        if found != KeeperSearchResult::Absent || self.resume().await? { Ok(()) } else { self.bury().await }
    }

    /// Handles the end of the keeper. If the end of the agent is not recorded, kills its remaining processes and
    /// records its end.
    pub(super) async fn bury(&mut self) -> Result<(), DriverError> {
        self.recorder.port = Port::Direct;
        self.recorder.look_for_room_later();
        self.timers.stop_due = None;
        self.catch_up().await?;
        let mut killed = 0;
        if self.recorder.is_running() {
            self.terms.generation.daemon.launcher.sweep(self.id()).await;
            killed = platform::kill_remains(self.id().as_str()).await;
        }
        self.record_end(killed).await
    }

    /// Reads the journal, repairs it once if it cannot be read, and records the repairs.
    pub(super) async fn catch_up_mended(&mut self, repaired: Option<JournalRepaired>) -> Result<(), DriverError> {
        let mut repaired = repaired;
        if let Err(error) = self.catch_up().await {
            let cut_bytes = self.recorder.cut(error).await?;
            self.recorder.reader = None;
            let again = self.recorder.mend().await?;
            let detail = format!(
                "{cut_bytes} bytes at the end of the journal were not valid records and were moved to journal.torn"
            );
            tracing::error!("the end of the journal was damaged, probably by a power cut: {detail}");
            let cut = JournalRepaired { cut_bytes, lost_records: 0, rebuilt: false, detail };
            repaired = [repaired, Some(cut), again].into_iter().flatten().reduce(|first, then| together(&first, &then));
            self.catch_up().await?;
        }
        match repaired {
            Some(repaired) => self.append(Batch::of(Body::JournalRepaired(repaired))).await.map(drop),
            None => Ok(()),
        }
    }

    /// Gives up the connection to a keeper that did not answer in time. A late answer would be mistaken for the
    /// answer to another request.
    pub(super) fn go_silent(&mut self, reach: u64) {
        tracing::error!(
            "the keeper of session {} does not answer; its agent keeps running; stopping the session ends both",
            self.id()
        );
        if let Some(keeper) = self.recorder.state.keeper {
            // A daemon that just started has not talked to the keeper yet, and the agent keeps running.
            self.terms.generation.daemon.launcher.keepers().enter(keeper.pid, keeper.start_time, self.id());
        }
        let (generation, journal) = (&self.terms.generation, self.recorder.journal.clone());
        let socket = generation.daemon.directories.keeper_socket(self.id());
        let search = silent::begin(Arc::clone(&self.outside), socket, journal, generation.keeper_patience(), reach);
        self.recorder.port = Port::Silent(search);
    }

    /// Takes over a keeper that answers again, or handles its end.
    pub(super) async fn keeper_found(&mut self, found: Option<Box<dyn Connection>>) -> Result<(), DriverError> {
        let Some(link) = found else { return self.line_lost().await };
        if self.disagreement(&*link).is_some() {
            // [`Driver::line_lost`] reports the disagreement.
            return self.line_lost().await;
        }
        tracing::info!("the keeper of session {} answers again", self.id());
        if link.hello().tail.seq < self.recorder.state.seq {
            // The keeper has rolled back records that it had not announced.
            self.start_over().await;
        }
        self.recorder.port = Port::Direct;
        if !self.take(link).await {
            return self.line_lost().await;
        }
        self.catch_up().await?;
        self.publish();
        Ok(())
    }

    /// Returns to the state in `session.json`, since records after it may have been rolled back.
    async fn start_over(&mut self) {
        let (directory, id) = (self.recorder.journal.directory.clone(), self.id().clone());
        if let Ok(mut document) = pulse::blocking(move || Document::read(&directory, &id)).await {
            self.recorder.start_over(document.take_state());
        }
    }

    /// Carries out what is possible while the keeper does not answer.
    pub(super) async fn settle_silent(&mut self) -> Result<(), DriverError> {
        let is_ended = self.recorder.has_ended();
        if self.stop.forced.is_some() || is_ended || self.recorder.state.phase() == Phase::Stopping {
            return self.force(None).await;
        }
        self.publish();
        Ok(())
    }

    /// Remembers a stop of a session whose keeper cannot carry it out.
    pub(super) fn stop_by_force(&mut self, stop: StopRequested) {
        self.stop.forced = Some(ForcedStop { stop: Some(stop), ended: None });
    }

    /// Ends the keeper by force, and records the end of the agent.
    pub(super) async fn force(&mut self, stop: Option<StopRequested>) -> Result<(), DriverError> {
        let known = self.recorder.state.keeper.map(|keeper| (keeper.pid, keeper.start_time));
        self.recorder.port = Port::Direct;
        let ended = ending::end(&self.terms.generation, self.id(), &self.recorder.journal.directory, known).await;
        let answer = self.terms.generation.keeper_patience().answer.as_secs_f32();
        let reason = format!("the keeper did not answer for {answer} s and was killed with all its processes");
        let forced = self.stop.forced.get_or_insert(ForcedStop { stop, ended: None });
        forced.ended = ended.by_force.then_some((reason, ended.killed));
        self.catch_up().await?;
        self.bury().await
    }

    /// Records the end of an agent whose keeper is gone and did not record it. No process of the agent is left.
    pub(super) async fn record_end(&mut self, killed: u32) -> Result<(), DriverError> {
        let stop = self.stop.forced.as_ref().and_then(|forced| forced.stop.clone());
        let mut batch = Batch::default();
        let (state, phase) = (&self.recorder.state, self.recorder.state.phase());
        // An agent that is ended to be started again is stopping too, and needs the record to stay stopped.
        let is_recorded = phase == Phase::Stopping && !state.is_started_again();
        if let Some(stop) = stop.filter(|_| phase.is_active() && !is_recorded) {
            batch = batch.record(Body::StopRequested(stop));
        }
        if let Run::Running(running) = &self.recorder.state.run {
            let (reason, killed) = match self.stop.forced.as_ref().and_then(|forced| forced.ended.clone()) {
                Some((reason, by_force)) => (Some(reason), killed + by_force),
                None => (None, killed),
            };
            batch = batch.record(Body::AgentExited(AgentExited {
                launch: running.launch,
                status: None,
                signal: None,
                exec_error: None,
                killed,
                requested: false,
                reason,
                exceeded: None,
            }));
        }
        // After a failed write the forced stop is kept for the next attempt.
        if batch.entries.is_empty() || self.append(batch).await? {
            self.stop.forced = None;
        }
        Ok(())
    }

    /// Tests a keeper whose agent should have ended already. A keeper that answers gets more time.
    pub(super) async fn look_after_stop(&mut self) {
        self.timers.stop_due = None;
        let Port::Keeper(link) = &mut self.recorder.port else { return };
        let (reach, answers) = (link.reach(), link.answers().await);
        match answers {
            Ok(()) => self.timers.stop_due = Some(Instant::now() + self.terms.generation.keeper_patience().answer),
            Err(LinkError::Silent { .. }) => self.go_silent(reach),
            // Reading from the lost connection reports the loss.
            Err(_) => {}
        }
    }
}
