//! A launch on the driver's side: begins the bring-up, records its progress, then starts the keeper and sends it
//! the launch record.
//!
//! [`super::bringup`] has the steps of the bring-up, and [`agentd_decide::next`] decides what follows a failed
//! launch.

use std::sync::Arc;

use agentd_api::session::{ConditionStatus, ConditionType};
use agentd_fault::Point;
use agentd_keeper::protocol::{FromKeeper, HoldArgs, LaunchRecord, ToKeeper};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::bringup::{self, Prepared, Progress};
use super::driver::{Driver, DriverError};
use super::journal_port::Port;
use crate::generation::Generation;
use crate::launch::{Link, Unit};
use agentd_api::chain;
use agentd_decide::batch::Batch;
use agentd_decide::next::{self, fail_launch};
use agentd_decide::state::Run;
use agentd_host::exhausted;

/// A running bring-up. Dropping the value ends it.
pub(super) struct BringUp {
    /// The generation in force when the bring-up began.
    generation: Arc<Generation>,
    progress: mpsc::Receiver<Progress>,
    task: JoinHandle<()>,
}

impl Drop for BringUp {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits for the next report of the bring-up; waits forever without one.
pub(super) async fn progress(bring_up: &mut Option<BringUp>) -> Option<Progress> {
    match bring_up {
        Some(bring_up) => bring_up.progress.recv().await,
        None => std::future::pending().await,
    }
}

impl Driver {
    /// Reports whether the launch must wait for a valid configuration, and records a condition in that case.
    pub(super) async fn is_put_off(&mut self) -> Result<bool, DriverError> {
        const REASON: &str = agentd_api::reason::CONFIGURATION_INVALID;
        let Err(problem) = self.generation.launchable() else { return Ok(false) };
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
        let generation = Arc::clone(&self.generation);
        let task = tokio::spawn(bringup::run(Arc::clone(&generation), job, report));
        self.bring_up = Some(BringUp { generation, progress, task });
    }

    /// Handles a report of the bring-up.
    pub(super) async fn advance(&mut self, progress: Option<Progress>) -> Result<(), DriverError> {
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
                let generation =
                    begun.map_or_else(|| Arc::clone(&self.generation), |begun| Arc::clone(&begun.generation));
                // Boxed, since this runs once in a launch and the driver's task would otherwise reserve room for
                // it.
                Box::pin(self.start_agent(&generation, launch, *prepared)).await
            }
            None => {
                self.bring_up = None;
                let message = "internal error: the launch task returned no result (please report, with agentd.log)";
                let kind = ConditionType::EnvironmentReady;
                let batch = fail_launch(&self.state, launch, kind, "Internal", message, &self.facts());
                self.append(batch).await.map(drop)
            }
        }
    }

    /// Starts the keeper, which takes the journal's lock, and sends it the launch record.
    async fn start_agent(
        &mut self,
        generation: &Generation,
        launch: u64,
        prepared: Prepared,
    ) -> Result<(), DriverError> {
        let Prepared { record, files } = prepared;
        if let Err(error) = self.provide_files(files).await {
            let message = format!("cannot write the files of the environment: {error}");
            let kind = ConditionType::EnvironmentReady;
            let batch = fail_launch(&self.state, launch, kind, "FilesNotWritten", &message, &self.facts());
            return self.append(batch).await.map(drop);
        }
        if record.enclosure.is_some()
            && let Err(error) = self.open_to_guests()
        {
            let message = format!("cannot create the session's own control socket: {error}");
            let kind = ConditionType::AgentStarted;
            let batch = fail_launch(&self.state, launch, kind, "GuestSocketNotMade", &message, &self.facts());
            return self.append(batch).await.map(drop);
        }
        let args = HoldArgs {
            session: self.document.id.to_string(),
            launch,
            state: self.journal.directory.clone(),
            socket: generation.daemon.directories.keeper_socket(&self.document.id),
            journal: generation.config.journal.options(),
            keep: generation.config.journal.keep_session.0,
            orphan_ttl: generation.config.limits.orphan.map(|span| span.0),
            core: None,
        };
        let unit = Unit::of(&self.document.id, &self.document.spec, &generation.config);
        let started = start_keeper(generation, &self.document.id, &args, &unit, record).await;
        match started {
            Ok(link) => {
                self.port = Port::Keeper(link);
                self.stop_sent = false;
                self.catch_up().await
            }
            Err(error) => {
                // If the agent could not be executed, the keeper records that before it releases the journal, and
                // the record ends the launch. An agent that was started nevertheless is found.
                self.line_lost().await?;
                if matches!(self.port, Port::Silent(_)) {
                    // This agent has never answered, and the launch must not wait forever.
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

/// Starts the keeper and sends it the launch record. The error is a text for people.
async fn start_keeper(
    generation: &Generation,
    id: &agentd_api::SessionId,
    args: &HoldArgs,
    unit: &Unit,
    record: LaunchRecord,
) -> Result<Link, String> {
    let mut link = generation
        .daemon
        .launcher
        .start(id, args, unit, &generation.keeper_patience())
        .await
        .map_err(|error| chain(&error))?;
    agentd_fault::at(Point::DaemonLaunchLinked).map_err(|error| error.to_string())?;
    match link.call(&ToKeeper::Launch(Box::new(record))).await {
        Ok(FromKeeper::Launched { .. }) => {
            agentd_fault::at(Point::DaemonLaunchDone).map_err(|error| error.to_string())?;
            Ok(link)
        }
        Ok(other) => Err(format!("the keeper gave an unexpected answer to the launch: {other:?}")),
        Err(error) => Err(chain(&error)),
    }
}

/// Reports whether the failure is a scarcity of resources. The output of scripts, checks and plugins is not
/// considered.
fn is_scarcity(kind: ConditionType, reason: &str, message: &str) -> bool {
    let quotes = ["Script", "LoginShell", "Provider", "Secret"].iter().any(|of| reason.starts_with(of));
    kind != ConditionType::PrerequisitesMet && !quotes && exhausted::in_text(message).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_script_does_not_count_as_a_scarcity_of_resources() {
        let text = "it ended with status 1: Resource temporarily unavailable (os error 11)";
        assert!(is_scarcity(ConditionType::AgentStarted, "KeeperNotStarted", text));
        assert!(!is_scarcity(ConditionType::EnvironmentReady, "ScriptFailed", text));
        assert!(!is_scarcity(ConditionType::EnvironmentReady, "LoginShellFailed", text));
        assert!(!is_scarcity(ConditionType::PrerequisitesMet, "PrerequisiteFailed", text));
    }
}
