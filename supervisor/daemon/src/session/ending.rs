//! Ends the keeper of a session, and its agent, where that cannot be asked of it in the ordinary way: the keeper does not answer, its
//! socket is gone, or the session's files cannot be read.
//!
//! In this order: the keeper gets SIGTERM, at which it ends its agent in order and records that. One that is still there after its time,
//! or is stopped and so hears no signal, is killed with its whole tree and its unit. Then whoever carries the session's mark is killed.
//!
//! Not its job: what the journal says of it.

use std::path::Path;
use std::time::Duration;

use agentd_api::SessionId;

use crate::platform;
use crate::pulse;
use crate::world::World;

/// How long a keeper that got SIGTERM may take: it gives its agent 8 s and 2 s, and needs a little for itself.
const IN_ORDER: Duration = Duration::from_secs(15);
/// How long a killed process may take to be gone; one that hangs in the kernel is gone when that lets go.
const KILLED: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// A keeper's process.
type Keeper = (u32, u64);

/// How a keeper ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ended {
    /// How many processes of the session were killed, keepers not counted.
    pub(super) killed: u32,
    /// A keeper had to be killed: it has not recorded the end of its agent.
    pub(super) by_force: bool,
}

/// Ends every keeper whose command line names the session's directory, and the one that is `known`, where it lives still.
pub(super) async fn end(world: &World, id: &SessionId, directory: &Path, known: Option<Keeper>) -> Ended {
    let mut keepers = found(directory.to_owned()).await;
    if let Some(known) = known.filter(|known| platform::is_running(known.0, known.1) && !keepers.contains(known)) {
        keepers.push(known);
    }
    let mut ended = Ended::default();
    for &(pid, _) in &keepers {
        tracing::error!(agentd.session = %id, pid, "the session's keeper does not answer, and is ended");
        platform::terminate(pid);
    }
    gone(&keepers, IN_ORDER, true).await;
    for &(pid, started) in keepers.iter().filter(|(pid, started)| platform::is_running(*pid, *started)) {
        tracing::error!(agentd.session = %id, pid, "the session's keeper did not end, and is killed with its whole tree");
        ended.by_force = true;
        ended.killed += pulse::blocking(move || platform::kill_tree(pid, started)).await;
    }
    if ended.by_force {
        world.launcher.kill(id).await;
        gone(&keepers, KILLED, false).await;
    }
    world.launcher.sweep(id).await;
    ended.killed += platform::kill_remains(id.as_str()).await;
    ended
}

/// Kills the session's keepers, whose agent has ended and whose journal nobody wants any more.
pub(super) async fn discard(world: &World, id: &SessionId, directory: &Path) {
    let keepers = found(directory.to_owned()).await;
    for &(pid, started) in &keepers {
        pulse::blocking(move || platform::kill_tree(pid, started)).await;
    }
    gone(&keepers, KILLED, false).await;
    world.launcher.sweep(id).await;
}

/// Whether the session has a keeper that runs.
pub(super) async fn has_keeper(directory: &Path) -> bool {
    !found(directory.to_owned()).await.is_empty()
}

async fn found(directory: std::path::PathBuf) -> Vec<Keeper> {
    pulse::blocking(move || platform::keepers_of(&directory)).await
}

/// Waits until none of them runs, for so long at most; with `may_hear`, no longer for those that can hear no signal.
pub(super) async fn gone(keepers: &[Keeper], limit: Duration, may_hear: bool) {
    let lives =
        |(pid, started): &Keeper| platform::is_running(*pid, *started) && !(may_hear && platform::is_stopped(*pid));
    let waiting = async {
        while keepers.iter().any(lives) {
            tokio::time::sleep(PAUSE).await;
        }
    };
    let _ = pulse::elsewhere(tokio::time::timeout(limit, waiting)).await;
}
