//! Remembers the last record that an editor had of a session, so that a replay can mark later updates.
//!
//! One small file for each editor and session in the cache directory. A lost file only loses marks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

/// Minimum time between two writes.
const PAUSE: Duration = Duration::from_secs(1);

/// Position of one editor in one session.
#[derive(Debug)]
pub(super) struct Seen {
    file: Option<PathBuf>,
    seq: u64,
    stored: u64,
    stored_at: Option<Instant>,
}

impl Seen {
    /// Reads the position. Without a file, the editor has seen nothing.
    pub(super) fn open(directory: Option<&Path>, session: &str) -> Self {
        let file = directory.map(|directory| directory.join(session));
        let text = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        let seq = text.and_then(|text| text.trim().parse().ok()).unwrap_or_default();
        Self { file, seq, stored: seq, stored_at: None }
    }

    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// Moves the position, and stores it from time to time.
    pub(super) fn reached(&mut self, seq: u64) {
        self.seq = self.seq.max(seq);
        if self.stored_at.is_none_or(|at| at.elapsed() >= PAUSE) {
            self.store();
        }
    }

    /// Stores the position. A cache that cannot be written only loses marks.
    pub(super) fn store(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.stored < self.seq) else { return };
        let Some(directory) = file.parent() else { return };
        let temporary = file.with_extension(format!("{}.tmp", std::process::id()));
        let stored = std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(&temporary, self.seq.to_string()))
            .and_then(|()| std::fs::rename(&temporary, file));
        if stored.is_ok() {
            self.stored = self.seq;
        }
        self.stored_at = Some(Instant::now());
    }
}

/// Removes the position of a deleted session.
pub(super) fn forget(directory: Option<&Path>, session: &str) {
    if let Some(directory) = directory
        && is_plain(session)
    {
        let _ = std::fs::remove_file(directory.join(session));
    }
}

/// Returns the directory with the positions of an editor, by the name that it gave.
pub(super) fn directory(editor: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = cache.or_else(|| crate::start::home_directory().ok().map(|home| home.join(".cache")))?;
    Some(cache.join("agentctl").join("editors").join(file_name(editor)))
}

/// Returns a file name for an editor's name, which can be any text.
fn file_name(editor: &str) -> String {
    let plain = |char: char| if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { '-' };
    let name: String = editor.chars().take(40).map(plain).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "editor".to_owned() } else { name.to_owned() }
}

/// Reports whether a session's id is safe as a file name.
fn is_plain(session: &str) -> bool {
    session.parse::<agentd_api::SessionId>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_kept_for_the_next_start_and_never_goes_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("zed");
        let mut seen = Seen::open(Some(&path), "k3m");
        assert_eq!(seen.seq(), 0);
        seen.reached(7);
        seen.reached(9);
        assert_eq!(Seen::open(Some(&path), "k3m").seq(), 7, "the second move waits for its time");
        seen.reached(3);
        seen.store();
        assert_eq!(Seen::open(Some(&path), "k3m").seq(), 9);
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1, "no temporary file stays");
        std::fs::write(path.join("k3m"), "not a number").unwrap();
        assert_eq!(Seen::open(Some(&path), "k3m").seq(), 0);
    }

    #[test]
    fn an_editors_name_cannot_leave_the_directory() {
        assert_eq!(file_name("Zed Preview/../1"), "zed-preview----1");
        assert_eq!(file_name("../.."), "editor");
        assert_eq!(file_name(&"x".repeat(500)).len(), 40);
    }
}
