//! A launch as its session's driver carries it out: the bring-up is begun beside it, what that reports is written, and in the end the keeper is
//! started and given the agent.
//!
//! Not its job: the steps of a bring-up ([`super::bringup`]), and what becomes of a launch that failed ([`super::next`]).

use std::sync::Arc;

use agentd_api::session::{ConditionStatus, ConditionType};
use agentd_fault::Point;
use agentd_keeper::protocol::{FromKeeper, HoldArgs, LaunchRecord, ToKeeper};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::batch::Batch;
use super::bringup::{self, Prepared, Progress};
use super::driver::{Broken, Driver};
use super::journal_port::Port;
use super::next::{self, fail_launch};
use super::state::Run;
use crate::env::chain;
use crate::launch::{Link, Unit};
use crate::scarce;
use crate::world::World;

/// A bring-up that is under way; dropped, it ends.
pub(super) struct BringUp {
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

/// What it reports next; nothing ever where there is none.
pub(super) async fn progress(bring_up: &mut Option<BringUp>) -> Option<Progress> {
    match bring_up {
        Some(bring_up) => bring_up.progress.recv().await,
        None => std::future::pending().await,
    }
}

impl Driver {
    /// Whether the launch has to wait for a configuration that can be used; a condition says so.
    pub(super) async fn is_put_off(&mut self) -> Result<bool, Broken> {
        const REASON: &str = agentd_api::reason::CONFIGURATION_INVALID;
        let Err(problem) = self.world.launchable() else { return Ok(false) };
        let kind = ConditionType::EnvironmentReady;
        let known = self.state.condition(kind);
        if known.is_none_or(|known| known.reason != REASON || known.message != problem.detail) {
            let (state, facts) = (&self.state, self.facts());
            let body = next::condition(state, &facts, kind, ConditionStatus::Unknown, REASON, problem.detail);
            self.append(Batch::of(body)).await?;
        }
        Ok(true)
    }

    pub(super) fn begin_bring_up(&mut self, launch: u64) {
        let (report, progress) = mpsc::channel(16);
        let job = self.job(launch);
        let world = Arc::clone(&self.world);
        let task = tokio::spawn(bringup::run(Arc::clone(&world), job, report));
        self.bring_up = Some(BringUp { world, progress, task });
    }

    /// What the bring-up reports.
    pub(super) async fn advance(&mut self, progress: Option<Progress>) -> Result<(), Broken> {
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
                let reason = if is_scarcity(kind, reason, &message) { "OutOfResources" } else { reason };
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
                let kind = ConditionType::EnvironmentReady;
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
            let kind = ConditionType::EnvironmentReady;
            let batch = fail_launch(&self.state, launch, kind, "FilesNotWritten", &message, &self.facts());
            return self.append(batch).await.map(drop);
        }
        if record.enclosure.is_some()
            && let Err(error) = self.open_to_guests()
        {
            let message = format!("the session's own control socket cannot be made: {error}");
            let kind = ConditionType::AgentStarted;
            let batch = fail_launch(&self.state, launch, kind, "GuestSocketNotMade", &message, &self.facts());
            return self.append(batch).await.map(drop);
        }
        let args = HoldArgs {
            session: self.document.id.to_string(),
            launch,
            state: self.journal.directory.clone(),
            socket: world.directories.keeper_socket(&self.document.id),
            journal: world.config.journal.options(),
            keep: world.config.journal.keep_session.0,
            orphan_ttl: world.config.limits.orphan.map(|span| span.0),
            core: None,
        };
        let unit = Unit::of(&self.document.id, &self.document.spec, &world.config);
        let started = start_keeper(world, &self.document.id, &args, &unit, record).await;
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
                if matches!(self.port, Port::Silent(_)) {
                    // Nobody has talked to this agent yet, and the launch is not to wait for ever.
                    self.force(None).await?;
                }
                if matches!(self.state.run, Run::Preparing(_)) {
                    let kind = ConditionType::AgentStarted;
                    let batch = fail_launch(&self.state, launch, kind, "KeeperFailed", &error, &self.facts());
                    self.append(batch).await?;
                }
                Ok(())
            }
        }
    }
}

/// Starts the keeper and hands it the launch record. The error is for people.
async fn start_keeper(
    world: &World,
    id: &agentd_api::SessionId,
    args: &HoldArgs,
    unit: &Unit,
    record: LaunchRecord,
) -> Result<Link, String> {
    let mut link =
        world.launcher.start(id, args, unit, &world.keeper_patience()).await.map_err(|error| chain(&error))?;
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

/// Whether there was too little of something, whatever the step made of it. What is printed by scripts, checks and plugins is their own.
fn is_scarcity(kind: ConditionType, reason: &str, message: &str) -> bool {
    let quotes = ["Script", "LoginShell", "Provider", "Secret"].iter().any(|of| reason.starts_with(of));
    kind != ConditionType::PrerequisitesMet && !quotes && scarce::in_text(message).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scripts_own_words_are_no_scarcity_of_agentds() {
        let text = "it ended with status 1: Resource temporarily unavailable (os error 11)";
        assert!(is_scarcity(ConditionType::AgentStarted, "KeeperNotStarted", text));
        assert!(!is_scarcity(ConditionType::EnvironmentReady, "ScriptFailed", text));
        assert!(!is_scarcity(ConditionType::EnvironmentReady, "LoginShellFailed", text));
        assert!(!is_scarcity(ConditionType::PrerequisitesMet, "PrerequisiteFailed", text));
    }
}
