//! Seals documents and opens them: the keys, whether new documents are sealed, and one writer at a time.
//!
//! Not responsible for what a document is, nor for its file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::keys::{KeyError, Keys};
use super::seal::{Key, Sealed};
use crate::config::Encryption;
use crate::env::services::chain;

/// The keys of one configuration. Generations of the configuration share the lock.
#[derive(Debug)]
pub(crate) struct Vault {
    pub(super) enabled: bool,
    pub(super) keys: Keys,
    writing: Arc<Mutex<()>>,
}

impl Vault {
    /// `credentials` is the directory that systemd put this service's credentials in; `state` has the keys that agentd made.
    pub(crate) fn new(encryption: &Encryption, credentials: Option<PathBuf>, state: &Path) -> Self {
        let keys = Keys::new(encryption, credentials, state);
        Self { enabled: encryption.enabled, keys, writing: Arc::default() }
    }

    /// The same places under another configuration.
    pub(crate) fn again(&self, encryption: &Encryption) -> Self {
        Self { enabled: encryption.enabled, keys: self.keys.again(encryption), writing: Arc::clone(&self.writing) }
    }

    /// Whether documents are sealed when they are written.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Held while a document is read and written anew, so that a rotation of keys undoes no other write.
    pub(crate) fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn renew(&self) {
        self.keys.renew().unwrap();
    }

    /// The key that documents are sealed with; nothing where they are written in clear.
    pub(super) fn key(&self) -> Result<Option<Key>, KeyError> {
        self.enabled.then(|| self.keys.current()).transpose()
    }

    /// Seals a document that belongs to `owner`; nothing where documents are written in clear.
    pub(crate) fn seal(&self, name: &str, owner: &str, document: &[u8]) -> io::Result<Option<Sealed>> {
        let key = self.key().map_err(|error| io::Error::other(chain(&error)))?;
        let sealed = key.map(|key| key.seal(name, owner, document)).transpose();
        sealed.map_err(|error| io::Error::other(chain(&error)))
    }

    /// Opens a document that was sealed under this name for this owner.
    pub(crate) fn open(&self, name: &str, owner: &str, sealed: &Sealed) -> io::Result<Vec<u8>> {
        let key = self.keys.find(&sealed.key).map_err(|errors| {
            let tried = errors.iter().fold(String::new(), |text, error| format!("{text}; {}", chain(error)));
            io::Error::other(format!("it is sealed with the key {}, which is not there{tried}", sealed.key))
        })?;
        key.open(name, owner, sealed).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, chain(&error)))
    }
}
