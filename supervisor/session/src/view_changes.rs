//! Counts the changes of published views, so that an unchanged list of all sessions is known as such.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counter of changes of published views, and of the set of sessions.
#[derive(Debug, Default)]
pub(crate) struct ViewChanges(AtomicU64);

impl ViewChanges {
    /// Counts a change and returns its number, which no other change has. A change is counted once everyone sees it.
    pub(crate) fn count(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns the number of the last change. A list that is made afterwards contains that change.
    pub(crate) fn last(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
