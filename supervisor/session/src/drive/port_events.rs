//! The driver's waits for its keeper and for its next deadline.

use tokio::time::Instant;

use super::silent;
use crate::journal_port::Port;
use crate::launch::Connection;

/// Event from the session's keeper.
pub(super) enum KeeperEvent {
    /// The journal has grown.
    Grown,
    /// The connection to the keeper is lost.
    Lost,
    /// A keeper that did not answer answers again, or is gone.
    Found(Option<Box<dyn Connection>>),
}

pub(super) async fn keeper_event(port: &mut Port) -> KeeperEvent {
    match port {
        Port::Keeper(link) => link.grown().await.map_or(KeeperEvent::Lost, |_| KeeperEvent::Grown),
        Port::Silent(search) => KeeperEvent::Found(silent::search(search).await),
        Port::Direct => std::future::pending().await,
    }
}

pub(super) async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
