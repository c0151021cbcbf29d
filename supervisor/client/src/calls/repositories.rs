//! Calls on the git repositories of sessions.

use std::time::Duration;

use agentd_api::repository::{RepositoryList, RepositorySpec};
use agentd_api::route::call;

use crate::client::{BUILDING, Client, Document, waiting};
use crate::error::Error;

impl Client {
    /// Lists the repositories of a session.
    pub async fn repositories(&self, id: &str) -> Result<Document<RepositoryList>, Error> {
        self.ask_for(call::Repositories { session: id.to_owned() }, BUILDING).await
    }

    /// Adds a repository. `now` does so during a turn too.
    pub async fn add_repository(
        &self,
        id: &str,
        repository: &RepositorySpec,
        now: bool,
        wait: Option<Duration>,
    ) -> Result<Document<RepositoryList>, Error> {
        let call = call::AddRepository { session: id.to_owned(), now: now.then_some(true), wait: waiting(wait) };
        self.send(call, repository, BUILDING + wait.unwrap_or_default()).await
    }

    /// Removes a repository and its files.
    pub async fn remove_repository(
        &self,
        id: &str,
        name: &str,
        (force, now): (bool, bool),
        wait: Option<Duration>,
    ) -> Result<Document<RepositoryList>, Error> {
        let call = call::RemoveRepository {
            session: id.to_owned(),
            repository: name.to_owned(),
            force: force.then_some(true),
            now: now.then_some(true),
            wait: waiting(wait),
        };
        self.ask_for(call, BUILDING + wait.unwrap_or_default()).await
    }
}
