//! A launch on the driver's side: begins the bring-up, records its progress, then starts the keeper and sends it
//! the launch record.
//!
//! [`crate::bringup`] has the steps of the bring-up, and [`agentd_decide::next`] decides what follows a failed
//! launch.

use std::sync::Arc;

use agentd_api::Body;
use agentd_api::event::EnvironmentRefreshed;
use agentd_api::hint;
use agentd_api::reason;
use agentd_api::session::{ConditionStatus, ConditionType};
use agentd_api::staleness::StalePolicy;
use agentd_fault::Point;
use agentd_keeper::protocol::{FromKeeper, Hide, LaunchRecord, ToKeeper};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};

use super::launching::LaunchEvent;
use super::outside::Outside;
use super::renewal::{RenewalResult, pause};
use super::{Driver, DriverError};
use crate::bringup::{Prepared, Progress};
use crate::journal_port::Port;
use crate::launch::{Connection, LinkError, Reservation, WarmKeeper};
use crate::launch_plan::LaunchPlan;
use agentd_api::chain;
use agentd_decide::acp;
use agentd_decide::batch::Batch;
use agentd_decide::current;
use agentd_decide::next::{self, fail_launch};
use agentd_decide::staleness::{self, Outcome};
use agentd_decide::state::Run;
use agentd_decide::verdict::ConditionUpdate;
use agentd_environment::{Renewal, renew_at, write_files};
use agentd_host::exhausted;
use agentd_traces::TARGET;

impl Driver {
    /// Reports whether the launch must wait for a valid configuration, and records a condition in that case.
    pub(super) async fn is_put_off(&mut self) -> Result<bool, DriverError> {
        const REASON: &str = agentd_api::reason::CONFIGURATION_INVALID;
        let Err(problem) = self.terms.generation.launchable() else { return Ok(false) };
        let kind = ConditionType::EnvironmentReady;
        let known = self.recorder.state.condition(kind);
        if known.is_none_or(|known| known.reason != REASON || known.message != problem.detail) {
            let (state, facts) = (&self.recorder.state, self.facts());
            let body = next::condition(state, &facts, kind, ConditionStatus::Unknown, REASON, problem.detail);
            self.append(Batch::of(body)).await?;
        }
        Ok(true)
    }

    pub(super) fn begin_bring_up(&mut self, launch: u64) {
        let plan = self.plan(launch);
        let outside = Arc::clone(&self.outside);
        self.recorder.launch_span().in_scope(|| self.launching.begin(&*outside, plan));
    }

    /// Begins the renewal of the environment's expiring variables.
    pub(super) fn begin_renewal(&mut self) {
        let plan = self.plan(self.recorder.state.launches);
        self.launching.renewal.begin(plan);
    }

    /// Plans a launch under the generation in force.
    pub(super) fn plan(&self, launch: u64) -> LaunchPlan {
        let (document, state) = (&self.recorder.document, &self.recorder.state);
        let mut plan = LaunchPlan::of(&self.terms.generation, document, state, launch);
        plan.has_warm_agent = self.launching.warm.is_some();
        plan
    }

    /// Gives the session an agent that was kept warm, for its first launch.
    pub(crate) fn give_warm(&mut self, warm: Option<WarmKeeper>) {
        self.launching.warm = warm;
    }

    /// Returns the keeper of the agent that was kept warm, with the request that this agent must have received.
    fn take_warm(&mut self, plan: &LaunchPlan, record: &mut LaunchRecord) -> Option<(u32, Option<Reservation>)> {
        let warm = self.launching.warm.take()?;
        record.initialize = Some(acp::initialize(self.recorder.state.next_rpc, self.facts().editor));
        Some((warm.agent, warm.reserve(&plan.daemon.launcher)))
    }

    /// Counts whether the launch uses the agent that was kept warm.
    fn count_warm(&self, is_used: bool) {
        let outcome = if is_used { "used" } else { "not-used" };
        self.terms.generation.daemon.metrics.warm_agent_launches.count([outcome]);
        if !is_used {
            tracing::info!("the agent that was kept warm has another environment or has ended; another is started");
        }
    }

    /// Handles an event of the work of launches.
    pub(super) async fn launch_event(&mut self, event: LaunchEvent) -> Result<(), DriverError> {
        match event {
            LaunchEvent::Progress(progress) => self.advance(progress).await,
            LaunchEvent::ReportsDue => self.write_reports().await,
            LaunchEvent::Examined(progress) => self.examined(progress).await,
            LaunchEvent::Renewed(renewal) => self.renewed(*renewal).await,
        }
    }

