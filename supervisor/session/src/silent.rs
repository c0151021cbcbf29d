//! A session whose keeper holds the journal and does not answer: it hangs, it is slow, or its socket is gone.
//!
//! The agent continues, and the driver waits for the keeper beside its other work. Nothing can be recorded
//! meanwhile: requests that need a record are refused at once ([`problem`]), and a condition gives the reason.
//! When the keeper answers again, the journal shows which of the abandoned requests it carried out. Only a stop or
//! a failed launch ends such a keeper ([`super::ending`]).

use std::path::PathBuf;
use std::time::Duration;

use agentd_api::event::{AgentExited, StopRequested};
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase};
use agentd_api::{Body, Code, Problem};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::document::Document;
use super::driver::{Driver, DriverError};
use super::ending;
use super::journal_port::{Journal, Port, is_held};
use crate::launch::{KeeperLimits, Link};
use crate::pulse;
use agentd_decide::batch::Batch;
use agentd_decide::state::Run;

/// Interval between two attempts to reach the keeper.
const LOOK: Duration = Duration::from_millis(500);

/// Task that waits for a keeper to answer, beside the driver. Dropping the value ends the task.
#[derive(Debug)]
pub(crate) struct KeeperSearch {
    task: JoinHandle<Option<Link>>,
    since: Timestamp,
    /// Sequence number up to which the journal may be read; see [`Port::reach`].
    pub(super) reach: u64,
}

impl KeeperSearch {
    fn begin(socket: PathBuf, journal: Journal, patience: KeeperLimits, reach: u64) -> Self {
        let task = tokio::spawn(async move { look_for(socket, journal, patience).await });
        Self { task, since: Timestamp::now(), reach }
    }

    /// Returns the connection to the keeper, or `None` when the keeper is gone.
    pub(super) async fn found(&mut self) -> Option<Link> {
        // After a panic of the task the driver looks for the keeper itself.
        (&mut self.task).await.ok().flatten()
    }
}

