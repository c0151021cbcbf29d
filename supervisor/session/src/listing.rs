//! Lists the published states of all sessions, without a copy of their views.

use std::sync::{Arc, Mutex, PoisonError};

use agentd_api::list::SessionSummary;
use async_recursion::async_recursion as boxed;

use super::{Published, Session, Sessions};

/// Maximum length in bytes of an item with named fields that is kept. 1,000 sessions keep at most 1 MB.
const LONGEST_KEPT: usize = 1 << 10;

impl Published {
    /// Number of this publication, which no other publication of this daemon has.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the session's item of a list as JSON. The first call makes the item.
    pub fn summary(&self) -> &[u8] {
        self.summary.get_or_init(|| serde_json::to_vec(&SessionSummary::of(&self.view)).unwrap_or_default().into())
    }

    /// Appends the session's item with the named fields, which `make` appends if it is not kept. The last short item
    /// is kept.
    ///
    /// # Errors
    ///
    /// `make` failed.
    pub fn item<E>(
        &self,
        fields: &Arc<str>,
        to: &mut Vec<u8>,
        make: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        // No code under this lock can leave the item inconsistent.
        let mut kept = self.item.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, item)) = kept.as_ref().filter(|(names, _)| names == fields) {
            to.extend_from_slice(item);
            return Ok(());
        }
        let begin = to.len();
        make(to)?;
        let item = &to[begin..];
        if item.len() <= LONGEST_KEPT {
            *kept = Some((Arc::clone(fields), item.into()));
        }
        Ok(())
    }
}

/// The sessions in the order of a list: by creation, and by id among equal times. Kept until the set of sessions
/// changes, because the sort costs more than the rest of a list.
#[derive(Debug, Default)]
pub(super) struct Order(Mutex<Option<Arc<[Session]>>>);

impl Order {
    /// Forgets the order. The set of sessions has changed before.
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the order of the sessions that `all` returns. A change during the call is forgotten afterwards.
    fn of(&self, all: impl FnOnce() -> Vec<Session>) -> Arc<[Session]> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let mut sessions = all();
            sessions.sort_by_cached_key(|session| (session.published.borrow().view.created, session.id.clone()));
            sessions.into()
        };
        Arc::clone(kept.get_or_insert_with(make))
    }
}

impl Session {
    /// Returns the published state, and does not copy it.
    pub fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published.borrow())
    }
}

impl Sessions {
    /// Returns the published states of all sessions in the order of creation, and of the ids among equal times.
    #[boxed]
    pub async fn published(&self) -> Vec<Arc<Published>> {
        self.whole().await;
        self.order.of(|| self.all_known()).iter().map(Session::published).collect()
    }

    /// Returns the number of the last change of any session. While the number stays, so does the list of sessions.
    pub fn last_change(&self) -> u64 {
        self.generations().now().daemon.view_changes.last()
    }
}
