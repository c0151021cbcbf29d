//! Owner of a launch's parts: the bring-up in flight, the renewal of expiring variables, the session's files, and the
//! control socket of a guarded session.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::SessionId;
use agentd_api::isolation::Isolation;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::outside::Outside;
use super::renewal::RenewalState;
use crate::bringup::Progress;
use crate::daemon::Daemon;
use crate::launch_plan::LaunchPlan;
use crate::pulse;
use agentd_decide::state::Run;
use agentd_environment::{SessionFile, provide_files, remove_files};
use agentd_host::guest::GuestSocket;

/// The work of launches, which runs beside the driver.
pub(super) struct Launching {
    pub(super) bring_up: Option<BringUp>,
    /// Renewal of expiring variables of the agent's environment.
    pub(super) renewal: RenewalState,
    pub(super) files: Files,
    /// The guarded agent's control socket, while the agent runs.
    guest: Option<GuestSocket>,
}

/// A running bring-up. Dropping the value ends it.
pub(super) struct BringUp {
    plan: Arc<LaunchPlan>,
    progress: mpsc::Receiver<Progress>,
    task: JoinHandle<()>,
}

impl Drop for BringUp {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Launching {
    pub(super) fn new(files: PathBuf) -> Self {
        Self {
            bring_up: None,
            renewal: RenewalState::default(),
            files: Files { directory: files, may_exist: true },
            guest: None,
        }
    }

    /// Begins the bring-up in a task of its own.
    pub(super) fn begin(&mut self, outside: &dyn Outside, plan: LaunchPlan) {
        let (plan, (report, progress)) = (Arc::new(plan), mpsc::channel(16));
        let task = outside.bring_up(Arc::clone(&plan), report);
        self.bring_up = Some(BringUp { plan, progress, task });
    }

    /// Ends the bring-up, and returns its plan.
    pub(super) fn finish(&mut self) -> Option<Arc<LaunchPlan>> {
        self.bring_up.take().map(|begun| Arc::clone(&begun.plan))
    }

    /// Creates the control socket of a guarded session.
    pub(super) fn open_to_guests(&mut self, daemon: &Daemon, id: &SessionId) -> io::Result<()> {
        let path = daemon.directories.guest_socket(id);
        self.guest = Some(daemon.guests.listen(id, path)?);
        Ok(())
    }

    /// Creates a missing control socket of a running guarded agent, also after a restart of the daemon. Removes the
    /// socket of an ended agent.
    pub(super) fn mind_guests(&mut self, daemon: &Daemon, id: &SessionId, run: &Run) {
        let is_guarded = match run {
            Run::Preparing(_) => return,
            Run::Ended(_) => false,
            Run::Running(running) => running.isolation.level == Isolation::Guard,
        };
        if !is_guarded {
            if let Some(socket) = self.guest.take() {
                socket.remove();
            }
        } else if self.guest.is_none()
            && let Err(error) = self.open_to_guests(daemon, id)
        {
            tracing::warn!(%error, "cannot create the session's own control socket");
        }
    }
}

/// Waits for the next report of the bring-up; waits forever without one.
pub(super) async fn progress(bring_up: &mut Option<BringUp>) -> Option<Progress> {
    match bring_up {
        Some(bring_up) => bring_up.progress.recv().await,
        None => std::future::pending().await,
    }
}

/// The session's files, which exist while its agent runs.
#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
    may_exist: bool,
}

impl Files {
    /// Replaces the files by those of a launch that is about to start its agent.
    pub(super) async fn provide(&mut self, files: Vec<SessionFile>) -> io::Result<()> {
        self.may_exist = true;
        self.with(move |directory| provide_files(directory, &files)).await
    }

    /// Removes the files of an ended agent, before its end is published.
    pub(super) async fn forget(&mut self, run: &Run) {
        if !self.may_exist || !matches!(run, Run::Ended(_)) {
            return;
        }
        match self.with(remove_files).await {
            Ok(()) => self.may_exist = false,
            Err(error) => {
                tracing::error!(%error, "cannot remove the files of an ended session");
            }
        }
    }

    /// Works on the directory of the files, on a blocking thread.
    pub(super) async fn with(&self, work: impl FnOnce(&Path) -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let directory = self.directory.clone();
        pulse::blocking(move || work(&directory)).await
    }
}
