//! Bounds the work on repositories, and keeps sessions that use one local repository apart.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};

/// Maximum number of repositories that are worked on at once.
const AT_ONCE: usize = 8;

/// Permits for the work on repositories. The daemon has one instance.
#[derive(Debug)]
pub(crate) struct RepositoryPermits {
    all: Semaphore,
    local: Mutex<HashMap<PathBuf, Weak<tokio::sync::Mutex<()>>>>,
}

impl Default for RepositoryPermits {
    fn default() -> Self {
        Self { all: Semaphore::new(AT_ONCE), local: Mutex::default() }
    }
}

impl RepositoryPermits {
    /// Waits until the work on one more repository may begin.
    pub(super) async fn begin(&self) -> Option<SemaphorePermit<'_>> {
        self.all.acquire().await.ok()
    }

    /// Waits until no other work uses this local repository. git refuses to change one from two processes at once.
    pub(super) async fn alone(&self, local: &Path) -> OwnedMutexGuard<()> {
        let lock = {
            let mut known = self.local.lock().unwrap_or_else(PoisonError::into_inner);
            known.retain(|_, lock| lock.strong_count() > 0);
            let lock = known.get(local).and_then(Weak::upgrade).unwrap_or_default();
            known.insert(local.to_owned(), Arc::downgrade(&lock));
            lock
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_local_repository_is_used_by_one_at_a_time() {
        let permits = RepositoryPermits::default();
        let first = permits.alone(Path::new("/a")).await;
        let _other = permits.alone(Path::new("/b")).await;
        let waiting = permits.alone(Path::new("/a"));
        tokio::pin!(waiting);
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("it is used"),
            () = std::future::ready(()) => {}
        }
        drop(first);
        drop(waiting.await);
        drop(permits.alone(Path::new("/c")).await);
        assert!(!permits.local.lock().unwrap().contains_key(Path::new("/a")), "unused locks are dropped");
    }
}
