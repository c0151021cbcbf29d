//! Removes repositories: one that the specification no longer has, and those of a session that is removed.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::SessionId;
use agentd_api::reason;
use agentd_api::repository::{RepositoryAction, RepositoryChanged, RepositorySpec, RepositoryState};
use agentd_api::session::SessionSpec;
use agentd_api::workflow::in_force;
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

impl KeptDirectory {
    fn new(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), reason: reason.into() }
    }
}

/// Removes the worktrees and the workspace of a session that is being removed. Returns what stays, with the reason.
async fn at_removal(plan: &LaunchPlan, policy: AtRemoval) -> Vec<KeptDirectory> {
    let (report, _unread) = mpsc::channel(1);
    let work = Work::new(plan, &report);
    let git = work.git(&[], &[]);
    if plan.workspace.is_some() {
        return match policy {
            AtRemoval::Keep => vec![KeptDirectory::new(plan.root(), "workspaces.at_removal is \"keep\"")],
            AtRemoval::Remove => work.remove_workspace(&git).await,
        };
    }
    let mut kept = Vec::new();
    for known in plan.repositories.all() {
        kept.extend(work.remove_outside_workspace(&git, known).await.err());
    }
    kept
}

impl Work<'_> {
    /// Removes the session's worktree, or its clone that the specification does not have any more, and the remains of
    /// cut attempts.
    async fn remove_outside_workspace(&self, git: &Git<'_>, known: &KnownRepository) -> Result<(), KeptDirectory> {
        let located = self.locate_known(git, known).await?;
        let is_wanted = self.plan.spec.repository(&known.spec.name()).is_some();
        let is_worktree = known.spec.worktree;
        let goes = (is_worktree || !is_wanted) && self.is_own(git, known, &located).await;
        if goes {
            check_saved(git, &located).await?;
        }
        // Of a worktree whose files are gone, the repository still has the entry and the branch.
        let is_whole = goes || (is_worktree && located.found == Found::Nothing);
        let deleted = self.delete(git, &known.spec, &located.place, is_whole).await;
        deleted.map_err(|error| KeptDirectory::new(&located.place, error.message))
    }

    /// Removes the workspace as a whole, unless something in it must stay.
    async fn remove_workspace(&self, git: &Git<'_>) -> Vec<KeptDirectory> {
        let root = self.plan.root();
        let all = self.plan.repositories.all();
        let (mut kept, mut worktrees) = (Vec::new(), Vec::new());
        if is_missing(root.to_owned()).await {
            worktrees.extend(all.iter().filter(|known| known.spec.worktree).map(|known| (known, known.place.clone())));
        } else {
            for known in all {
                match self.check_in_workspace(git, known).await {
                    Ok(worktree) => worktrees.extend(worktree.map(|place| (known, place))),
                    Err(stays) => kept.push(stays),
                }
            }
            let places: Vec<PathBuf> = all.iter().map(|known| known.spec.place()).collect();
            match git.others(root, &places).await {
                Ok(others) => {
                    kept.extend(others.iter().map(|it| KeptDirectory::new(&root.join(it), "agentd did not make it")));
                }
                Err(error) => kept.push(KeptDirectory::new(root, error.message)),
            }
        }
        if !kept.is_empty() {
            return kept;
        }
        for (known, place) in worktrees {
            let deleted = self.delete(git, &known.spec, &place, true).await;
            kept.extend(deleted.err().map(|error| KeptDirectory::new(&place, error.message)));
        }
        if kept.is_empty() {
            let aside = root.with_file_name(format!(".removing-{}", self.plan.id));
            let removed = git.remove(root, &aside).await;
            kept.extend(removed.err().map(|error| KeptDirectory::new(root, error.message)));
        }
        kept
    }

    /// Checks that a repository in the workspace has no unsaved work. Returns the place of the session's worktree.
    async fn check_in_workspace(
        &self,
        git: &Git<'_>,
        known: &KnownRepository,
    ) -> Result<Option<PathBuf>, KeptDirectory> {
        let located = self.locate_known(git, known).await?;
        check_saved(git, &located).await?;
        let is_worktree =
            known.spec.worktree && (located.found == Found::Nothing || self.is_own(git, known, &located).await);
        Ok(is_worktree.then_some(located.place))
    }

    async fn locate_known(&self, git: &Git<'_>, known: &KnownRepository) -> Result<Located, KeptDirectory> {
        let located = git.locate(self.plan.root(), &known.spec.place()).await;
        located.map_err(|error| KeptDirectory::new(&known.place, error.message))
    }
}

