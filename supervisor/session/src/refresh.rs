//! Renews the expiring variables of a running agent's environment before they expire.
//!
//! The renewal runs beside the driver. The driver then hides the new secrets, writes the files, and records the
//! renewal, in this order. So an agent cannot read a secret that is not hidden yet. A daemon that is killed in
//! between leaves a journal that makes the next daemon renew at once. The journal contains the time of renewal. A
//! failed renewal is retried after a pause that doubles, and so is a renewal that returned expired variables.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::Body;
use agentd_api::event::EnvironmentRefreshed;
use agentd_api::session::ConditionType;
use agentd_keeper::protocol::{Hide, ToKeeper};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::driver::{Driver, DriverError};
use super::environment;
use super::journal_port::Port;
use crate::launch::LinkError;
use crate::pulse;
use agentd_decide::batch::Batch;
use agentd_decide::current::{self, Standing};
use agentd_decide::next;
use agentd_decide::state::Run;
use agentd_environment::{Renewal, SessionFile, provide_files, remove_files, renew_at, write_files};

/// State of the renewal.
#[derive(Debug, Default)]
pub(super) struct RenewalState {
    running: Option<RunningRenewal>,
    /// Time of the next attempt after a failure.
    again: Option<Instant>,
    /// Number of failures in a row.
    failures: u32,
    /// Number of renewals in a row that returned expired variables.
    expired: u32,
}

/// Whether the session's files may exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionFiles {
    MayExist,
    Removed,
}

#[derive(Debug)]
struct RunningRenewal {
    launch: u64,
    answer: oneshot::Receiver<Result<Renewal, String>>,
    task: JoinHandle<()>,
}

impl Drop for RunningRenewal {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Result of a renewal, with the number of its launch.
pub(super) type RenewalResult = (u64, Result<Renewal, String>);

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(5);

impl RenewalState {
    /// Reports whether a renewal may begin when a variable expires.
    pub(super) fn is_free(&self) -> bool {
        self.running.is_none() && self.again.is_none()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.again
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.again.is_some_and(|again| again <= now)
    }

    fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.again = now.checked_add(pause(self.failures));
    }
}

/// Returns the pause after this number of failures in a row: it doubles, up to [`LONGEST`].
fn pause(failures: u32) -> Duration {
    FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST)
}

/// Waits for the result of the running renewal; waits forever without one.
pub(super) async fn renewal_result(state: &mut RenewalState) -> RenewalResult {
    let Some(running) = &mut state.running else { return std::future::pending().await };
    let answer = (&mut running.answer).await;
    let launch = running.launch;
    state.running = None;
    (
        launch,
        answer.unwrap_or_else(|_| {
            Err("internal error: the renewal task returned no result (please report, with agentd.log)".to_owned())
        }),
    )
}

impl Driver {
    /// Begins the renewal in a task of its own.
    pub(super) fn begin_renewal(&mut self) {
        let RenewalState { failures, expired, .. } = self.renewal;
        let launch = self.state.launches;
        let job = self.job(launch);
        let (generation, (say, answer)) = (Arc::clone(&self.generation), oneshot::channel());
        let task = tokio::spawn(async move {
            let renewal = environment::renew(&generation, &job).await;
            // The receiver is gone when the agent has ended.
            let _ = say.send(renewal);
        });
        self.renewal =
            RenewalState { running: Some(RunningRenewal { launch, answer, task }), again: None, failures, expired };
    }

    /// Applies the result of a renewal.
    pub(super) async fn renewed(&mut self, (launch, renewal): RenewalResult) -> Result<(), DriverError> {
        let runs = |run: &Run| matches!(run, Run::Running(running) if running.launch == launch);
        if !runs(&self.state.run) {
            return Ok(());
        }
        let written = match renewal {
            Ok(renewal) => match self.bring_in(&renewal).await {
                Some(Ok(())) => Ok(renewal),
                Some(Err(error)) => Err(error),
                // The connection to the keeper is lost: handle the loss first.
                None => {
                    self.renewal.failed(Instant::now());
                    return self.line_lost().await;
                }
            },
            Err(error) => Err(error),
        };
        let (batch, done) = match written {
            Ok(Renewal { files, stale, expires, over, .. }) => {
                let now = Timestamp::now();
                let standing = current::after_renewal(&stale, &over, now);
                let expired = if over.is_empty() { 0 } else { self.renewal.expired.saturating_add(1) };
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
                    agentd.session = %self.id(), %error,
                    "cannot renew the expiring variables of the environment"
                );
                let standing = current::failed(&self.state, &error, Timestamp::now());
                (self.say(Batch::default(), standing), None)
            }
        };
        let recorded = batch.entries.is_empty() || self.append(batch).await?;
        match done {
            Some(expired) if recorded => self.renewal = RenewalState { expired, ..RenewalState::default() },
            _ => self.renewal.failed(Instant::now()),
        }
        Ok(())
    }

    /// Adds the condition to the batch if it differs from the current one.
    fn say(&self, batch: Batch, (status, reason, message): Standing) -> Batch {
        let kind = ConditionType::EnvironmentCurrent;
        let said = self.state.condition(kind);
        if said.is_some_and(|said| (said.status, &*said.reason, &said.message) == (status, reason, &message)) {
            return batch;
        }
        batch.record(next::condition(&self.state, &self.facts(), kind, status, reason, message))
    }

    /// Lets the keeper hide the new secrets, then writes the files. Returns `None` when the connection to the
    /// keeper is lost.
    async fn bring_in(&mut self, renewal: &Renewal) -> Option<Result<(), String>> {
        if renewal.files.is_empty() {
            return Some(Ok(()));
        }
        let Port::Keeper(link) = &mut self.port else { return None };
        match link.call(&ToKeeper::Hide(Hide { secrets: renewal.hidden.clone() })).await {
            Ok(_) => {}
            Err(LinkError::Refused { code, .. }) => {
                tracing::warn!(
                    agentd.session = %self.id(), code,
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
        let written = self.with_files(move |directory| write_files(directory, &files)).await;
        Some(written.map_err(|error| format!("cannot write the session's files: {error}")))
    }

    /// Replaces the session's files by those of a launch that is about to start its agent.
    pub(super) async fn provide_files(&mut self, files: Vec<SessionFile>) -> std::io::Result<()> {
        self.files = SessionFiles::MayExist;
        self.with_files(move |directory| provide_files(directory, &files)).await
    }

    /// Removes the files of an ended agent, before its end is published.
    pub(super) async fn forget_files(&mut self) {
        if self.files == SessionFiles::Removed || !matches!(self.state.run, Run::Ended(_)) {
            return;
        }
        match self.with_files(remove_files).await {
            Ok(()) => self.files = SessionFiles::Removed,
            Err(error) => {
                tracing::error!(agentd.session = %self.id(), %error, "cannot remove the files of an ended session");
            }
        }
    }

    async fn with_files(
        &self,
        work: impl FnOnce(&std::path::Path) -> std::io::Result<()> + Send + 'static,
    ) -> std::io::Result<()> {
        let directory = self.generation.daemon.directories.session_files(self.id());
        pulse::blocking(move || work(&directory)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_after_a_failure_doubles_up_to_the_longest() {
        let pauses: Vec<u64> = [1, 2, 3, 9, 10, u32::MAX].map(|failures| pause(failures).as_secs()).to_vec();
        assert_eq!(pauses, [1, 2, 4, 256, 300, 300]);
    }
}
