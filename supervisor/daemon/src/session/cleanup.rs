//! What lies about: keepers of sessions that are not there any more, files that were never finished, journals that are longer than is
//! to be kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use agentd_api::SessionId;
use agentd_journal::Retain;
use agentd_keeper::protocol::{StopTimes, ToKeeper};

use super::{Session, ending};
use crate::directories::Directories;
use crate::launch::Link;
use crate::world::World;

/// A keeper's runtime directory without a session.
#[derive(Debug)]
pub(super) struct Stray {
    id: SessionId,
    runtime: PathBuf,
}

/// The sessions that have a runtime directory, by its name.
pub(super) fn runtimes(directories: &Directories) -> impl Iterator<Item = SessionId> {
    let entries = std::fs::read_dir(&directories.runtime).into_iter().flatten();
    entries.filter_map(|entry| {
        let entry = entry.ok().filter(|entry| entry.path().is_dir())?;
        entry.file_name().to_str()?.parse().ok()
    })
}

/// Those that belong to no session.
pub(super) fn stray_keepers(directories: &Directories, known: impl Fn(&SessionId) -> bool) -> Vec<Stray> {
    runtimes(directories)
        .filter(|id| !known(id))
        .map(|id| Stray { runtime: directories.session_runtime(&id), id })
        .collect()
}

/// A session that is gone has nothing to say to its agent.
const AT_ONCE: StopTimes = StopTimes { close_ms: 1000, term_ms: 1000 };
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(50);

impl Stray {
    /// Ends the keeper and its agent, if they live, and removes the directory.
    pub(super) async fn end(self, world: Arc<World>) {
        let socket = self.runtime.join("keeper.sock");
        if let Ok(mut link) = Link::connect(&socket, &world.keeper_patience()).await {
            tracing::warn!(agentd.session = %self.id, pid = link.hello.pid, "a keeper without a session is ended");
            let _ = link.call(&ToKeeper::Stop(AT_ONCE)).await;
            // The keeper removes its socket as its last act but one.
            for _ in 0..TRIES {
                if !socket.exists() {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        let directory = world.directories.session(&self.id);
        if ending::has_keeper(&directory).await {
            ending::end(&world, &self.id, &directory, None).await;
        }
        if let Err(error) = std::fs::remove_dir_all(&self.runtime) {
            tracing::warn!(agentd.session = %self.id, %error, "a runtime directory without a session cannot be removed");
        }
    }
}

/// Removes temporary files from before `started`: whoever was writing them is gone.
pub(super) fn unfinished_files(directory: &Path, started: SystemTime) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let unfinished = entry.file_name().to_string_lossy().starts_with(crate::store::UNFINISHED);
        let old = entry.metadata().and_then(|metadata| metadata.modified()).is_ok_and(|modified| modified < started);
        if unfinished && old {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Removes the oldest segments of the largest journals until all together are no longer than `keep` bytes, as far as that goes: no
/// session's current segment is removed, nor what its stored state has not reached.
pub(super) fn keep_all(sessions: &[Session], keep: u64) {
    let mut sizes: Vec<(u64, &Session)> =
        sessions.iter().map(|session| (agentd_journal::size(session.directory()).unwrap_or(0), session)).collect();
    let mut total: u64 = sizes.iter().map(|(size, _)| size).sum();
    sizes.sort_unstable_by_key(|(size, _)| std::cmp::Reverse(*size));
    for (size, session) in sizes {
        if total <= keep {
            return;
        }
        let retain =
            Retain { at_most: size.saturating_sub(total - keep), keep_after: session.published.borrow().remembered };
        match agentd_journal::retain(session.directory(), retain) {
            Ok(retained) => total -= retained.removed_bytes,
            Err(error) => {
                tracing::warn!(agentd.session = %session.id, error = %crate::env::chain(&error), "a journal cannot be shortened");
            }
        }
    }
}
