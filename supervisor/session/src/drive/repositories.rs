//! Works on the repositories of a running session, in a task beside the driver.

use std::sync::Arc;

use agentd_api::Body;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Driver, DriverError};
use crate::bringup::Progress;
use crate::journal_port::Port;
use agentd_decide::batch::Batch;
use agentd_decide::repositories::{RepositoryWork, next_work};
use agentd_decide::state::Run;

/// Work on a repository. Dropping the value ends it, with git.
pub(super) struct RepositoryTask {
    work: RepositoryWork,
    progress: mpsc::Receiver<Progress>,
    task: JoinHandle<()>,
}

impl Drop for RepositoryTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Driver {
    /// Begins the work on the repository that is due, and drops work that the specification no longer wants.
    pub(super) fn mind_repositories(&mut self) {
        let (state, spec) = (&self.recorder.state, self.terms.spec());
        let is_running = matches!(&state.run, Run::Running(running) if running.ending.is_none());
        if !is_running || self.timers.is_retrying() || !matches!(self.recorder.port, Port::Keeper(_)) {
            self.repository = None;
            return;
        }
        if let Some(task) = &self.repository {
            let is_wanted = match &task.work {
                RepositoryWork::Provide { spec: wanted, .. } => spec.repos.contains(wanted),
                RepositoryWork::Remove { known, .. } => spec.repository(&known.spec.name()).is_none(),
            };
            if is_wanted {
                return;
            }
            self.repository = None;
        }
        let Some(work) = next_work(state, spec) else { return };
        let plan = self.plan(state.launches);
        let (report, progress) = mpsc::channel(4);
        let task = self.outside.repository(Arc::new(plan), work.clone(), report);
        self.repository = Some(RepositoryTask { work, progress, task });
    }

    /// Records what the work reports, and lets it continue. `None` reports its end.
    pub(super) async fn repository_reported(&mut self, report: Option<Progress>) -> Result<(), DriverError> {
        let Some(Progress::Repository { changed, go_on }) = report else {
            self.repository = None;
            return Ok(());
        };
        if self.append(Batch::of(Body::RepositoryChanged(*changed))).await? {
            let _ = go_on.send(());
        } else {
            self.repository = None;
        }
        Ok(())
    }
}

/// Waits for the next report of the work; waits forever without any.
pub(super) async fn repository_report(task: &mut Option<RepositoryTask>) -> Option<Progress> {
    match task {
        Some(task) => task.progress.recv().await,
        None => std::future::pending().await,
    }
}
