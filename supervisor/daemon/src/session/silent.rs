//! A session whose keeper holds the journal and does not answer: it hangs, it is slow, or its socket is gone.
//!
//! Nothing is ended for that alone: the agent goes on, and the keeper is waited for beside everything else. Meanwhile nothing can be recorded, so
//! whatever would be is refused at once ([`problem`]), and a condition says why. When the keeper answers again, the journal says
//! which of the requests it carried out that were given up. Only a stop, or a launch that fails, ends such a keeper ([`super::ending`]).

use std::path::PathBuf;
use std::time::Duration;

use agentd_api::event::{AgentExited, StopRequested};
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase};
use agentd_api::{Body, Code, Problem};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::batch::Batch;
use super::document::Document;
use super::driver::{Broken, Driver};
use super::ending;
use super::journal_port::{Journal, Port, is_held};
use super::state::Run;
use crate::launch::{Link, Patience};
use crate::pulse;

/// How often it is looked whether the keeper is there still.
const LOOK: Duration = Duration::from_millis(500);

/// Waits for a keeper to answer, beside the driver. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Search {
    task: JoinHandle<Option<Link>>,
    since: Timestamp,
    /// The seq up to which the journal may be read; see [`Port::reach`].
    pub(super) reach: u64,
}

impl Search {
    fn begin(socket: PathBuf, journal: Journal, patience: Patience, reach: u64) -> Self {
        let task = tokio::spawn(async move { look_for(socket, journal, patience).await });
        Self { task, since: Timestamp::now(), reach }
    }