impl Drop for KeeperSearch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn look_for(socket: PathBuf, journal: Journal, patience: KeeperLimits) -> Option<Link> {
    let released = async {
        while is_held(&journal).await {
            tokio::time::sleep(LOOK).await;
        }
    };
    let answers = async {
        loop {
            match Link::introduced(&socket, &patience).await {
                Ok(link) => return link,
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    };
    tokio::select! {
        link = answers => Some(link),
        () = released => None,
    }
}

/// A stop, requested or due, that the keeper could not be asked for.
#[derive(Debug)]
pub(super) struct ForcedStop {
    /// The stop request of a client, if there was one.
    stop: Option<StopRequested>,
    /// The reason and the number of killed processes, after the keeper was killed.
    ended: Option<(String, u32)>,
}

impl Driver {
    pub(super) fn keeper_patience(&self) -> KeeperLimits {
        self.generation.keeper_patience()
    }

    /// Gives up the connection to a keeper that did not answer in time. A late answer would be mistaken for the
    /// answer to another request.
    pub(super) fn go_silent(&mut self, reach: u64) {
        tracing::error!(
            agentd.session = %self.id(),
            "the keeper of session {} does not answer; its agent keeps running; stopping the session ends both",
            self.id()
        );
        if let Some(keeper) = self.state.keeper {
            // A daemon that just started has not talked to the keeper yet, and the agent keeps running.
            self.generation.daemon.launcher.keepers().enter(keeper.pid, keeper.start_time, self.id());
        }
        let socket = self.generation.daemon.directories.keeper_socket(self.id());
        self.port = Port::Silent(KeeperSearch::begin(socket, self.journal.clone(), self.keeper_patience(), reach));
    }

    /// Takes over a keeper that answers again, or handles its end.
    pub(super) async fn keeper_found(&mut self, found: Option<Link>) -> Result<(), DriverError> {
        let Some(link) = found else { return self.line_lost().await };
        if self.disagreement(&link).is_some() {
            // [`Driver::line_lost`] reports the disagreement.
            return self.line_lost().await;
        }
        tracing::info!(agentd.session = %self.id(), "the keeper of session {} answers again", self.id());
        if link.hello.tail.seq < self.state.seq {
            // The keeper has rolled back records that it had not announced.
            self.start_over().await;
        }
        self.port = Port::Direct;
        if !self.take(link).await {
            return self.line_lost().await;
        }
        self.catch_up().await?;
        self.publish();
        Ok(())
    }

    /// Returns to the state in `session.json`, since records after it may have been rolled back.
    async fn start_over(&mut self) {
        let (directory, id) = (self.journal.directory.clone(), self.id().clone());
        if let Ok(mut document) = pulse::blocking(move || Document::read(&directory, &id)).await {
            self.state = document.take_state();
            self.reader = None;
        }
    }

    /// Carries out what is possible while the keeper does not answer.
    pub(super) async fn settle_silent(&mut self) -> Result<(), DriverError> {
        let is_ended = matches!(self.state.run, Run::Ended(_));
        if self.forced.is_some() || is_ended || self.state.phase() == Phase::Stopping {
            return self.force(None).await;
        }
        self.publish();
        Ok(())
    }

    /// Remembers a stop of a session whose keeper cannot carry it out.
    pub(super) fn stop_by_force(&mut self, stop: StopRequested) {
        self.forced = Some(ForcedStop { stop: Some(stop), ended: None });
    }

    /// Ends the keeper by force, and records the end of the agent.
    pub(super) async fn force(&mut self, stop: Option<StopRequested>) -> Result<(), DriverError> {
        let known = self.state.keeper.map(|keeper| (keeper.pid, keeper.start_time));
        self.port = Port::Direct;
        let ended = ending::end(&self.generation, self.id(), &self.journal.directory, known).await;
        let answer = self.keeper_patience().answer.as_secs_f32();
        let reason = format!("the keeper did not answer for {answer} s and was killed with all its processes");
        let forced = self.forced.get_or_insert(ForcedStop { stop, ended: None });
        forced.ended = ended.by_force.then_some((reason, ended.killed));
        self.catch_up().await?;
        self.bury().await
    }

    /// Records the end of an agent whose keeper is gone and did not record it. No process of the agent is left.
    pub(super) async fn record_end(&mut self, killed: u32) -> Result<(), DriverError> {
        let stop = self.forced.as_ref().and_then(|forced| forced.stop.clone());
        let mut batch = Batch::default();
        if let Some(stop) = stop.filter(|_| self.state.phase().is_active() && self.state.phase() != Phase::Stopping) {
            batch = batch.record(Body::StopRequested(stop));
        }
        if let Run::Running(running) = &self.state.run {
            let (reason, killed) = match self.forced.as_ref().and_then(|forced| forced.ended.clone()) {
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
            self.forced = None;
        }
        Ok(())
    }

    /// Tests a keeper whose agent should have ended already. A keeper that answers gets more time.
    pub(super) async fn look_after_stop(&mut self) {
        self.stop_due = None;
        let Port::Keeper(link) = &mut self.port else { return };
        let (reach, answers) = (link.reach(), link.answers().await);
        match answers {
            Ok(()) => self.stop_due = Some(Instant::now() + self.keeper_patience().answer),
            Err(crate::launch::LinkError::Silent { .. }) => self.go_silent(reach),
            // Reading from the lost connection reports the loss.
            Err(_) => {}
        }
    }

    /// Returns the condition that clients see. The condition is in no journal, since the journal cannot be
    /// written.
    pub(super) fn silence(&self) -> Option<Condition> {
        let Port::Silent(search) = &self.port else { return None };
        let keeper = self.state.keeper.map(|keeper| format!(" (process {})", keeper.pid)).unwrap_or_default();
        Some(Condition {
            kind: ConditionType::KeeperAnswers,
            status: ConditionStatus::False,
            reason: "Silent".to_owned(),
            message: format!(
                "the session's keeper{keeper} does not answer; its agent keeps running and nothing is lost; \
                 stopping the session ends both"
            ),
            observed_generation: self.document.generation,
            last_transition_time: search.since,
        })
    }
}

/// Returns the refusal of a request that needs a record. The keeper may still carry out a request that it
/// received.
pub(super) fn problem() -> Problem {
    Problem::new(
        Code::KeeperSilent,
        "the session's keeper does not answer; its agent keeps running, and the request may still be carried out",
    )
    .hint("retry with the same idempotency key; `agentctl stop` ends the keeper and its agent")
}

/// Waits for a keeper that does not answer, while the driver has nothing else to do.
pub(super) async fn search(search: &mut KeeperSearch) -> Option<Link> {
    pulse::elsewhere(search.found()).await
}
