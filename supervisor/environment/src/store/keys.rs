//! Finds keys: in a systemd credential, in a file, or in a key ring that agentd creates.
//!
//! No key stays in memory between uses, so a changed or removed key is noticed at once.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::seal::{Key, SealError};
use crate::lock::locked;
use agentd_config::{Encryption, KeySource};
use agentd_host::files;

/// File of generated keys in the state directory.
const RING: &str = "environment-keys.json";
const RING_VERSION: u32 = 1;

/// Reason why a key is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot read the credential {name:?}: CREDENTIALS_DIRECTORY is not set, so systemd has passed none")]
    NoCredentials { name: String },
    #[error("cannot read the key in {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "the key in {path:?} can be read by others (mode {mode:04o}); `chmod 600` it, or make another",
        mode = .mode & 0o7777
    )]
    Open { path: PathBuf, mode: u32 },
    #[error("the key in {path:?} belongs to user {owner}")]
    Owner { path: PathBuf, owner: u32 },
    #[error("{path:?} holds no key: a key is 32 bytes, raw, in base64 or in hexadecimal digits")]
    NoKey { path: PathBuf },
    #[error("{path:?} is not a key ring that this agentd can read; nothing was changed")]
    Ring { path: PathBuf },
    #[error("cannot write {path:?}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot generate a key")]
    Generate(#[source] SealError),
}

/// All places that may hold a key.
#[derive(Debug)]
pub(super) struct Keys {
    source: KeySource,
    previous: Vec<KeySource>,
    credentials: Option<PathBuf>,
    ring: PathBuf,
    /// Held while the key ring is changed, so that no change undoes another one. Documents cannot be opened after the
    /// loss of their key. Keys of successive configurations share the lock.
    changing: Arc<Mutex<()>>,
}

#[derive(Serialize, Deserialize)]
struct Ring {
    version: u32,
    /// Generated keys, oldest first. The last key is in use.
    keys: Vec<GeneratedKey>,
}

#[derive(Serialize, Deserialize)]
struct GeneratedKey {
    id: String,
    since: Timestamp,
    key: String,
}

impl Keys {
    pub(super) fn new(encryption: &Encryption, credentials: Option<PathBuf>, state: &Path) -> Self {
        Self {
            source: encryption.key.clone(),
            previous: encryption.previous.clone(),
            credentials,
            ring: state.join(RING),
            changing: Arc::default(),
        }
    }

    /// Returns the places that another configuration names.
    pub(super) fn reconfigured(&self, encryption: &Encryption) -> Self {
        Self {
            source: encryption.key.clone(),
            previous: encryption.previous.clone(),
            credentials: self.credentials.clone(),
            ring: self.ring.clone(),
            changing: Arc::clone(&self.changing),
        }
    }

    /// Returns the key for sealing. A generated key is created at its first use.
    pub(super) fn current(&self) -> Result<Key, KeyError> {
        if let Some(key) = self.of(&self.source)? {
            return Ok(key);
        }
        let _changing = locked(&self.changing);
        // Another thread may have created the first key meanwhile.
        match self.of(&self.source)? {
            Some(key) => Ok(key),
            None => self.generate(),
        }
    }

    /// Returns the id of the key for sealing, if the key exists.
    pub(super) fn look(&self) -> Result<Option<String>, KeyError> {
        Ok(self.of(&self.source)?.map(|key| key.id().to_owned()))
    }

    /// Searches all places for the key with this id. Returns the errors of the search if the key was not found.
    pub(super) fn find(&self, id: &str) -> Result<Key, Vec<KeyError>> {
        let mut errors = Vec::new();
        for source in std::iter::once(&self.source).chain(&self.previous) {
            match self.of(source) {
                Ok(Some(key)) if key.id() == id => return Ok(key),
                Ok(_) => {}
                Err(error) => errors.push(error),
            }
        }
        let ring = self.read_ring().unwrap_or_else(|error| {
            errors.push(error);
            None
        });
        let generated = ring.into_iter().flat_map(|ring| ring.keys).find(|generated| generated.id == id);
        generated.and_then(|generated| Key::parse(generated.key.as_bytes())).filter(|key| key.id() == id).ok_or(errors)
    }

    /// Generates a new key and takes it into use. A credential or key file is only read again, because its owner
    /// replaces it.
    pub(super) fn renew(&self) -> Result<Key, KeyError> {
        match self.source {
            KeySource::Generated => {
                let _changing = locked(&self.changing);
                self.generate()
            }
            KeySource::Credential(_) | KeySource::File(_) => self.current(),
        }
    }

    /// Removes all generated keys except `current`.
    pub(super) fn forget_all_but(&self, current: &Key) -> Result<(), KeyError> {
        let _changing = locked(&self.changing);
        let Some(mut ring) = self.read_ring()? else { return Ok(()) };
        let before = ring.keys.len();
        ring.keys.retain(|generated| generated.id == current.id());
        if ring.keys.len() == before { Ok(()) } else { self.write_ring(&ring) }
    }

    /// Returns the ids of all generated keys except `current`.
    pub(super) fn others(&self, current: &Key) -> Result<Vec<String>, KeyError> {
        let ring = self.read_ring()?;
        let ids = ring.into_iter().flat_map(|ring| ring.keys).map(|generated| generated.id);
        Ok(ids.filter(|id| id != current.id()).collect())
    }

