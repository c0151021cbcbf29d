//! Reads the present state of a session's repositories for clients.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::prerequisite::Requester;
use agentd_api::repository::{RepositoryList, RepositorySpec, RepositoryState, RepositoryView};
use agentd_api::session::{SessionSpec, SessionView};
use agentd_api::spec::{RepositoryTerms, SpecPatch};
use agentd_api::{Code, Problem};
use agentd_host::git::{Git, RepositoryWork};
use async_recursion::async_recursion as boxed;

use super::remove::at_removal;
use crate::generation::Generation;
use crate::launch_plan::LaunchPlan;
use crate::{ExpectedGeneration, Session, Sessions};
use agentd_decide::state::State;

/// Time limit for reading one repository.
const READ: Duration = Duration::from_secs(5);

async fn work(generation: &Generation, view: &RepositoryView) -> Result<RepositoryWork, String> {
    let home = generation.config.environment.home_directory();
    let git = Git {
        machine: &generation.daemon.machine,
        keeper: &generation.daemon.programs.keeper,
        home: home.as_deref(),
        terminal: &[],
        hidden: &[],
        deadline: std::time::Instant::now() + READ,
    };
    git.work(&view.place).await.map_err(|error| error.message)
}

/// Reports whether files of the repository are at its place.
fn is_there(view: &RepositoryView) -> bool {
    matches!(view.state, RepositoryState::Ready | RepositoryState::Retained)
}

/// Returns the unsaved work of a repository; an error of the reading counts as such.
async fn unsaved(generation: &Generation, view: &RepositoryView) -> Option<String> {
    if !is_there(view) {
        return None;
    }
    match work(generation, view).await {
        Ok(work) => work.unsaved(),
        Err(message) => Some(message),
    }
}

fn has_work(view: &RepositoryView, unsaved: &str) -> Problem {
    let detail = format!("the repository {:?} at {} has {unsaved}", view.name, view.place.display());
    Problem::new(Code::RepositoryHasWork, detail).hint(HAS_WORK_HINT)
}

const HAS_WORK_HINT: &str = "save the work elsewhere, or remove the repository with force";

/// Returns the patch that replaces the repositories of a specification.
fn patch_of(repos: &[RepositorySpec]) -> Result<SpecPatch, Problem> {
    let repos = serde_json::to_value(repos).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    Ok(SpecPatch(serde_json::Map::from_iter([("repos".to_owned(), repos)])))
}

impl Sessions {
    /// Returns the session's repositories with what is checked out now.
    #[boxed]
    pub async fn repositories(&self, session: &Session) -> RepositoryList {
        let generation = self.generations().now();
        let mut repos = session.view().status.repos.clone();
        for view in repos.iter_mut().filter(|view| is_there(view)) {
            match work(&generation, view).await {
                Ok(work) => {
                    (view.ahead, view.dirty, view.unsaved) = (Some(work.ahead), Some(work.dirty), work.unsaved());
                    (view.branch, view.commit) = (work.facts.branch, work.facts.head);
                }
                Err(message) => view.message = Some(message),
            }
        }
        RepositoryList { repos }
    }

    /// Adds a repository to the session's specification. One that is there with the same fields changes nothing.
    #[boxed]
    pub async fn add_repository(
        &self,
        session: &Session,
        repository: RepositorySpec,
        at_once: bool,
        requester: Requester,
    ) -> Result<(), Problem> {
        let make = |view: &SessionView| {
            let mut repos = view.spec.repos.clone();
            let name = repository.name();
            match repos.iter().find(|known| known.name() == name) {
                Some(known) if *known != repository => {
                    let detail = format!("the session has another repository with the name {name:?}");
                    return Err(Problem::new(Code::NameTaken, detail).hint("give the repository another `name`"));
                }
                Some(_) => {}
                None => repos.push(repository),
            }
            Ok((patch_of(&repos)?, RepositoryTerms { at_once, forced: Vec::new() }))
        };
        self.change_spec_with(session, make, ExpectedGeneration::Any, requester).await.map(drop)
    }

    /// Removes a repository from the session's specification. Its files are removed afterwards.
    #[boxed]
    pub async fn remove_repository(
        &self,
        session: &Session,
        name: &str,
        (is_forced, at_once): (bool, bool),
        requester: Requester,
    ) -> Result<(), Problem> {
        let make = |view: &SessionView| {
            let retained = view.status.repos.iter().find(|known| known.name == name);
            let mut repos = view.spec.repos.clone();
            repos.retain(|known| known.name() != name);
            if repos.len() == view.spec.repos.len() {
                let Some(known) = retained else {
                    let detail = format!("the session has no repository {name:?}");
                    return Err(Problem::new(Code::NoSuchRepository, detail).hint("`agentctl repo ls` lists them"));
                };
                if !is_forced && known.state == RepositoryState::Retained {
                    let detail = known.message.clone().unwrap_or_else(|| format!("{name:?} has unsaved work"));
                    return Err(Problem::new(Code::RepositoryHasWork, detail).hint(HAS_WORK_HINT));
                }
            }
            let forced = is_forced.then(|| name.to_owned()).into_iter().collect();
            Ok((patch_of(&repos)?, RepositoryTerms { at_once, forced }))
        };
        self.change_spec_with(session, make, ExpectedGeneration::Any, requester).await.map(drop)
    }

    /// Refuses a change of the place or the kind of a repository.
    pub(crate) fn keep_places(view: &SessionView, changed: &SessionSpec) -> Result<(), Problem> {
        for wanted in &changed.repos {
            let name = wanted.name();
            let is_other = |known: &&RepositorySpec| {
                known.name() == name && (known.place() != wanted.place() || known.local() != wanted.local())
            };
            if view.spec.repos.iter().any(|known| is_other(&known)) {
                let detail =
                    format!("the `path` of the repository {name:?} does not change, nor whether it is a worktree");
                let hint = "remove the repository first, or add another one with another name";
                return Err(Problem::new(Code::InvalidRequest, detail).hint(hint));
            }
        }
        Ok(())
    }

    /// Refuses a changed specification without a repository that has unsaved work.
    pub(crate) async fn keep_work(
        &self,
        view: &SessionView,
        changed: &SessionSpec,
        terms: &RepositoryTerms,
    ) -> Result<(), Problem> {
        let generation = self.generations().now();
        let has = |spec: &SessionSpec, name: &str| spec.repos.iter().any(|wanted| wanted.name() == name);
        let removed = view.status.repos.iter().filter(|known| {
            has(&view.spec, &known.name) && !has(changed, &known.name) && !terms.forced.contains(&known.name)
        });
        for known in removed {
            if let Some(unsaved) = unsaved(&generation, known).await {
                return Err(has_work(known, &unsaved));
            }
        }
        Ok(())
    }

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
