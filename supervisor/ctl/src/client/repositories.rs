//! Calls on the git repositories of sessions.

use std::time::Duration;

use agentd_api::Call;
use agentd_api::repository::{RepositoryList, RepositorySpec};

use super::{BUILDING, Client, Document, waiting};
use crate::error::Error;

impl Client {
    pub(crate) async fn repositories(&self, id: &str) -> Result<Document<RepositoryList>, Error> {
        self.fetch(&Call::Repositories { session: id.to_owned() }, BUILDING).await
    }

    pub(crate) async fn add_repository(
        &self,
        id: &str,
        repository: &RepositorySpec,
        now: bool,
        wait: Option<Duration>,
    ) -> Result<Document<RepositoryList>, Error> {
        let call = Call::AddRepository { session: id.to_owned(), now: now.then_some(true), wait: waiting(wait) };
        self.submit(&call, repository, BUILDING + wait.unwrap_or_default()).await
    }

    pub(crate) async fn remove_repository(
        &self,
        id: &str,
        name: &str,
        (force, now): (bool, bool),
        wait: Option<Duration>,
    ) -> Result<Document<RepositoryList>, Error> {
        let call = Call::RemoveRepository {
            session: id.to_owned(),
            repository: name.to_owned(),
            force: force.then_some(true),
            now: now.then_some(true),
            wait: waiting(wait),
        };
        self.fetch(&call, BUILDING + wait.unwrap_or_default()).await
    }
}
