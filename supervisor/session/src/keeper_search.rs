//! The wait for a keeper that holds the journal and does not answer.
//!
//! This module does not know how a keeper is reached. The driver starts the task that looks for the keeper.

use jiff::Timestamp;
use tokio::task::JoinHandle;

use crate::launch::Connection;

/// Task that waits for a keeper to answer, beside the driver. Dropping the value ends the task.
#[derive(Debug)]
pub(crate) struct KeeperSearch {
    task: JoinHandle<Option<Box<dyn Connection>>>,
    pub(crate) since: Timestamp,
    /// Sequence number up to which the journal may be read; see [`crate::journal_port::Port::reach`].
    pub(crate) reach: u64,
}

impl KeeperSearch {
    /// Owns a task that ends with the connection to the keeper, or with `None` when the keeper is gone.
    pub(crate) fn new(task: JoinHandle<Option<Box<dyn Connection>>>, reach: u64) -> Self {
        Self { task, since: Timestamp::now(), reach }
    }

    /// Returns the connection to the keeper, or `None` when the keeper is gone.
    pub(crate) async fn found(&mut self) -> Option<Box<dyn Connection>> {
        // After a panic of the task the driver looks for the keeper itself.
        (&mut self.task).await.ok().flatten()
    }
}

impl Drop for KeeperSearch {
    fn drop(&mut self) {
        self.task.abort();
    }
}
