//! Reads the present state of a session's repositories for clients.

use std::time::Duration;

use agentd_api::repository::{RepositoryList, RepositoryState, RepositoryView};
use agentd_host::git::{Git, RepositoryWork};
use async_recursion::async_recursion as boxed;

use crate::generation::Generation;
use crate::{Session, Sessions};

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
pub(super) async fn unsaved(generation: &Generation, view: &RepositoryView) -> Option<String> {
    if !is_there(view) {
        return None;
    }
    match work(generation, view).await {
        Ok(work) => work.unsaved(),
        Err(message) => Some(message),
    }
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
}
