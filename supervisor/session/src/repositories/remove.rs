//! Removes repositories: one that the specification no longer has, and those of a session that is removed.

use std::path::{Path, PathBuf};

use agentd_api::reason;
use agentd_api::repository::{RepositoryAction, RepositoryChanged, RepositorySpec, RepositoryState};
use agentd_config::AtRemoval;
use agentd_fault::Point;
use agentd_host::git::{Found, Git, GitError, Worktree};
use tokio::sync::mpsc;

use super::provide::{Failed, pass};
use super::{Work, branch_of};
use crate::launch_plan::LaunchPlan;
use agentd_decide::repositories::KnownRepository;

impl Work<'_> {
    /// Removes a repository, unless it has unsaved work and the removal is not forced.
    pub(super) async fn remove(&self, known: &KnownRepository, is_forced: bool) -> Result<(), Failed> {
        let fail = |error| (RepositoryAction::Remove, error);
        let git = self.git(&[], &[]);
        let located = git.locate(self.plan.root(), &known.spec.place()).await.map_err(fail)?;
        // Something that is no repository any more, or that the session has never used, stays.
        let is_there = known.is_own() && matches!(located.found, Found::Repository | Found::Worktree);
        let is_ours = is_there || (known.is_own() && located.found == Found::Nothing);
        if is_there && !is_forced {
            let work = git.work(&located.place, known.spec.worktree).await.map_err(fail)?;
            if let Some(unsaved) = work.unsaved() {
                let message = format!("{} has {unsaved}", located.place.display());
                return Err(fail(GitError { reason: reason::REPOSITORY_HAS_WORK, message }));
            }
        }
        if is_ours {
            let begun = self.record(&known.spec, Some(known), RepositoryAction::Remove, RepositoryState::Working);
            self.say(RepositoryChanged { place: located.place.clone(), ..begun }).await;
            pass(Point::DaemonRepositoryBegun).map_err(fail)?;
        }
        self.delete(&git, &known.spec, &located.place, is_ours).await.map_err(fail)?;
        pass(Point::DaemonRepositoryDone).map_err(fail)?;
        let removed = self.record(&known.spec, Some(known), RepositoryAction::Remove, RepositoryState::Removed);
        self.say(removed).await;
        Ok(())
    }

    /// Deletes what an attempt left under the temporary name and, if it is the session's, the repository.
    async fn delete(&self, git: &Git<'_>, spec: &RepositorySpec, place: &Path, is_ours: bool) -> Result<(), GitError> {
        let aside = self.aside(place, spec);
        match spec.local() {
            Some(of) if is_ours => {
                let branch = branch_of(self.plan, spec);
                let _alone = self.plan.daemon.repositories.alone(of).await;
                git.remove_worktree(&Worktree { of, branch: &branch }, place, &aside, spec.branch.is_none()).await
            }
            _ if is_ours => git.remove(place, &aside).await,
            _ => self.discard(git, spec, &aside).await,
        }
    }

    /// Deletes what a cut attempt left under the temporary name.
    async fn discard(&self, git: &Git<'_>, spec: &RepositorySpec, aside: &Path) -> Result<(), GitError> {
        let Some(of) = spec.local() else { return git.remove(aside, aside).await };
        let _alone = self.plan.daemon.repositories.alone(of).await;
        git.discard_worktree(of, aside).await
    }
}

/// A directory that stays after the removal of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptDirectory {
    pub(crate) path: PathBuf,
    pub(crate) reason: String,
}

/// Removes the worktrees and the workspace of a session that is being removed. Returns what stays, with the reason.
pub(crate) async fn at_removal(plan: &LaunchPlan, policy: AtRemoval) -> Vec<KeptDirectory> {
    let (report, _nobody) = mpsc::channel(1);
    let work = Work::new(plan, &report);
    let git = work.git(&[], &[]);
    let is_own = plan.workspace.is_some();
    let mut kept = Vec::new();
    if is_own && policy == AtRemoval::Keep {
        let path = plan.root().to_owned();
        return vec![KeptDirectory { path, reason: "workspaces.at_removal is \"keep\"".to_owned() }];
    }
    let all = plan.repositories.all();
    let mut clean = Vec::new();
    // Attempts that were cut and not repeated.
    for known in all.iter().filter(|known| known.state != RepositoryState::Ready) {
        let aside = work.aside(&known.place, &known.spec);
        if let Err(error) = work.discard(&git, &known.spec, &aside).await {
            kept.push(KeptDirectory { path: aside, reason: error.message });
        }
    }
    for known in all.iter().filter(|known| is_own || (known.spec.worktree && known.is_own())) {
        let found = git.locate(plan.root(), &known.spec.place()).await.map(|located| located.found);
        let unsaved = match found {
            Ok(Found::Repository | Found::Worktree) => match git.work(&known.place, known.spec.worktree).await {
                Ok(repository) => repository.unsaved(),
                Err(error) => Some(error.message),
            },
            Ok(_) => None,
            Err(error) => Some(error.message),
        };
        match unsaved {
            Some(reason) => kept.push(KeptDirectory { path: known.place.clone(), reason }),
            None => clean.push(known),
        }
    }
    // The workspace goes or stays as a whole.
    if !is_own || kept.is_empty() {
        for known in clean.into_iter().filter(|known| known.spec.worktree) {
            if let Err(error) = work.delete(&git, &known.spec, &known.place, true).await {
                kept.push(KeptDirectory { path: known.place.clone(), reason: error.message });
            }
        }
    }
    if is_own && kept.is_empty() {
        let aside = plan.root().with_file_name(format!(".removing-{}", plan.id));
        if let Err(error) = git.remove(plan.root(), &aside).await {
            kept.push(KeptDirectory { path: plan.root().to_owned(), reason: error.message });
        }
    }
    kept
}
