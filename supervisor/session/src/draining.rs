//! Whether the daemon is drained, since when and by which requester. `drain.rs` stops the sessions.

use agentd_api::prerequisite::Requester;
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use tokio::sync::watch;

/// Drain state of one daemon. It is not stored: the next daemon launches sessions again.
#[derive(Debug, Default)]
pub struct DrainState {
    state: watch::Sender<Option<ActiveDrain>>,
}

/// A drain in effect.
#[derive(Debug, Clone)]
pub struct ActiveDrain {
    pub since: Timestamp,
    pub by: Requester,
}

impl DrainState {
    pub fn now(&self) -> Option<ActiveDrain> {
        self.state.borrow().clone()
    }

    pub fn is_on(&self) -> bool {
        self.state.borrow().is_some()
    }

    /// Begins a drain, and reports whether none was in effect before. The first requester is remembered.
    pub fn begin(&self, by: Requester) -> bool {
        self.state.send_if_modified(|state| {
            let is_new = state.is_none();
            if is_new {
                *state = Some(ActiveDrain { since: Timestamp::now(), by });
            }
            is_new
        })
    }

    /// Ends the drain, and reports whether one was in effect.
    pub fn undo(&self) -> bool {
        self.state.send_if_modified(|state| state.take().is_some())
    }

    /// Waits until no drain is in effect.
    #[boxed]
    pub async fn undone(&self) {
        // `self` owns the sender, so the channel is open.
        let _ = self.state.subscribe().wait_for(Option::is_none).await;
    }
}