    /// The line to the keeper, or nothing where it is gone.
    pub(super) async fn found(&mut self) -> Option<Link> {
        // A task that panicked has found nothing; the driver looks for itself.
        (&mut self.task).await.ok().flatten()
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn look_for(socket: PathBuf, journal: Journal, patience: Patience) -> Option<Link> {
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

/// An end that was asked for, or is due, and that the keeper could not be asked for.
#[derive(Debug)]
pub(super) struct Forced {
    /// The stop, where a client asked for one.
    stop: Option<StopRequested>,
    /// What became of the keeper, once it has ended.
    ended: Option<(String, u32)>,
}

impl Driver {
    pub(super) fn keeper_patience(&self) -> Patience {
        self.world.keeper_patience()
    }

    /// The keeper did not answer in time. Its line is given up, since a late answer would be taken for another.
    pub(super) fn go_silent(&mut self, reach: u64) {
        tracing::error!(
            agentd.session = %self.id(),
            "the keeper of session {} does not answer; its agent goes on, and a stop of the session ends both",
            self.id()
        );
        if let Some(keeper) = self.state.keeper {
            // A daemon that has just begun has not talked to it, and its agent goes on.
            self.world.launcher.keepers().enter(keeper.pid, keeper.start_time, self.id());
        }
        let socket = self.world.directories.keeper_socket(self.id());
        self.port = Port::Silent(Search::begin(socket, self.journal.clone(), self.keeper_patience(), reach));
    }

    /// The keeper answers again, or is gone.
    pub(super) async fn keeper_found(&mut self, found: Option<Link>) -> Result<(), Broken> {
        let Some(link) = found else { return self.line_lost().await };
        if self.disagreement(&link).is_some() {
            // That is said where the session's own is looked for.
            return self.line_lost().await;
        }
        tracing::info!(agentd.session = %self.id(), "the keeper of session {} answers again", self.id());
        if link.hello.tail.seq < self.state.seq {
            // It has taken back what it had not announced.
            self.start_over();
        }
        self.port = Port::Direct;
        if !self.take(link).await {
            return self.line_lost().await;
        }
        self.catch_up().await?;
        self.publish();
        Ok(())
    }

    /// The state before what was read and may not be so any more.
    fn start_over(&mut self) {
        if let Ok(mut document) = Document::read(&self.journal.directory, self.id()) {
            self.state = document.take_state();
            self.reader = None;
        }
    }

    /// What there is to be done while the keeper does not answer.
    pub(super) async fn settle_silent(&mut self) -> Result<(), Broken> {
        let is_ended = matches!(self.state.run, Run::Ended(_));
        if self.forced.is_some() || is_ended || self.state.phase() == Phase::Stopping {
            return self.force(None).await;
        }
        self.publish();
        Ok(())
    }

    /// A stop of a session whose keeper cannot be asked for it.
    pub(super) fn stop_by_force(&mut self, stop: StopRequested) {
        self.forced = Some(Forced { stop: Some(stop), ended: None });
    }

    /// Ends the keeper, and records what became of the session.
    pub(super) async fn force(&mut self, stop: Option<StopRequested>) -> Result<(), Broken> {
        let known = self.state.keeper.map(|keeper| (keeper.pid, keeper.start_time));
        self.port = Port::Direct;
        let ended = ending::end(&self.world, self.id(), &self.journal.directory, known).await;
        let answer = self.keeper_patience().answer.as_secs_f32();
        let told = format!("its keeper did not answer for {answer} s, and was killed with its whole tree");
        let forced = self.forced.get_or_insert(Forced { stop, ended: None });
        forced.ended = ended.by_force.then_some((told, ended.killed));
        self.catch_up().await?;
        self.bury().await
    }

    /// Records how the agent ended whose keeper is gone without having said so. Nothing of it is left.
    pub(super) async fn record_end(&mut self, killed: u32) -> Result<(), Broken> {
        let stop = self.forced.as_ref().and_then(|forced| forced.stop.clone());
        let mut batch = Batch::default();
        if let Some(stop) = stop.filter(|_| self.state.phase().is_active() && self.state.phase() != Phase::Stopping) {
            batch = batch.record(Body::StopRequested(stop));
        }
        if let Run::Running(running) = &self.state.run {
            let (reason, killed) = match self.forced.as_ref().and_then(|forced| forced.ended.clone()) {
                Some((told, by_force)) => (Some(told), killed + by_force),
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
        // What cannot be written now is tried again, and is then still to be said.
        if batch.entries.is_empty() || self.append(batch).await? {
            self.forced = None;
        }
        Ok(())
    }

    /// The agent was to have ended by now. A keeper that answers has its reasons, and is asked again later.
    pub(super) async fn look_after_stop(&mut self) {
        self.stop_due = None;
        let Port::Keeper(link) = &mut self.port else { return };
        let (reach, answers) = (link.reach(), link.answers().await);
        match answers {
            Ok(()) => self.stop_due = Some(Instant::now() + self.keeper_patience().answer),
            Err(crate::launch::LinkError::Silent { .. }) => self.go_silent(reach),
            // The line is lost, and that is noticed where it is read.
            Err(_) => {}
        }
    }

    /// What a client sees of it. It is in no journal: that cannot be written.
    pub(super) fn silence(&self) -> Option<Condition> {
        let Port::Silent(search) = &self.port else { return None };
        let keeper = self.state.keeper.map(|keeper| format!(" (process {})", keeper.pid)).unwrap_or_default();
        Some(Condition {
            kind: ConditionType::KeeperAnswers,
            status: ConditionStatus::False,
            reason: "Silent".to_owned(),
            message: format!(
                "the session's keeper{keeper} does not answer; its agent goes on and nothing is lost; a stop ends both"
            ),
            observed_generation: self.document.generation,
            last_transition_time: search.since,
        })
    }
}

/// The answer to what would have to be recorded. It may have been, where the keeper fell silent over it.
pub(super) fn problem() -> Problem {
    Problem::new(
        Code::KeeperSilent,
        "the session's keeper does not answer; its agent goes on, and what was asked may still be carried out",
    )
    .hint("ask again with the same idempotency key; `agentctl stop` ends the keeper and its agent")
}

/// Waits, while the driver has nothing else to do, for a keeper that does not answer.
pub(super) async fn search(search: &mut Search) -> Option<Link> {
    pulse::elsewhere(search.found()).await
}
