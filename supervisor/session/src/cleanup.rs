//! Cleans up leftovers: keepers without a session, unfinished files, and journals beyond the configured size.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use agentd_api::SessionId;
use agentd_journal::Retain;
use agentd_keeper::protocol::{StopTimes, ToKeeper};

use super::{Session, ending};
use crate::generation::Generation;
use crate::launch::Link;
use crate::pulse;
use agentd_host::directories::Directories;
use agentd_host::platform;

/// A runtime directory of a keeper without a session.
#[derive(Debug)]
pub(super) struct StrayRuntime {
    id: SessionId,
    runtime: PathBuf,
}

/// Lists the sessions that have a runtime directory.
pub(super) fn runtimes(directories: &Directories) -> impl Iterator<Item = SessionId> {
    let entries = std::fs::read_dir(&directories.runtime).into_iter().flatten();
    entries.filter_map(|entry| {
        let entry = entry.ok().filter(|entry| entry.path().is_dir())?;
        entry.file_name().to_str()?.parse().ok()
    })
}

/// Lists the runtime directories that belong to no known session.
pub(super) fn stray_keepers(directories: &Directories, known: impl Fn(&SessionId) -> bool) -> Vec<StrayRuntime> {
    runtimes(directories)
        .filter(|id| !known(id))
        .map(|id| StrayRuntime { runtime: directories.session_runtime(&id), id })
        .collect()
}

/// Stop times for an agent whose session is gone.
const AT_ONCE: StopTimes = StopTimes { close_ms: 1000, term_ms: 1000 };
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(50);

impl StrayRuntime {
    /// Ends the keeper and its agent, if they run, and removes the directory.
    pub(super) async fn end(self, generation: Arc<Generation>) {
        let socket = self.runtime.join("keeper.sock");
        if let Ok(mut link) = Link::connect(&socket, &generation.keeper_patience()).await {
            tracing::warn!(agentd.session = %self.id, pid = link.hello.pid, "ending a keeper that has no session");
            let _ = link.call(&ToKeeper::Stop(AT_ONCE)).await;
            // The removal of the socket is the keeper's last step but one.
            for _ in 0..TRIES {
                if !socket.exists() {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        let directory = generation.daemon.directories.session(&self.id);
        if ending::has_keeper(&directory).await {
            ending::end(&generation, &self.id, &directory, None).await;
        } else {
            // An agent that was kept warm has no session. Its keeper may have been killed with the daemon.
            platform::kill_remains(self.id.as_str()).await;
        }
        let runtime = self.runtime;
        if let Err(error) = pulse::blocking(move || std::fs::remove_dir_all(runtime)).await {
            tracing::warn!(agentd.session = %self.id, %error, "cannot remove a runtime directory that has no session");
        }
    }
}

/// Removes temporary files from before `started`, whose writers are gone.
pub(super) fn unfinished_files(directory: &Path, started: SystemTime) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let unfinished = entry.file_name().to_string_lossy().starts_with(agentd_host::files::UNFINISHED);
        let old = entry.metadata().and_then(|metadata| metadata.modified()).is_ok_and(|modified| modified < started);
        if unfinished && old {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Removes the oldest segments of the largest journals until the total is at most `keep` bytes. Keeps each
/// session's current segment, and all records after its stored state.
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
                tracing::warn!(
                    agentd.session = %session.id, error = %agentd_api::chain(&error),
                    "cannot shorten a journal"
                );
            }
        }
    }
}
