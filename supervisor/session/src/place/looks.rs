//! Words in the names of looks and captures on places, which belong to no session.
//!
//! A word is random, and each is stored in the state directory before its first look. A daemon of the same state
//! directory reads the words of earlier daemons, and may end what these left at an engine. The lock of the state
//! directory ensures that no earlier daemon is alive. Words of other state directories are never known.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agentd_api::SessionId;
use agentd_host::directories::make_private;

/// Beginning of each word. No id of a session begins with it.
const BEGINNING: &str = "look-";

/// The words of this daemon, and those that earlier daemons stored.
#[derive(Debug)]
pub(crate) struct LookWords {
    /// Directory with a subdirectory for each place, which has a file for each word.
    directory: PathBuf,
    own: Mutex<BTreeSet<String>>,
}

impl LookWords {
    /// Makes the words of a daemon. They are stored in this directory.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, own: Mutex::default() }
    }

    fn own(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a word of this daemon.
    pub(crate) fn next(&self) -> String {
        let word = format!("{BEGINNING}{}", SessionId::random());
        self.own().insert(word.clone());
        word
    }

    /// Stores a word of this daemon. A later daemon then knows it.
    pub(crate) fn store(&self, place: &str, word: &str) -> io::Result<()> {
        let directory = self.directory.join(place);
        make_private(&self.directory).and_then(|()| make_private(&directory)).map_err(io::Error::other)?;
        fs::write(directory.join(word), "")
    }

    /// Returns the words that earlier daemons stored for the place.
    pub(crate) fn earlier(&self, place: &str) -> io::Result<BTreeSet<String>> {
        let entries = match fs::read_dir(self.directory.join(place)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(error),
        };
        let mut words = BTreeSet::new();
        for entry in entries {
            words.extend(entry?.file_name().into_string().ok().filter(|name| name.starts_with(BEGINNING)));
        }
        let own = self.own();
        words.retain(|word| !own.contains(word));
        Ok(words)
    }

    /// Removes a word from which the engine lists nothing.
    pub(crate) fn forget(&self, place: &str, word: &str) {
        if let Err(error) = fs::remove_file(self.directory.join(place).join(word)) {
            tracing::warn!(%error, place, word, "cannot remove the stored word of an earlier daemon's looks");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_knows_the_words_of_earlier_daemons_of_its_directory_and_not_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let words = |name: &str| LookWords::new(directory.path().join(name));
        let first = words("state");
        assert_eq!(first.earlier("farm").unwrap(), BTreeSet::new());
        let (one, two, unused) = (first.next(), first.next(), first.next());
        for word in [&one, &two] {
            first.store("farm", word).unwrap();
        }
        assert_eq!(first.earlier("farm").unwrap(), BTreeSet::new(), "its own looks may run");

        let second = words("state");
        let own = second.next();
        second.store("farm", &own).unwrap();
        assert_eq!(second.earlier("farm").unwrap(), BTreeSet::from([one.clone(), two.clone()]));
        assert!(!second.earlier("farm").unwrap().contains(&unused));
        assert_eq!(second.earlier("lab").unwrap(), BTreeSet::new());
        assert_eq!(words("other").earlier("farm").unwrap(), BTreeSet::new(), "another daemon may be alive");
        second.forget("farm", &one);
        assert_eq!(second.earlier("farm").unwrap(), BTreeSet::from([two]));
    }
}
