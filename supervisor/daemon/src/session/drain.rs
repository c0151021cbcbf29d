//! Draining: whatever is active is stopped in order, for as long as the daemon is drained.
//!
//! Looked at again and again, so that a launch that began in the moment before is found too: nothing has to be told of every way in which a
//! session becomes active. That none is begun by a request or after a crash is [`super::registry`]'s and the driver's care.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::SessionId;
use agentd_api::drain::{ActiveSession, DrainView};
use agentd_api::event::{Cause, StopRequested};
use agentd_api::prerequisite::Requester;
use agentd_api::session::Phase;
use tokio::task::JoinHandle;

use super::registry::Sessions;
use super::rules::Command;

/// How often it is looked what is active.
const LOOK: Duration = Duration::from_millis(100);

impl Sessions {
    /// Begins to stop every session; none is launched from now on.
    pub(crate) fn drain(self: &Arc<Self>, by: Requester) {
        let reason = format!("agentd is drained, as {by} asked");
        if self.worlds().now().drain.begin(by.clone()) {
            tracing::info!("{reason}: every session is stopped, and none is launched");
            // A session that waits to be started again does so no more.
            self.worlds().touch();
            let cause = Cause::call(by);
            tokio::spawn(Arc::clone(self).stop_all(StopRequested { reason, cause }));
        }
    }

    /// Lets sessions be launched again. Those that were stopped stay so.
    pub(crate) fn undo_drain(&self) {
        if self.worlds().now().drain.undo() {
            tracing::info!("agentd is not drained any more: sessions can be launched");
            self.worlds().touch();
        }
    }

    pub(crate) fn drain_view(&self) -> DrainView {
        let draining = self.worlds().now().drain.now();
        let active = self.running().into_iter().map(|session| {
            let view = session.view();
            ActiveSession { id: view.id, name: view.spec.name, phase: view.status.phase }
        });
        DrainView {
            draining: draining.is_some(),
            since: draining.as_ref().map(|draining| draining.since),
            by: draining.map(|draining| draining.by),
            active: active.collect(),
        }
    }

    /// Waits until no session is active, or the drain is undone.
    pub(crate) async fn drained(&self) {
        self.are_current().await;
        let stopped = async {
            while let Some(session) = self.running().into_iter().next() {
                session.wait_until(|view| !view.status.phase.is_active()).await;
            }
        };
        let world = self.worlds().now();
        tokio::select! {
            () = stopped => {}
            () = world.drain.undone() => {}
        }
    }

    async fn stop_all(self: Arc<Self>, stop: StopRequested) {
        let world = self.worlds().now();
        // One that does not take what it is asked holds up no other, and is asked once at a time.
        let mut asked: BTreeMap<SessionId, JoinHandle<()>> = BTreeMap::new();
        loop {
            asked.retain(|_, asking| !asking.is_finished());
            for session in self.running() {
                if session.view().status.phase == Phase::Stopping || asked.contains_key(session.id()) {
                    continue;
                }
                let (id, StopRequested { reason, cause }) = (session.id().clone(), stop.clone());
                // It may end by itself in this moment, and that is as good.
                let asking = async move { drop(session.ask(Command::Stop { reason, cause }).await) };
                asked.insert(id, tokio::spawn(asking));
            }
            tokio::select! {
                () = world.drain.undone() => return,
                () = world.shutdown.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}
