//! Seals and opens documents with the configured keys, and serialises writers.
//!
//! Other modules define the documents and their files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use super::keys::{KeyError, Keys};
use super::seal::{Key, Sealed};
use crate::lock::locked;
use agentd_api::chain;
use agentd_config::Encryption;

/// Keys of one configuration. Vaults of successive configurations share the write lock.
#[derive(Debug)]
pub struct Vault {
    pub(super) enabled: bool,
    pub(super) keys: Keys,
    writing: Arc<Mutex<()>>,
}

impl Vault {
    /// Creates a vault. `credentials` is the directory where systemd put this service's credentials, and `state`
    /// holds generated keys.
    pub fn new(encryption: &Encryption, credentials: Option<PathBuf>, state: &Path) -> Self {
        let keys = Keys::new(encryption, credentials, state);
        Self { enabled: encryption.enabled, keys, writing: Arc::default() }
    }

    /// Returns a vault for another configuration, with the same places.
    pub fn reconfigured(&self, encryption: &Encryption) -> Self {
        Self {
            enabled: encryption.enabled,
            keys: self.keys.reconfigured(encryption),
            writing: Arc::clone(&self.writing),
        }
    }

    /// Reports whether new documents are sealed.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Locks writes. The lock is held while a document is read and rewritten, so that a key rotation undoes no
    /// other write.
    pub fn writing(&self) -> MutexGuard<'_, ()> {
        locked(&self.writing)
    }

    #[cfg(test)]
    pub fn renew(&self) {
        self.keys.renew().unwrap();
    }

    /// Returns the key for sealing, or `None` if documents are stored in clear.
    pub(super) fn key(&self) -> Result<Option<Key>, KeyError> {
        self.enabled.then(|| self.keys.current()).transpose()
    }

    /// Seals a document that belongs to `owner`. Returns `None` if documents are stored in clear.
    pub fn seal(&self, name: &str, owner: &str, document: &[u8]) -> io::Result<Option<Sealed>> {
        let key = self.key().map_err(|error| io::Error::other(chain(&error)))?;
        let sealed = key.map(|key| key.seal(name, owner, document)).transpose();
        sealed.map_err(|error| io::Error::other(chain(&error)))
    }

    /// Seals a document that must never be stored in clear, also if encryption is off.
    pub fn seal_always(&self, name: &str, owner: &str, document: &[u8]) -> io::Result<Sealed> {
        let key = self.keys.current().map_err(|error| io::Error::other(chain(&error)))?;
        key.seal(name, owner, document).map_err(|error| io::Error::other(chain(&error)))
    }

    /// Opens a document that was sealed under this name for this owner.
    pub fn open(&self, name: &str, owner: &str, sealed: &Sealed) -> io::Result<Vec<u8>> {
        let key = self.keys.find(&sealed.key).map_err(|errors| {
            let tried = errors.iter().fold(String::new(), |text, error| format!("{text}; {}", chain(error)));
            io::Error::other(format!("it is sealed with the key {}, which cannot be found{tried}", sealed.key))
        })?;
        key.open(name, owner, sealed).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, chain(&error)))
    }
}
