//! Whether the daemon is drained, and since when and for whom. What that means for sessions is `session/drain.rs`.

use agentd_api::prerequisite::Requester;
use jiff::Timestamp;
use tokio::sync::watch;

/// One daemon's. It is gone with it: the next one launches again.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    state: watch::Sender<Option<Draining>>,
}

/// That it is.
#[derive(Debug, Clone)]
pub(crate) struct Draining {
    pub(crate) since: Timestamp,
    pub(crate) by: Requester,
}

impl Drain {
    pub(crate) fn now(&self) -> Option<Draining> {
        self.state.borrow().clone()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.state.borrow().is_some()
    }

    /// Whether it was not on before; who asked first is remembered.
    pub(crate) fn begin(&self, by: Requester) -> bool {
        self.state.send_if_modified(|state| {
            let is_new = state.is_none();
            if is_new {
                *state = Some(Draining { since: Timestamp::now(), by });
            }
            is_new
        })
    }

    /// Whether it was on before.
    pub(crate) fn undo(&self) -> bool {
        self.state.send_if_modified(|state| state.take().is_some())
    }

    /// Waits until it is undone.
    pub(crate) async fn undone(&self) {
        // The sender is ours, and so is not gone.
        let _ = self.state.subscribe().wait_for(Option::is_none).await;
    }
}