    /// Handles a report of the bring-up.
    async fn advance(&mut self, progress: Option<Progress>) -> Result<(), DriverError> {
        let Run::Preparing(preparing) = &self.recorder.state.run else {
            self.launching.bring_up = None;
            return Ok(());
        };
        let launch = preparing.launch;
        let progress = match progress {
            Some(Progress::Record(body)) => {
                self.launching.keep_report(*body);
                return Ok(());
            }
            Some(Progress::Condition { kind, status, reason, message }) => {
                let body = next::condition(&self.recorder.state, &self.facts(), kind, status, &reason, message);
                self.launching.keep_report(body);
                return Ok(());
            }
            progress => progress,
        };
        self.write_reports().await?;
        match progress {
            // Kept above.
            Some(Progress::Record(_) | Progress::Condition { .. }) => Ok(()),
            Some(Progress::Repository { changed, go_on }) => {
                if self.append(Batch::of(Body::RepositoryChanged(*changed))).await? {
                    let _ = go_on.send(());
                } else {
                    // The launch begins again, and with it the work on the repository.
                    self.launching.bring_up = None;
                }
                Ok(())
            }
            Some(Progress::Workflow(changed)) => self.put_into_force(*changed).await,
            Some(Progress::Observed { observed, go_on }) => {
                let compared = staleness::observed(&self.recorder.state, *observed, &self.facts());
                self.pass(compared, go_on).await
            }
            Some(Progress::EnvironmentKept { go_on }) => {
                let compared = staleness::built(&self.recorder.state, &self.facts());
                self.pass(compared, go_on).await
            }
            Some(Progress::Failed { kind, reason, message }) => {
                self.launching.bring_up = None;
                let reason = if is_scarcity(kind, reason, &message) { reason::OUT_OF_RESOURCES } else { reason };
                let message = with_hint(kind, reason, message, self.recorder.state.hint.as_deref());
                let batch = fail_launch(&self.recorder.state, launch, kind, reason, &message, &self.facts());
                self.append(batch).await.map(drop)
            }
            Some(Progress::Ready(prepared)) => {
                let plan = self.launching.finish().unwrap_or_else(|| Arc::new(self.plan(launch)));
                // Boxed, since this runs once in a launch and the driver's task would otherwise reserve room for
                // it.
                let span = info_span!(target: TARGET, parent: self.recorder.launch_span(), "agent");
                Box::pin(self.start_agent(&plan, *prepared)).instrument(span).await
            }
            None => {
                self.launching.bring_up = None;
                let message = "internal error: the launch task returned no result (please report, with agentd.log)";
                let kind = ConditionType::EnvironmentReady;
                let batch = fail_launch(&self.recorder.state, launch, kind, reason::INTERNAL, message, &self.facts());
                self.append(batch).await.map(drop)
            }
        }
    }

    /// Writes the kept reports of the bring-up.
    async fn write_reports(&mut self) -> Result<(), DriverError> {
        let reports = self.launching.take_reports();
        if reports.entries.is_empty() { Ok(()) } else { self.append(reports).await.map(drop) }
    }

    /// Records a report about a launch whose agent is started. The facts of a first launch are compared with none.
    async fn examined(&mut self, progress: Option<Progress>) -> Result<(), DriverError> {
        let batch = match progress {
            Some(Progress::Observed { observed, go_on }) => {
                let _ = go_on.send(());
                staleness::observed(&self.recorder.state, *observed, &self.facts()).0
            }
            Some(Progress::Condition { kind, status, reason, message }) => {
                Batch::of(next::condition(&self.recorder.state, &self.facts(), kind, status, &reason, message))
            }
            _ => {
                self.launching.examining = None;
                return Ok(());
            }
        };
        self.append(batch).await.map(drop)
    }

    /// Records the result of a comparison. Lets the launch continue, or drops it: after a client's answer it begins
    /// again.
    async fn pass(
        &mut self,
        (batch, outcome): (Batch, Outcome),
        go_on: oneshot::Sender<()>,
    ) -> Result<(), DriverError> {
        for entry in &batch.entries {
            if let Body::StalenessFound(found) = &entry.body {
                for finding in found.findings.iter().filter(|finding| finding.policy >= StalePolicy::Warn) {
                    tracing::warn!(kind = finding.kind.as_str(), "the session is stale: {}", finding.message);
                }
            }
        }
        let written = batch.entries.is_empty() || self.append(batch).await?;
        if written && outcome == Outcome::Continue {
            // The bring-up may have been dropped in the meantime.
            let _ = go_on.send(());
        } else {
            self.launching.bring_up = None;
        }
        Ok(())
    }