/// Refuses a place that has work which exists only there.
async fn check_saved(git: &Git<'_>, located: &Located) -> Result<(), KeptDirectory> {
    let unsaved = match located.found {
        Found::Nothing => None,
        Found::Repository | Found::Worktree => match git.work(&located.place).await {
            Ok(work) => work.unsaved(),
            Err(error) => Some(error.message),
        },
        Found::Other => Some("it is no repository any more".to_owned()),
    };
    unsaved.map_or(Ok(()), |reason| Err(KeptDirectory::new(&located.place, reason)))
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
        if self.hand_over(generation, &mut plan).await {
            return;
        }
        for kept in at_removal(&plan, generation.config.workspaces.at_removal).await {
            tracing::warn!(
                agentd.session = %session.id(),
                "kept {} of the removed session: {}", kept.path.display(), kept.reason
            );
        }
    }
}

impl Sessions {
    /// Leaves repositories to other sessions that have them too. Returns whether another session has the workspace too,
    /// so that it stays.
    async fn hand_over(&self, generation: &Generation, plan: &mut LaunchPlan) -> bool {
        let directories = &generation.daemon.directories;
        let root = plan.root().to_owned();
        let mut heirs = Vec::new();
        self.each_view(|other| {
            let workspace = other.spec.workspace.as_ref().map(|it| directories.workspace(it.owner(&other.id)));
            if workspace.as_ref().unwrap_or(&other.spec.directory) == &root {
                heirs.push((other.id.clone(), Arc::clone(&other.spec)));
            }
        });
        let is_shared = plan.workspace.is_some() && !heirs.is_empty();
        let heir_of = |known: &KnownRepository| {
            let name = known.spec.name();
            let has_it = |spec: &SessionSpec| {
                in_force(spec, None, &[]).repository(&name).is_some_and(|it| it.place() == known.spec.place())
            };
            let heir = heirs.iter().find(|(_, spec)| has_it(spec)).or(heirs.first().filter(|_| is_shared));
            heir.map(|(id, _)| (known.clone(), id.clone()))
        };
        let handed: Vec<(KnownRepository, SessionId)> = plan.repositories.all().iter().filter_map(heir_of).collect();
        {
            let (report, _unread) = mpsc::channel(1);
            let work = Work::new(plan, &report);
            for (known, heir) in &handed {
                work.hand_over(known, heir).await;
            }
        }
        plan.repositories.retain(|known| !handed.iter().any(|(other, _)| other.spec.name() == known.spec.name()));
        is_shared
    }
}

impl Work<'_> {
    /// Notes in a repository that this session made that it belongs to another session.
    async fn hand_over(&self, known: &KnownRepository, heir: &SessionId) {
        let git = self.git(&[], &[]);
        let Ok(located) = self.locate_known(&git, known).await else { return };
        if located.maker.as_deref() != Some(self.plan.id.as_str()) {
            return;
        }
        // The other session may be at work on it.
        let _alone = self.plan.daemon.repositories.alone(&located.place).await;
        let place = located.place.display();
        match git.hand_over(&located.place, heir.as_str()).await {
            Ok(()) => tracing::info!(agentd.session = %self.plan.id, "{place} stays for the session {heir}"),
            Err(error) => tracing::warn!(agentd.session = %self.plan.id, "{error}"),
        }
    }
}

/// Reports whether nothing has this name.
async fn is_missing(path: PathBuf) -> bool {
    let look = move || std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    agentd_host::work::blocking(look).await.unwrap_or(false)
}
