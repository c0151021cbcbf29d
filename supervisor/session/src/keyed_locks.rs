//! Locks by key: work on one thing waits for other work on it, and for nothing else.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// One lock for each key that is in use.
#[derive(Debug)]
pub(crate) struct KeyedLocks<K>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>);

impl<K> Default for KeyedLocks<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq> KeyedLocks<K> {
    /// Waits until no other guard of this key lives.
    pub(crate) async fn lock(&self, key: K) -> OwnedMutexGuard<()> {
        let lock = {
            // No code under this lock can leave the map inconsistent.
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.retain(|_, lock| lock.strong_count() > 0);
            let lock = known.get(&key).and_then(Weak::upgrade).unwrap_or_default();
            known.insert(key, Arc::downgrade(&lock));
            lock
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_key_has_one_guard_at_a_time() {
        let locks = KeyedLocks::default();
        let first = locks.lock("a").await;
        let _other = locks.lock("b").await;
        let waiting = locks.lock("a");
        tokio::pin!(waiting);
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("it is in use"),
            () = std::future::ready(()) => {}
        }
        drop(first);
        drop(waiting.await);
        drop(locks.lock("c").await);
        assert!(!locks.0.lock().unwrap().contains_key("a"), "unused locks are dropped");
    }
}
