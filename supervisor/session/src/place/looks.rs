//! Words in the names of launches on places that belong to no session: looks, captures, and those of removed sessions.
//!
//! The word of a look is random, and each is stored in the state directory before its first look. A daemon of the same
//! state directory reads the words of earlier daemons, and may end what these left at an engine. The lock of the state
//! directory ensures that no earlier daemon is alive. Words of other state directories are never known.
//!
//! The id of a session is stored as a word if the session is removed while the connection to its place is cut.

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
    /// Places and ids of sessions that were removed and not taken yet.
    removed: Mutex<BTreeSet<(String, String)>>,
}

impl LookWords {
    /// Makes the words of a daemon. They are stored in this directory.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, own: Mutex::default(), removed: Mutex::default() }
    }

    fn own(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the id of a removed session, whose agent may still run on the place.
    pub(crate) fn leave(&self, place: &str, id: &SessionId) -> io::Result<()> {
        self.store(place, id.as_str())?;
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        removed.insert((place.to_owned(), id.to_string()));
        Ok(())
    }

    /// Returns the sessions of the place that were removed since the last call.
    pub(crate) fn take_removed(&self, place: &str) -> BTreeSet<String> {
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        let taken: BTreeSet<_> = removed.extract_if(.., |(at, _)| at == place).collect();
        taken.into_iter().map(|(_, id)| id).collect()
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

    /// Returns the stored words of the place, without those of this daemon's looks.
    pub(crate) fn earlier(&self, place: &str) -> io::Result<BTreeSet<String>> {
        let entries = match fs::read_dir(self.directory.join(place)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(error),
        };
        let mut words = BTreeSet::new();
        for entry in entries {
            let is_word = |name: &String| name.starts_with(BEGINNING) || name.parse::<SessionId>().is_ok();
            words.extend(entry?.file_name().into_string().ok().filter(is_word));
        }
        let own = self.own();
        words.retain(|word| !own.contains(word));
        Ok(words)
    }

    /// Removes a word from which the engine lists nothing.
    pub(crate) fn forget(&self, place: &str, word: &str) {
        if let Err(error) = fs::remove_file(self.directory.join(place).join(word)) {
            tracing::warn!(%error, place, word, "cannot remove the stored word of launches that have ended");
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

    #[test]
    fn a_removed_session_is_known_to_this_daemon_and_to_later_ones() {
        let directory = tempfile::tempdir().unwrap();
        let first = LookWords::new(directory.path().to_owned());
        let id = SessionId::random();
        first.leave("farm", &id).unwrap();
        assert!(first.take_removed("lab").is_empty());
        assert_eq!(first.take_removed("farm"), BTreeSet::from([id.to_string()]));
        assert!(first.take_removed("farm").is_empty());
        let second = LookWords::new(directory.path().to_owned());
        assert_eq!(second.earlier("farm").unwrap(), BTreeSet::from([id.to_string()]));
    }
}
