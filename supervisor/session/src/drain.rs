//! Draining: stops every active session gracefully, for as long as the daemon is drained.
//!
//! The loop looks for active sessions repeatedly, so it also finds a launch that began just before the drain. The
//! registry ([`super::registry`]) and the drivers prevent further launches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::SessionId;
use agentd_api::drain::{ActiveSession, DrainView};
use agentd_api::event::{Cause, StopRequested};
use agentd_api::feed::{DrainBegun, DrainUndone, Notice};
use agentd_api::prerequisite::Requester;
use agentd_api::session::Phase;
use async_recursion::async_recursion as boxed;
use tokio::task::JoinHandle;

use super::registry::Sessions;
use agentd_decide::rules::Command;

/// Interval between two looks for active sessions.
const LOOK: Duration = Duration::from_millis(100);

impl Sessions {
    /// Begins to stop every session, and prevents further launches.
    pub fn drain(self: &Arc<Self>, by: Requester) {
        let reason = format!("{by} drained agentd");
        if self.generations().now().daemon.drain.begin(by.clone()) {
            tracing::info!("{reason}: stopping every session; no session is launched");
            // Drivers that wait for a restart read the drain state again and cancel the restart.
            self.generations().touch();
            self.generations().now().daemon.changes.note(Notice::DrainBegun(DrainBegun { by: by.clone() }));
            let cause = Cause::call(by);
            tokio::spawn(Arc::clone(self).stop_all(StopRequested { reason, cause }));
        }
    }

    /// Allows launches again. Stopped sessions stay stopped.
    pub fn undo_drain(&self) {
        if self.generations().now().daemon.drain.undo() {
            tracing::info!("the drain was undone: sessions can be launched again");
            self.generations().touch();
            self.generations().now().daemon.changes.note(Notice::DrainUndone(DrainUndone {}));
        }
    }

    pub fn drain_view(&self) -> DrainView {
        let draining = self.generations().now().daemon.drain.now();
        let active = self.running().into_iter().map(|session| {
            let view = session.view();
            ActiveSession { id: view.id.clone(), name: view.spec.name.clone(), phase: view.status.phase }
        });
        DrainView {
            draining: draining.is_some(),
            since: draining.as_ref().map(|draining| draining.since),
            by: draining.map(|draining| draining.by),
            active: active.collect(),
        }
    }

    /// Waits until no session is active, or until the drain is undone.
    #[boxed]
    pub async fn drained(&self) {
        self.are_current().await;
        let stopped = async {
            while let Some(session) = self.running().into_iter().next() {
                session.wait_until(|view| !view.status.phase.is_active()).await;
            }
        };
        let generation = self.generations().now();
        tokio::select! {
            () = stopped => {}
            () = generation.daemon.drain.undone() => {}
        }
    }

    async fn stop_all(self: Arc<Self>, stop: StopRequested) {
        let generation = self.generations().now();
        // Each stop runs in its own task, one per session, so that a slow session delays no other.
        let mut asked: BTreeMap<SessionId, JoinHandle<()>> = BTreeMap::new();
        loop {
            asked.retain(|_, asking| !asking.is_finished());
            for session in self.running() {
                if session.view().status.phase == Phase::Stopping || asked.contains_key(session.id()) {
                    continue;
                }
                let (id, StopRequested { reason, cause }) = (session.id().clone(), stop.clone());
                // The session may end by itself in this moment; the refusal then has no meaning.
                let asking = async move { drop(session.ask(Command::Stop { reason, cause }).await) };
                asked.insert(id, tokio::spawn(asking));
            }
            tokio::select! {
                () = generation.daemon.drain.undone() => return,
                () = generation.daemon.shutdown.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}