    fn of(&self, source: &KeySource) -> Result<Option<Key>, KeyError> {
        match source {
            KeySource::Generated => {
                let last = self.read_ring()?.and_then(|mut ring| ring.keys.pop());
                let key = last
                    .map(|generated| Key::parse(generated.key.as_bytes()))
                    .map(|key| key.ok_or_else(|| self.no_ring()));
                key.transpose()
            }
            KeySource::Credential(name) => {
                let Some(directory) = &self.credentials else {
                    return Err(KeyError::NoCredentials { name: name.clone() });
                };
                // systemd makes the credential readable for this service alone.
                read_key(directory.join(name)).map(Some)
            }
            KeySource::File(path) => {
                check_private(path)?;
                read_key(path.clone()).map(Some)
            }
        }
    }

    /// Adds a key to the ring. The caller holds the lock for changes.
    fn generate(&self) -> Result<Key, KeyError> {
        let mut ring = self.read_ring()?.unwrap_or(Ring { version: RING_VERSION, keys: Vec::new() });
        let (key, text) = Key::generate().map_err(KeyError::Generate)?;
        ring.keys.push(GeneratedKey { id: key.id().to_owned(), since: Timestamp::now(), key: text });
        self.write_ring(&ring)?;
        Ok(key)
    }

    fn no_ring(&self) -> KeyError {
        KeyError::Ring { path: self.ring.clone() }
    }

    fn read_ring(&self) -> Result<Option<Ring>, KeyError> {
        let bytes = match std::fs::read(&self.ring) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(KeyError::Read { path: self.ring.clone(), source }),
        };
        check_private(&self.ring)?;
        let ring: Ring = serde_json::from_slice(&bytes).map_err(|_| self.no_ring())?;
        if ring.version == RING_VERSION { Ok(Some(ring)) } else { Err(self.no_ring()) }
    }

    fn write_ring(&self, ring: &Ring) -> Result<(), KeyError> {
        files::write_json(&self.ring, ring).map_err(|source| KeyError::Write { path: self.ring.clone(), source })
    }
}

fn read_key(path: PathBuf) -> Result<Key, KeyError> {
    let content = std::fs::read(&path).map_err(|source| KeyError::Read { path: path.clone(), source })?;
    Key::parse(&content).ok_or(KeyError::NoKey { path })
}

/// Refuses a key file that other users own or can access.
fn check_private(path: &Path) -> Result<(), KeyError> {
    let metadata = std::fs::metadata(path).map_err(|source| KeyError::Read { path: path.to_owned(), source })?;
    let uid = nix::unistd::getuid().as_raw();
    if metadata.uid() != uid && metadata.uid() != 0 {
        return Err(KeyError::Owner { path: path.to_owned(), owner: metadata.uid() });
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(KeyError::Open { path: path.to_owned(), mode: metadata.mode() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn keys(source: KeySource, credentials: Option<PathBuf>, state: &Path) -> Keys {
        Keys::new(&Encryption { enabled: true, key: source, previous: Vec::new() }, credentials, state)
    }

    #[test]
    fn a_generated_key_is_private_and_stays_until_it_is_renewed() {
        let state = tempfile::tempdir().unwrap();
        let keys = keys(KeySource::Generated, None, state.path());
        let first = keys.current().unwrap();
        assert_eq!(keys.current().unwrap().id(), first.id());
        let mode = std::fs::metadata(state.path().join(RING)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let second = keys.renew().unwrap();
        assert_ne!(second.id(), first.id());
        assert_eq!(keys.current().unwrap().id(), second.id());
        assert_eq!(keys.find(first.id()).unwrap().id(), first.id());
        keys.forget_all_but(&second).unwrap();
        assert!(keys.find(first.id()).is_err() && keys.find(second.id()).is_ok());
    }

    #[test]
    fn threads_that_need_the_first_key_at_once_get_the_same_and_no_renewed_key_is_lost() {
        for _ in 0..20 {
            let state = tempfile::tempdir().unwrap();
            let keys = keys(KeySource::Generated, None, state.path());
            let ids = |make: fn(&Keys) -> Result<Key, KeyError>| {
                std::thread::scope(|scope| {
                    let threads: Vec<_> =
                        (0..8).map(|_| scope.spawn(|| make(&keys).unwrap().id().to_owned())).collect();
                    threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
                })
            };
            let first = ids(Keys::current);
            assert!(first.iter().all(|id| *id == first[0]), "{first:?}");
            for id in ids(Keys::renew) {
                assert!(keys.find(&id).is_ok(), "the key {id} is lost");
            }
        }
    }

    #[test]
    fn a_credential_is_read_from_where_systemd_puts_it() {
        let state = tempfile::tempdir().unwrap();
        let source = || KeySource::Credential("environment".to_owned());
        let without = keys(source(), None, state.path()).current().unwrap_err();
        assert!(matches!(without, KeyError::NoCredentials { .. }), "{without}");
        std::fs::write(state.path().join("environment"), "11".repeat(32)).unwrap();
        let with = keys(source(), Some(state.path().to_owned()), state.path());
        assert!(with.current().is_ok());
    }

    #[test]
    fn a_key_file_that_others_can_read_or_that_holds_no_key_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join("key");
        let keys = keys(KeySource::File(file.clone()), None, state.path());
        assert!(matches!(keys.current(), Err(KeyError::Read { .. })));
        files::write(&file, "11".repeat(32).as_bytes()).unwrap();
        let id = keys.current().unwrap().id().to_owned();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(keys.current(), Err(KeyError::Open { .. })));
        assert_eq!(keys.find(&id).unwrap_err().len(), 1, "what stood in the way is told");
        files::write(&file, b"password").unwrap();
        assert!(matches!(keys.current(), Err(KeyError::NoKey { .. })));
    }
}
