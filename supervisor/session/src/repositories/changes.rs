//! Changes the repositories of a session's specification. Nothing with unsaved work is removed unasked.

use agentd_api::prerequisite::Requester;
use agentd_api::repository::{RepositorySpec, RepositoryState, RepositoryView};
use agentd_api::session::{SessionSpec, SessionView};
use agentd_api::spec::{RepositoryTerms, SpecPatch};
use agentd_api::{Code, Problem};
use async_recursion::async_recursion as boxed;

use super::now::unsaved;
use crate::{ExpectedGeneration, Session, Sessions};

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

/// Refuses a change of the place or the kind of a repository.
pub(crate) fn keep_places(before: &SessionSpec, changed: &SessionSpec) -> Result<(), Problem> {
    for wanted in &changed.repos {
        let name = wanted.name();
        let Some(known) = before.repository(&name) else { continue };
        if known.place() != wanted.place() || known.local() != wanted.local() {
            let detail = format!("the `path` of the repository {name:?} does not change, nor whether it is a worktree");
            let hint = "remove the repository first, or add another one with another name";
            return Err(Problem::new(Code::InvalidRequest, detail).hint(hint));
        }
    }
    Ok(())
}

impl Sessions {
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
            match view.spec.repository(&name) {
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

    /// Refuses a changed specification without a repository that has unsaved work.
    pub(crate) async fn keep_work(
        &self,
        view: &SessionView,
        changed: &SessionSpec,
        terms: &RepositoryTerms,
    ) -> Result<(), Problem> {
        let generation = self.generations().now();
        let removed = view.status.repos.iter().filter(|known| {
            view.spec.repository(&known.name).is_some()
                && changed.repository(&known.name).is_none()
                && !terms.forced.contains(&known.name)
        });
        for known in removed {
            if let Some(unsaved) = unsaved(&generation, known).await {
                return Err(has_work(known, &unsaved));
            }
        }
        Ok(())
    }
}
