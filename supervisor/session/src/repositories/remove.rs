//! Removes repositories: one that the specification no longer has, and those of a session that is removed.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::reason;
use agentd_api::repository::{RepositoryAction, RepositoryChanged, RepositorySpec, RepositoryState};
use agentd_config::AtRemoval;
use agentd_fault::Point;
use agentd_host::git::{Found, Git, GitError, Located};
use tokio::sync::mpsc;

use super::provide::{Failed, pass};
use super::{Work, branch_of};
use crate::generation::Generation;
use crate::launch_plan::LaunchPlan;
use crate::{Session, Sessions};
use agentd_decide::repositories::KnownRepository;
use agentd_decide::state::State;

impl Work<'_> {
    /// Removes a repository that this session made, unless it has unsaved work and the removal is not forced. Another
    /// one stays.
    pub(super) async fn remove(&self, known: &KnownRepository, is_forced: bool) -> Result<(), Failed> {
        let fail = |error| (RepositoryAction::Remove, error);
        let git = self.git(&[], &[]);
        let located = git.locate(self.plan.root(), &known.spec.place()).await.map_err(fail)?;
        let _alone = self.plan.daemon.repositories.alone(&located.place).await;
        let located = git.locate(self.plan.root(), &known.spec.place()).await.map_err(fail)?;
        let is_there = self.is_own(&git, known, &located).await;
        if is_there && !is_forced {
            let work = git.work(&located.place).await.map_err(fail)?;
            if let Some(unsaved) = work.unsaved() {
                let message = format!("{} has {unsaved}", located.place.display());
                return Err(fail(GitError { reason: reason::REPOSITORY_HAS_WORK, message }));
            }
        }
        // After a kill, the files can be gone already.
        let is_begun = known.action == RepositoryAction::Remove && known.state == RepositoryState::Working;
        let is_removed = is_there || (is_begun && located.found == Found::Nothing);
        if is_removed {
            let begun = self.record(&known.spec, Some(known), RepositoryAction::Remove, RepositoryState::Working);
            self.say(RepositoryChanged { place: located.place.clone(), ..begun }).await;
            pass(Point::DaemonRepositoryBegun).map_err(fail)?;
        }
        self.delete(&git, &known.spec, &located.place, is_removed).await.map_err(fail)?;
        pass(Point::DaemonRepositoryDone).map_err(fail)?;
        let stays = !is_removed && located.found != Found::Nothing;
        let removed = RepositoryChanged {
            message: stays.then(|| format!("{} stays: this session did not make it", located.place.display())),
            ..self.record(&known.spec, Some(known), RepositoryAction::Remove, RepositoryState::Removed)
        };
        self.say(removed).await;
        Ok(())
    }

    /// Reports whether this session made what is at the place.
    async fn is_own(&self, git: &Git<'_>, known: &KnownRepository, located: &Located) -> bool {
        if located.maker.as_deref() != Some(self.plan.id.as_str()) {
            return false;
        }
        match (known.spec.local(), located.found) {
            (None, Found::Repository) => true,
            (Some(of), Found::Worktree) => {
                let branch = branch_of(self.plan, &known.spec);
                git.belongs(&self.worktree(&known.spec, of, &branch), &located.place).await.is_ok()
            }
            _ => false,
        }
    }

    /// Deletes the remains of a cut attempt and, with `is_whole`, the repository.
    async fn delete(&self, git: &Git<'_>, spec: &RepositorySpec, place: &Path, is_whole: bool) -> Result<(), GitError> {
        let aside = self.aside(place, spec);
        let Some(of) = spec.local() else {
            let from = if is_whole { place } else { &aside };
            return git.remove(from, &aside).await;
        };
        let branch = branch_of(self.plan, spec);
        let _alone = self.plan.daemon.repositories.alone(of).await;
        let worktree = self.worktree(spec, of, &branch);
        if is_whole {
            git.remove_worktree(&worktree, place, &aside).await
        } else {
            git.discard_worktree(&worktree, &aside).await
        }
    }
}

/// A directory that stays after the removal of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeptDirectory {
    path: PathBuf,
    reason: String,
}

