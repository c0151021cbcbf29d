//! What of a running agent's environment holds for a limited time: asked for again before the time is over.
//!
//! It runs beside the driver, which goes on meanwhile; what comes of it is hidden, written and recorded by the driver, in this order, so that
//! an agent cannot read what is not hidden yet, and a daemon that is killed in between leaves a journal by which the next one asks
//! again at once. When that is stands in the journal. What fails is tried again, after a pause that doubles, and so is what had expired
//! when it came.

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

use super::batch::Batch;
use super::current::{self, Standing};
use super::driver::{Broken, Driver};
use super::environment;
use super::journal_port::Port;
use super::next;
use super::state::Run;
use crate::env::{Renewal, SessionFile, provide_files, remove_files, renew_at, write_files};
use crate::launch::LinkError;
use crate::pulse;

/// Where a refresh is.
#[derive(Debug, Default)]
pub(super) struct Refresh {
    asking: Option<Asking>,
    /// It has failed, and is tried again then.
    again: Option<Instant>,
    /// How often it has failed in a row.
    failures: u32,
    /// How often in a row it gave what had expired already.
    expired: u32,
}

/// Whether the session's files are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Files {
    Perhaps,
    Gone,
}

#[derive(Debug)]
struct Asking {
    launch: u64,
    answer: oneshot::Receiver<Result<Renewal, String>>,
    task: JoinHandle<()>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What came of one, and the launch that it is of.
pub(super) type Refreshed = (u64, Result<Renewal, String>);

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(5);

impl Refresh {
    /// Whether one may be begun when something expires.
    pub(super) fn is_free(&self) -> bool {
        self.asking.is_none() && self.again.is_none()
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

/// The pause after so many failures in a row: twice the one before, up to the longest.
fn pause(failures: u32) -> Duration {
    FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST)
}

/// What came of the refresh that is under way.
pub(super) async fn refreshed(refresh: &mut Refresh) -> Refreshed {
    let Some(asking) = &mut refresh.asking else { return std::future::pending().await };
    let answer = (&mut asking.answer).await;
    let launch = asking.launch;
    refresh.asking = None;
    (
        launch,
        answer.unwrap_or_else(|_| {
            Err("it ended without a word, which is a defect of agentd; its log has more".to_owned())
        }),
    )
}

impl Driver {
    /// Asks for what expires, beside everything else.
    pub(super) fn begin_refresh(&mut self) {
        let Refresh { failures, expired, .. } = self.refresh;
        let launch = self.state.launches;
        let job = self.job(launch);
        let (world, (say, answer)) = (Arc::clone(&self.world), oneshot::channel());
        let task = tokio::spawn(async move {
            let renewal = environment::renew(&world, &job).await;
            // Nobody waits for it when the agent has ended.
            let _ = say.send(renewal);
        });
        self.refresh = Refresh { asking: Some(Asking { launch, answer, task }), again: None, failures, expired };
    }

    /// Makes use of what came of it.
    pub(super) async fn renewed(&mut self, (launch, renewal): Refreshed) -> Result<(), Broken> {
        let runs = |run: &Run| matches!(run, Run::Running(running) if running.launch == launch);
        if !runs(&self.state.run) {
            return Ok(());
        }
        let written = match renewal {
            Ok(renewal) => match self.bring_in(&renewal).await {
                Some(Ok(())) => Ok(renewal),
                Some(Err(error)) => Err(error),
                // The line to the keeper is lost: what that means is found out first.
                None => {
                    self.refresh.failed(Instant::now());
                    return self.line_lost().await;
                }
            },
            Err(error) => Err(error),
        };
        let (batch, done) = match written {
            Ok(Renewal { files, stale, expires, over, .. }) => {
                let now = Timestamp::now();
                let standing = current::refreshed(&stale, &over, now);
                let expired = if over.is_empty() { 0 } else { self.refresh.expired.saturating_add(1) };
                let renews = expires.map(|expires| match expired {
                    0 => renew_at(now, expires, self.id().as_str()),
                    times => now.saturating_add(pause(times)).unwrap_or(Timestamp::MAX),
                });
                let files = files.into_iter().map(|file| file.name).collect();
                let refreshed = EnvironmentRefreshed { launch, files, stale, expires_at: expires, renew_at: renews };
                (self.say(Batch::of(Body::EnvironmentRefreshed(refreshed)), standing), Some(expired))
            }
            Err(error) => {
                tracing::warn!(agentd.session = %self.id(), %error, "what of the environment expires cannot be had again");
                let standing = current::failed(&self.state, &error, Timestamp::now());
                (self.say(Batch::default(), standing), None)
            }
        };
        let recorded = batch.entries.is_empty() || self.append(batch).await?;
        match done {
            Some(expired) if recorded => self.refresh = Refresh { expired, ..Refresh::default() },
            _ => self.refresh.failed(Instant::now()),
        }
        Ok(())
    }

    /// Adds the condition where it is news.
    fn say(&self, batch: Batch, (status, reason, message): Standing) -> Batch {
        let kind = ConditionType::EnvironmentCurrent;
        let said = self.state.condition(kind);
        if said.is_some_and(|said| (said.status, &*said.reason, &said.message) == (status, reason, &message)) {
            return batch;
        }
        batch.record(next::condition(&self.state, &self.facts(), kind, status, reason, message))
    }

    /// Has what is new hidden, and writes it. Nothing where the line to the keeper is lost.
    async fn bring_in(&mut self, renewal: &Renewal) -> Option<Result<(), String>> {
        if renewal.files.is_empty() {
            return Some(Ok(()));
        }
        let Port::Keeper(link) = &mut self.port else { return None };
        match link.call(&ToKeeper::Hide(Hide { secrets: renewal.hidden.clone() })).await {
            Ok(_) => {}
            Err(LinkError::Refused { code, .. }) => {
                tracing::warn!(agentd.session = %self.id(), code, "the session's keeper is of an older release, and does not hide what its files have now");
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
        Some(written.map_err(|error| format!("the session's files cannot be written: {error}")))
    }

    /// Makes the session's files those of a launch that is about to start its agent.
    pub(super) async fn provide_files(&mut self, files: Vec<SessionFile>) -> std::io::Result<()> {
        self.files = Files::Perhaps;
        self.with_files(move |directory| provide_files(directory, &files)).await
    }

    /// Removes the files of an agent that has ended, before anybody sees that it has.
    pub(super) async fn forget_files(&mut self) {
        if self.files == Files::Gone || !matches!(self.state.run, Run::Ended(_)) {
            return;
        }
        match self.with_files(remove_files).await {
            Ok(()) => self.files = Files::Gone,
            Err(error) => {
                tracing::error!(agentd.session = %self.id(), %error, "the files of a session that has ended cannot be removed");
            }
        }
    }

    async fn with_files(
        &self,
        work: impl FnOnce(&std::path::Path) -> std::io::Result<()> + Send + 'static,
    ) -> std::io::Result<()> {
        let directory = self.world.directories.session_files(self.id());
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
