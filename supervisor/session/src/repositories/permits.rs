//! Bounds the work on repositories, and keeps sessions that use one local repository apart.

use std::path::{Path, PathBuf};

use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};

use crate::keyed_locks::KeyedLocks;

/// Maximum number of repositories that are worked on at once.
const AT_ONCE: usize = 8;

/// Permits for the work on repositories. The daemon has one instance.
#[derive(Debug)]
pub(crate) struct RepositoryPermits {
    all: Semaphore,
    local: KeyedLocks<PathBuf>,
}

impl Default for RepositoryPermits {
    fn default() -> Self {
        Self { all: Semaphore::new(AT_ONCE), local: KeyedLocks::default() }
    }
}

impl RepositoryPermits {
    /// Waits until the work on one more repository may begin.
    pub(super) async fn begin(&self) -> Option<SemaphorePermit<'_>> {
        self.all.acquire().await.ok()
    }

    /// Waits until no other work uses this local repository. git refuses to change one from two processes at once.
    pub(super) async fn alone(&self, local: &Path) -> OwnedMutexGuard<()> {
        self.local.lock(local.to_owned()).await
    }
}
