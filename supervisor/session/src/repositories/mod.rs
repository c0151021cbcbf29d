//! Makes a session's repositories as its specification requests them: at a launch, and between the turns of a running
//! agent.
//!
//! A record is written before the work on a repository begins, and after it has ended. After a kill in between, the
//! work is done again. [`agentd_decide::repositories`] decides what is due, and [`agentd_host::git`] does it.

mod changes;
mod now;
mod permits;
mod provide;
mod remove;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use agentd_api::degraded::{MissingKind, MissingPart};
use agentd_api::environment::SnapshotScope;
use agentd_api::repository::{RepositoryAction, RepositoryChanged, RepositorySpec, RepositoryState};
use agentd_api::session::ConditionType;
use agentd_environment::{SessionSnapshot, SnapshotPlace, SnapshotRequest};
use agentd_host::directories::make_private;
use agentd_host::git::{Git, GitError, Worktree};
use tokio::sync::{OnceCell, mpsc, oneshot};

use crate::bringup::{Failure, Progress};
use crate::launch_plan::LaunchPlan;
use agentd_api::chain;
use agentd_decide::repositories::{KnownRepository, RepositoryWork};

pub(crate) use changes::keep_places;
pub(crate) use permits::RepositoryPermits;

/// Directory of a workspace for results of the session.
pub(crate) const ARTIFACTS: &str = "artifacts";

/// Variables of the user's terminal.
type Variables = Vec<(String, Vec<u8>)>;

/// Work on the repositories of one session.
struct Work<'a> {
    plan: &'a LaunchPlan,
    report: &'a mpsc::Sender<Progress>,
    terminal: OnceCell<Variables>,
}

/// Creates a session's own workspace.
pub(crate) async fn make_workspace(path: PathBuf) -> io::Result<()> {
    let make = move || {
        if let Some(all) = path.parent() {
            make_private(all).map_err(io::Error::other)?;
        }
        make_private(&path).map_err(io::Error::other)?;
        // A link would lead the work on the repositories elsewhere.
        if !std::fs::symlink_metadata(&path)?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is a link"));
        }
        make_private(&path.join(ARTIFACTS)).map_err(io::Error::other)
    };
    agentd_host::work::blocking(make).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Does all that is due at a launch. The launch of a new session fails with the first failure, unless it is degraded.
/// Later launches continue, since the agent has worked without the repository. Returns the parts that were left out.
pub(crate) async fn of_launch(plan: &LaunchPlan, report: &mpsc::Sender<Progress>) -> Result<Vec<MissingPart>, Failure> {
    let work = Work::new(plan, report);
    let mut left_out = Vec::new();
    for due in plan.repositories.of_launch(&plan.spec) {
        let Err(error) = work.carry_out(&due).await else { continue };
        let message = format!("{}: {}", due.name(), error.message);
        if plan.degraded_by.is_some() {
            left_out.push(MissingPart { kind: MissingKind::Repository, name: due.name(), message: error.message });
        } else if plan.is_new {
            return Err(Failure { kind: ConditionType::RepositoriesReady, reason: error.reason, message });
        }
    }
    Ok(left_out)
}

/// Does the work on one repository of a running session.
pub(crate) async fn of_running(plan: &LaunchPlan, work: &RepositoryWork, report: &mpsc::Sender<Progress>) {
    // The record has the failure.
    let _ = Work::new(plan, report).carry_out(work).await;
}

impl<'a> Work<'a> {
    fn new(plan: &'a LaunchPlan, report: &'a mpsc::Sender<Progress>) -> Self {
        Self { plan, report, terminal: OnceCell::new() }
    }

