//! Owner of a launch's parts: the bring-up in flight, the renewal of expiring variables, the session's files, and the
//! control socket of a guarded session.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentd_api::isolation::Isolation;
use agentd_api::{Body, SessionId};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::outside::Outside;
use super::port_events::until;
use super::renewal::{RenewalResult, RenewalState, renewal_result};
use crate::bringup::Progress;
use crate::daemon::Daemon;
use crate::launch::WarmKeeper;
use crate::launch_plan::LaunchPlan;
use crate::pulse;
use agentd_decide::batch::Batch;
use agentd_decide::state::Run;
use agentd_environment::{SessionFile, provide_files, remove_files};
use agentd_host::guest::GuestSocket;

/// The work of launches, which runs beside the driver.
pub(super) struct Launching {
    pub(super) bring_up: Option<BringUp>,
    /// The bring-up of a started agent that still examines the environment and the session's directory.
    pub(super) examining: Option<BringUp>,
    /// Renewal of expiring variables of the agent's environment.
    pub(super) renewal: RenewalState,
    pub(super) files: Files,
    /// The agent that was kept warm for the first launch, until it is used. A launch that has ended needs none.
    pub(super) warm: Option<WarmKeeper>,
    /// The guarded agent's control socket, while the agent runs.
    guest: Option<GuestSocket>,
}

/// A running bring-up. Dropping the value ends it.
pub(super) struct BringUp {
    plan: Arc<LaunchPlan>,
    progress: mpsc::Receiver<Progress>,
    /// Reports that are not written yet, and the time at which they are written at the latest.
    unwritten: Batch,
    write_at: Option<Instant>,
    task: JoinHandle<()>,
}

/// Maximum time for which a report waits for the next ones, so that one append writes them all.
const GATHER: Duration = Duration::from_millis(10);

impl Drop for BringUp {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Launching {
    pub(super) fn new(files: PathBuf, may_exist: bool) -> Self {
        Self {
            bring_up: None,
            examining: None,
            renewal: RenewalState::default(),
            files: Files { directory: files, may_exist },
            warm: None,
            guest: None,
        }
    }

    /// Begins the bring-up in a task of its own.
    pub(super) fn begin(&mut self, outside: &dyn Outside, plan: LaunchPlan) {
        let (plan, (report, progress)) = (Arc::new(plan), mpsc::channel(16));
        let task = outside.bring_up(Arc::clone(&plan), report);
        self.bring_up = Some(BringUp { plan, progress, unwritten: Batch::default(), write_at: None, task });
        self.examining = None;
    }

    /// Lets the bring-up continue beside the start of the agent, and returns its plan.
    pub(super) fn finish(&mut self) -> Option<Arc<LaunchPlan>> {
        self.examining = self.bring_up.take();
        self.examining.as_ref().map(|begun| Arc::clone(&begun.plan))
    }

    /// Keeps a report of the bring-up for the next append.
    pub(super) fn keep_report(&mut self, body: Body) {
        if let Some(bring_up) = &mut self.bring_up {
            bring_up.unwritten = std::mem::take(&mut bring_up.unwritten).record(body);
            bring_up.write_at.get_or_insert_with(|| Instant::now() + GATHER);
        }
    }

    /// Takes the reports that are not written yet.
    pub(super) fn take_reports(&mut self) -> Batch {
        let Some(bring_up) = &mut self.bring_up else { return Batch::default() };
        bring_up.write_at = None;
        std::mem::take(&mut bring_up.unwritten)
    }

    /// Waits for the next event of a launch.
    pub(super) async fn event(&mut self) -> LaunchEvent {
        let write_at = self.bring_up.as_ref().and_then(|bring_up| bring_up.write_at);
        tokio::select! {
            biased;
            progress = progress(&mut self.bring_up) => LaunchEvent::Progress(progress),
            examined = progress(&mut self.examining) => LaunchEvent::Examined(examined),
            () = until(write_at) => LaunchEvent::ReportsDue,
            renewal = renewal_result(&mut self.renewal) => LaunchEvent::Renewed(Box::new(renewal)),
        }
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
        if !matches!(run, Run::Preparing(_)) {
            self.warm = None;
        }
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

/// Event of the work of launches.
pub(super) enum LaunchEvent {
    /// A report of the bring-up, or `None` when it has ended without a last report.
    Progress(Option<Progress>),
    /// The kept reports must be written.
    ReportsDue,
    /// A report about a launch whose agent is started, or `None` after the last one.
    Examined(Option<Progress>),
    Renewed(Box<RenewalResult>),
}

/// Waits for the next report of a bring-up; waits forever without one.
async fn progress(bring_up: &mut Option<BringUp>) -> Option<Progress> {
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
        if files.is_empty() && !self.may_exist {
            return Ok(());
        }
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
