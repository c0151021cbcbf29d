//! Ends the keeper of a session and its agent by force. The keeper does not answer, its socket is gone, or the
//! session cannot be read.
//!
//! The steps are:
//!
//! 1. The keeper gets SIGTERM, ends its agent gracefully and records the end.
//! 2. A keeper that remains after its time, or is stopped by a signal, is killed with its process tree and its unit.
//! 3. All processes that carry the session's mark are killed.
//!
//! The caller records the end in the journal.

use std::path::Path;
use std::time::Duration;

use agentd_api::SessionId;

use crate::generation::Generation;
use crate::pulse;
use agentd_host::platform;

/// Time that a keeper has after SIGTERM. It gives its agent 8 s and 2 s, and needs a little time itself.
const IN_ORDER: Duration = Duration::from_secs(15);
/// Time that a killed process has to disappear. A process that hangs in the kernel disappears when the kernel
/// releases the process.
const KILLED: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Process id and start time of a keeper.
type Keeper = (u32, u64);

/// Result of ending a session's keepers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ended {
    /// Number of killed processes, without keepers.
    pub(super) killed: u32,
    /// Whether a keeper was killed. It has then not recorded the end of its agent.
    pub(super) by_force: bool,
}

/// Ends every keeper whose command line names the session's directory, and the `known` keeper if it still runs.
pub(super) async fn end(generation: &Generation, id: &SessionId, directory: &Path, known: Option<Keeper>) -> Ended {
    let mut keepers = found(directory.to_owned()).await;
    if let Some(known) = known.filter(|known| platform::is_running(known.0, known.1) && !keepers.contains(known)) {
        keepers.push(known);
    }
    let mut ended = Ended::default();
    for &(pid, _) in &keepers {
        tracing::error!(agentd.session = %id, pid, "the session's keeper does not answer; ending it with SIGTERM");
        platform::terminate(pid);
    }
    gone(&keepers, IN_ORDER, true).await;
    for &(pid, started) in keepers.iter().filter(|(pid, started)| platform::is_running(*pid, *started)) {
        tracing::error!(
            agentd.session = %id, pid,
            "the session's keeper did not end; killing it with its process tree"
        );
        ended.by_force = true;
        ended.killed += pulse::blocking(move || platform::kill_tree(pid, started)).await;
    }
    if ended.by_force {
        generation.daemon.launcher.kill(id).await;
        gone(&keepers, KILLED, false).await;
    }
    generation.daemon.launcher.sweep(id).await;
    ended.killed += platform::kill_remains(id.as_str()).await;
    ended
}

/// Kills the keepers of a session whose agent has ended and whose journal is about to be removed.
pub(super) async fn discard(generation: &Generation, id: &SessionId, directory: &Path) {
    let keepers = found(directory.to_owned()).await;
    for &(pid, started) in &keepers {
        pulse::blocking(move || platform::kill_tree(pid, started)).await;
    }
    gone(&keepers, KILLED, false).await;
    generation.daemon.launcher.sweep(id).await;
}

/// Reports whether the session has a running keeper.
pub(super) async fn has_keeper(directory: &Path) -> bool {
    !found(directory.to_owned()).await.is_empty()
}

async fn found(directory: std::path::PathBuf) -> Vec<Keeper> {
    pulse::blocking(move || platform::keepers_of(&directory)).await
}

/// Waits until the keepers have ended, at most for `limit`. With `may_hear`, does not wait for stopped processes,
/// which handle no signal.
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