    /// Does the work, and records its begin and its end.
    async fn carry_out(&self, work: &RepositoryWork) -> Result<(), GitError> {
        let _permit = self.plan.daemon.repositories.begin().await;
        let (spec, known, done) = match work {
            RepositoryWork::Provide { spec, known } => {
                let known = known.as_ref();
                (spec, known, self.provide(spec, known).await)
            }
            RepositoryWork::Remove { known, is_forced } => {
                (&known.spec, Some(known), self.remove(known, *is_forced).await)
            }
        };
        let Err((action, error)) = done else { return Ok(()) };
        tracing::warn!(repository = %spec.name(), reason = error.reason, "{error}");
        let state = if error.reason == agentd_api::reason::REPOSITORY_HAS_WORK {
            RepositoryState::Retained
        } else {
            RepositoryState::Failed
        };
        let changed = RepositoryChanged {
            reason: Some(error.reason.to_owned()),
            message: Some(error.message.clone()),
            ..self.record(spec, known, action, state)
        };
        self.say(changed).await;
        Err(error)
    }

    /// Makes a record about a repository.
    fn record(
        &self,
        spec: &RepositorySpec,
        known: Option<&KnownRepository>,
        action: RepositoryAction,
        state: RepositoryState,
    ) -> RepositoryChanged {
        RepositoryChanged {
            repository: spec.clone(),
            place: known.map_or_else(|| self.plan.root().join(spec.place()), |known| known.place.clone()),
            action,
            state,
            branch: known.and_then(|known| known.branch.clone()),
            commit: known.and_then(|known| known.commit.clone()),
            reason: None,
            message: None,
        }
    }

    /// Waits until the record is written. Work that is dropped does not continue.
    async fn say(&self, changed: RepositoryChanged) {
        let (go_on, may_go_on) = oneshot::channel();
        let sent = self.report.send(Progress::Repository { changed: Box::new(changed), go_on }).await;
        if sent.is_err() || may_go_on.await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the environment of the user's terminal, in which git finds the user's keys, proxies and helpers.
    async fn terminal(&self) -> &Variables {
        self.terminal.get_or_init(|| terminal(self.plan)).await
    }

    fn git<'b>(&'b self, terminal: &'b [(String, Vec<u8>)], hidden: &'b [Vec<u8>]) -> Git<'b> {
        let deadline = Instant::now() + self.plan.repository_settings.deadline.0;
        Git {
            machine: &self.plan.daemon.machine,
            keeper: &self.plan.daemon.programs.keeper,
            home: self.plan.home.as_deref(),
            terminal,
            hidden,
            deadline,
        }
    }

    /// Describes the worktree that the specification requests.
    fn worktree<'b>(&'b self, spec: &RepositorySpec, of: &'b Path, branch: &'b str) -> Worktree<'b> {
        Worktree { of, branch, is_own_branch: spec.branch.is_none(), session: self.plan.id.as_str() }
    }

    /// Returns the path beside the place under which the repository is made and removed.
    fn aside(&self, place: &Path, spec: &RepositorySpec) -> PathBuf {
        place.with_file_name(format!(".agentd-{}-{}", spec.name(), self.plan.id))
    }
}

/// Beginning of the branches that agentd chooses; the id of a session follows.
const OWN_BRANCHES: &str = "agentd/";

/// Returns the branch of a worktree. A worktree that the session continues has the branch of its first session.
fn branch_of(plan: &LaunchPlan, spec: &RepositorySpec) -> String {
    let present = || plan.repositories.known(&spec.name())?.branch.clone();
    let continued = || present().filter(|branch| plan.spec.parent.is_some() && branch.starts_with(OWN_BRANCHES));
    spec.branch.clone().or_else(continued).unwrap_or_else(|| format!("{OWN_BRANCHES}{}", plan.id))
}

/// Returns the environment of the user's terminal; without a login shell that works, an empty one.
pub(crate) async fn terminal(plan: &LaunchPlan) -> Variables {
    let home = plan.home.clone().unwrap_or_else(|| "/".into());
    let place = SnapshotPlace { directory: home, scope: Some(SnapshotScope::User) };
    let request = SnapshotRequest { place, ..plan.snapshot.clone() };
    let snapshot = SessionSnapshot::new(plan.snapshots.clone(), request);
    match snapshot.login(Instant::now() + plan.deadline).await {
        Ok(taken) => taken.variables.iter().cloned().collect(),
        Err(error) => {
            tracing::warn!(error = %chain(&error), "git and secrets do without the environment of the login shell");
            Variables::new()
        }
    }
}