/// Removes the worktrees and the workspace of a session that is being removed. Returns what stays, with the reason.
async fn at_removal(plan: &LaunchPlan, policy: AtRemoval) -> Vec<KeptDirectory> {
    let (report, _nobody) = mpsc::channel(1);
    let work = Work::new(plan, &report);
    let git = work.git(&[], &[]);
    let root = plan.root().to_owned();
    let is_workspace = plan.workspace.is_some();
    if is_workspace && policy == AtRemoval::Keep {
        return vec![KeptDirectory { path: root, reason: "workspaces.at_removal is \"keep\"".to_owned() }];
    }
    let mut kept = Vec::new();
    let mut keep = |path: &Path, reason: String| kept.push(KeptDirectory { path: path.to_owned(), reason });
    let is_gone = is_workspace && is_missing(root.clone()).await;
    let mut worktrees = Vec::new();
    for known in plan.repositories.all() {
        let located = if is_gone {
            Ok(Located { place: known.place.clone(), found: Found::Nothing, maker: None })
        } else {
            git.locate(&root, &known.spec.place()).await
        };
        let located = match located {
            Ok(located) => located,
            Err(error) => {
                keep(&known.place, error.message);
                continue;
            }
        };
        let is_own = work.is_own(&git, known, &located).await;
        let is_worktree = known.spec.worktree && (is_own || located.found == Found::Nothing);
        let is_wanted = plan.spec.repository(&known.spec.name()).is_some();
        let goes = if is_workspace { located.found != Found::Nothing } else { is_own && (is_worktree || !is_wanted) };
        let unsaved = match located.found {
            _ if !goes => None,
            Found::Repository | Found::Worktree => match git.work(&located.place).await {
                Ok(repository) => repository.unsaved(),
                Err(error) => Some(error.message),
            },
            Found::Other => Some("it is no repository any more".to_owned()),
            Found::Nothing => None,
        };
        match unsaved {
            Some(reason) => keep(&located.place, reason),
            None if is_worktree => worktrees.push((known, located)),
            None if !is_workspace => {
                // The rest of a removal that was not done, or of a cut attempt.
                if let Err(error) = work.delete(&git, &known.spec, &located.place, goes).await {
                    keep(&located.place, error.message);
                }
            }
            None => {}
        }
    }
    if is_workspace && !is_gone {
        let known: Vec<PathBuf> = plan.repositories.all().iter().map(|known| known.spec.place()).collect();
        match git.others(&root, &known).await {
            Ok(others) => others.iter().for_each(|path| keep(&root.join(path), "agentd did not make it".to_owned())),
            Err(error) => keep(&root, error.message),
        }
    }
    // A workspace goes or stays as a whole.
    if is_workspace && !kept.is_empty() {
        return kept;
    }
    for (known, located) in worktrees {
        if let Err(error) = work.delete(&git, &known.spec, &located.place, true).await {
            kept.push(KeptDirectory { path: located.place, reason: error.message });
        }
    }
    if is_workspace && kept.is_empty() {
        let aside = root.with_file_name(format!(".removing-{}", plan.id));
        if let Err(error) = git.remove(&root, &aside).await {
            kept.push(KeptDirectory { path: root, reason: error.message });
        }
    }
    kept
}

impl Sessions {
    /// Removes the worktrees and the workspace of a session that is being removed, and logs what stays.
    pub(crate) async fn remove_repositories(&self, generation: &Arc<Generation>, session: &Session, state: &State) {
        let view = session.view();
        if view.spec.workspace.is_none() && state.repositories.all().is_empty() {
            return;
        }
        let mut plan = LaunchPlan::new(generation, session.id(), &view.spec, state.launches);
        plan.repositories = state.repositories.clone();
        for kept in at_removal(&plan, generation.config.workspaces.at_removal).await {
            tracing::warn!(
                agentd.session = %session.id(),
                "kept {} of the removed session: {}", kept.path.display(), kept.reason
            );
        }
    }
}

/// Reports whether nothing has this name.
async fn is_missing(path: PathBuf) -> bool {
    let look = move || std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    agentd_host::work::blocking(look).await.unwrap_or(false)
}