    /// Applies the result of a renewal.
    async fn renewed(&mut self, (launch, renewal): RenewalResult) -> Result<(), DriverError> {
        let runs = |run: &Run| matches!(run, Run::Running(running) if running.launch == launch);
        if !runs(&self.recorder.state.run) {
            return Ok(());
        }
        let written = match renewal {
            Ok(renewal) => match self.bring_in(&renewal).await {
                Some(Ok(())) => Ok(renewal),
                Some(Err(error)) => Err(error),
                // The connection to the keeper is lost: handle the loss first.
                None => {
                    self.launching.renewal.failed(Instant::now());
                    return self.line_lost().await;
                }
            },
            Err(error) => Err(error),
        };
        let (batch, done) = match written {
            Ok(Renewal { files, stale, expires, over, .. }) => {
                let now = Timestamp::now();
                let standing = current::after_renewal(&stale, &over, now);
                let expired = self.launching.renewal.expired_after(!over.is_empty());
                let renews = expires.map(|expires| match expired {
                    0 => renew_at(now, expires, self.id().as_str()),
                    times => now.saturating_add(pause(times)).unwrap_or(Timestamp::MAX),
                });
                let files = files.into_iter().map(|file| file.name).collect();
                let refreshed = EnvironmentRefreshed { launch, files, stale, expires_at: expires, renew_at: renews };
                (self.say(Batch::of(Body::EnvironmentRefreshed(refreshed)), standing), Some(expired))
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cannot renew the expiring variables of the environment"
                );
                let standing = current::failed(&self.recorder.state, &error, Timestamp::now());
                (self.say(Batch::default(), standing), None)
            }
        };
        let recorded = batch.entries.is_empty() || self.append(batch).await?;
        match done {
            Some(expired) if recorded => self.launching.renewal.succeeded(expired),
            _ => self.launching.renewal.failed(Instant::now()),
        }
        Ok(())
    }

    /// Adds the condition to the batch if it differs from the current one.
    fn say(&self, batch: Batch, (status, reason, message): ConditionUpdate) -> Batch {
        let kind = ConditionType::EnvironmentCurrent;
        let said = self.recorder.state.condition(kind);
        if said.is_some_and(|said| (said.status, &*said.reason, &said.message) == (status, reason, &message)) {
            return batch;
        }
        batch.record(next::condition(&self.recorder.state, &self.facts(), kind, status, reason, message))
    }

    /// Lets the keeper hide the new secrets, then writes the files. Returns `None` when the connection to the
    /// keeper is lost.
    async fn bring_in(&mut self, renewal: &Renewal) -> Option<Result<(), String>> {
        if renewal.files.is_empty() {
            return Some(Ok(()));
        }
        let Port::Keeper(link) = &mut self.recorder.port else { return None };
        match link.call(&ToKeeper::Hide(Hide { secrets: renewal.hidden.clone() })).await {
            Ok(_) => {}
            Err(LinkError::Refused { code, .. }) => {
                tracing::warn!(
                    code,
                    "the session's keeper is of an older release and cannot hide the new secrets of its files"
                );
            }
            Err(LinkError::Silent { .. }) => {
                let reach = link.reach();
                self.go_silent(reach);
                return None;
            }
            Err(_) => return None,
        }
        let files = renewal.files.clone();
        let written = self.launching.files.with(move |directory| write_files(directory, &files)).await;
        Some(written.map_err(|error| format!("cannot write the session's files: {error}")))
    }

    /// Starts the keeper, which takes the journal's lock, and sends it the launch record.
    async fn start_agent(
        &mut self,
        plan: &LaunchPlan,
        Prepared { mut record, files, mut keeper }: Prepared,
    ) -> Result<(), DriverError> {
        let launch = plan.launch;
        if let Err(error) = self.launching.files.provide(files).await {
            let message = format!("cannot write the files of the environment: {error}");
            let kind = ConditionType::EnvironmentReady;
            let batch =
                fail_launch(&self.recorder.state, launch, kind, reason::FILES_NOT_WRITTEN, &message, &self.facts());
            return self.append(batch).await.map(drop);
        }
        if record.enclosure.is_some()
            && let Err(error) = self.launching.open_to_guests(&plan.daemon, &plan.id)
        {
            let message = format!("cannot create the session's own control socket: {error}");
            let kind = ConditionType::AgentStarted;
            let batch =
                fail_launch(&self.recorder.state, launch, kind, reason::GUEST_SOCKET_NOT_MADE, &message, &self.facts());
            return self.append(batch).await.map(drop);
        }
        let warm = self.take_warm(plan, &mut record).map(|(agent, kept)| {
            keeper = kept;
            agent
        });
        match start_keeper(&*self.outside, plan, record, keeper).await {
            Ok((link, pid)) => {
                if let Some(agent) = warm {
                    self.count_warm(agent == pid);
                }
                self.recorder.port = Port::Keeper(link);
                self.stop.sent = false;
                self.catch_up().await
            }
            Err(error) => {
                // If the agent could not be executed, the keeper records that before it releases the journal, and
                // the record ends the launch. An agent that was started nevertheless is found.
                self.line_lost().await?;
                if self.recorder.is_silent() {
                    // This agent has never answered, and the launch must not wait forever.
                    self.force(None).await?;
                }
                if matches!(self.recorder.state.run, Run::Preparing(_)) {
                    let kind = ConditionType::AgentStarted;
                    let batch =
                        fail_launch(&self.recorder.state, launch, kind, reason::KEEPER_FAILED, &error, &self.facts());
                    self.append(batch).await?;
                }
                Ok(())
            }
        }
    }
}

