//! The driver's view of a connection to a keeper.

use std::fmt;

use agentd_keeper::protocol::{FromKeeper, Hello, Hide, Tail, ToKeeper};
use async_trait::async_trait;

use super::LinkError;

/// A connection to a keeper. [`super::Link`] is one to a keeper's process. Dropping the value closes it.
#[async_trait]
pub(crate) trait Connection: fmt::Debug + Send + Sync {
    /// Returns the keeper's greeting.
    fn hello(&self) -> &Hello;

    /// Returns the process that listens on the socket, if the system reports it.
    fn peer(&self) -> Option<u32>;

    /// Sends a request and waits for its answer. After [`LinkError::Silent`] the connection must not be used again,
    /// and the request may still be carried out.
    async fn call(&mut self, request: &ToKeeper) -> Result<FromKeeper, LinkError>;

    /// Returns the sequence number up to which the keeper has announced its journal.
    fn reach(&self) -> u64;

    /// Returns the keeper's last report about its journal.
    fn tail(&self) -> Tail;

    /// Waits for the next report about the journal. Fails when the connection is lost.
    async fn grown(&mut self) -> Result<Tail, LinkError>;

    /// Tests whether the keeper answers. A keeper of any version answers this request, at least with a refusal.
    async fn answers(&mut self) -> Result<(), LinkError> {
        match self.call(&ToKeeper::Hide(Hide { secrets: Vec::new() })).await {
            Ok(_) | Err(LinkError::Refused { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