/// Starts the keeper and sends it the launch record. Returns the connection and the agent's process id. The error is a
/// text for people.
async fn start_keeper(
    outside: &dyn Outside,
    plan: &LaunchPlan,
    record: LaunchRecord,
    reserved: Option<Reservation>,
) -> Result<(Box<dyn Connection>, u32), String> {
    let mut link = outside.start(plan, reserved).await.map_err(|error| chain(&error))?;
    agentd_fault::at(Point::DaemonLaunchLinked).map_err(|error| error.to_string())?;
    match link.call(&ToKeeper::Launch(Box::new(record))).await {
        Ok(FromKeeper::Launched { pid }) => {
            agentd_fault::at(Point::DaemonLaunchDone).map_err(|error| error.to_string())?;
            Ok((link, pid))
        }
        Ok(other) => Err(format!("the keeper gave an unexpected answer to the launch: {other:?}")),
        Err(error) => Err(chain(&error)),
    }
}

/// Adds the session's environment hint to the message of a failed setup.
fn with_hint(kind: ConditionType, reason: &str, message: String, hint: Option<&str>) -> String {
    let is_setup = matches!(kind, ConditionType::PrerequisitesMet | ConditionType::EnvironmentReady);
    match hint.filter(|_| is_setup && reason != reason::ENDING) {
        Some(hint) => hint::of_session(&message, hint),
        None => message,
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
    fn only_a_failed_setup_gets_the_sessions_hint() {
        let said = |kind, reason| with_hint(kind, reason, "it failed".to_owned(), Some("load the module"));
        let with = "it failed; the session's hint: load the module";
        assert_eq!(said(ConditionType::EnvironmentReady, reason::SCRIPT_FAILED), with);
        assert_eq!(said(ConditionType::PrerequisitesMet, reason::PREREQUISITE_FAILED), with);
        assert_eq!(said(ConditionType::EnvironmentReady, reason::ENDING), "it failed");
        assert_eq!(said(ConditionType::AgentStarted, reason::KEEPER_FAILED), "it failed");
        assert_eq!(with_hint(ConditionType::EnvironmentReady, "X", "it failed".to_owned(), None), "it failed");
    }

    #[test]
    fn the_output_of_a_script_does_not_count_as_a_scarcity_of_resources() {
        let text = "it ended with status 1: Resource temporarily unavailable (os error 11)";
        assert!(is_scarcity(ConditionType::AgentStarted, "KeeperFailed", text));
        assert!(!is_scarcity(ConditionType::EnvironmentReady, "ScriptFailed", text));
        assert!(!is_scarcity(ConditionType::EnvironmentReady, "LoginShellFailed", text));
        assert!(!is_scarcity(ConditionType::PrerequisitesMet, "PrerequisiteFailed", text));
    }
}
