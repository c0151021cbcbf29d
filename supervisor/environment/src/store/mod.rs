//! Stores a session's environments and login snapshots. Writes are atomic, and the files are sealed if so configured.
//! `environment.json` holds the environments of a session's first and last launch.
//!
//! A file in clear holds no secret values. A sealed file holds everything, with only the id of its key in clear. An
//! unreadable file is never overwritten: the launch that needs the write is refused. After a change of the setting,
//! a file is sealed or stored in clear at its next write.

mod document;
mod keys;
mod seal;
mod stored_snapshot;
mod vault;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use agentd_api::environment::{EnvironmentView, RotationFailure, RotationView};
use agentd_api::hint;
use agentd_api::reason;
use agentd_api::{Code, Problem, SessionId};
use agentd_keeper::protocol::Attributes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::merge::{Environment, without_secrets};
use crate::lock::locked;
use agentd_api::chain;
use agentd_config::Encryption;
use agentd_host::directories::Directories;
use agentd_host::files;
use document::{Content, Document, version};
use keys::KeyError;
use seal::{Key, SealError};
pub(crate) use stored_snapshot::{SESSION_SNAPSHOT, StoredSnapshot};
pub(crate) use vault::Vault;

const NAME: &str = "environment.json";
/// Version of the file. Version 1 had no version field and held the last launch's environment. Version 2 had no
/// expiring variables, so its readers would restore an expired variable.
const VERSION: u32 = 3;
/// Versions that can be read.
pub const VERSIONS: [u32; 3] = [1, 2, VERSION];

/// Stored environments of all sessions.
#[derive(Debug)]
pub struct Environments {
    directories: Directories,
    vault: Arc<Vault>,
    /// Secrets of each session's last launch under this daemon.
    secrets: Arc<Mutex<SecretsOfSessions>>,
}

type SecretsOfSessions = HashMap<SessionId, BTreeMap<String, Vec<u8>>>;

/// Stored environments of one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredEnvironments {
    /// Environment of the first known launch. It contains the launch number.
    pub created: EnvironmentView,
    pub last: EnvironmentView,
    /// Process attributes of the last launch's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
}

/// Reason why a stored environment cannot be read or written. The file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path:?} is not a stored environment")]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error(
        "{path:?} is of version {found}; this agentd knows {VERSION}. A newer agentd wrote it; nothing was changed"
    )]
    Version { path: PathBuf, found: u64 },
    #[error("{path:?} is sealed with the key {key}, which cannot be found{tried}; nothing was changed")]
    KeyGone { path: PathBuf, key: String, tried: String },
    #[error("{path:?} is sealed and cannot be opened")]
    Sealed { path: PathBuf, source: SealError },
    #[error("cannot seal environments: the key is unavailable")]
    NoKey(#[source] KeyError),
    #[error("cannot write {path:?}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot seal {path:?}")]
    Seal { path: PathBuf, source: SealError },
    #[error("environments are not encrypted, so there is no key to change")]
    NotEncrypted,
    #[error("cannot list the sessions in {path:?}")]
    List { path: PathBuf, source: io::Error },
    #[error("cannot remove a key that is no longer needed")]
    Tidy(#[source] KeyError),
}

impl EnvironmentError {
    /// Returns the CamelCase reason for the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::KeyGone { .. } | Self::NoKey(_) => reason::KEY_UNAVAILABLE,
            Self::Write { .. } | Self::Seal { .. } | Self::Tidy(_) => reason::NOT_KEPT,
            Self::NotEncrypted => reason::NOT_ENCRYPTED,
            Self::Read { .. } | Self::Parse { .. } | Self::Version { .. } | Self::Sealed { .. } | Self::List { .. } => {
                reason::ENVIRONMENT_UNREADABLE
            }
        }
    }

    pub fn problem(&self) -> Problem {
        let (code, hint) = match self {
            Self::KeyGone { .. } => (
                Code::KeyUnavailable,
                "restore the key, at its place or under environment.encryption.previous; without it, remove the \
                 file, and the session continues with a fresh environment",
            ),
            Self::NoKey(_) => (Code::KeyUnavailable, "see environment.encryption in the configuration"),
            Self::NotEncrypted => (Code::InvalidRequest, hint::ENABLE_ENCRYPTION),
            Self::Write { .. } | Self::Seal { .. } | Self::Tidy(_) | Self::List { .. } => {
                (Code::Internal, "is the disk full? agentd's log has more")
            }
            Self::Read { .. } | Self::Parse { .. } | Self::Version { .. } | Self::Sealed { .. } => {
                (Code::EnvironmentUnreadable, "move the file away, and the session continues with a fresh environment")
            }
        };
        Problem::new(code, chain(self)).hint(hint)
    }
}

impl Environments {
    /// Creates the store. `credentials` is the directory where systemd put this service's credentials.
    pub fn new(directories: &Directories, encryption: &Encryption, credentials: Option<PathBuf>) -> Self {
        Self {
            vault: Arc::new(Vault::new(encryption, credentials, &directories.state)),
            directories: directories.clone(),
            secrets: Arc::default(),
        }
    }

    /// Returns the store with another encryption setting.
    #[must_use]
    pub fn reconfigured(&self, encryption: &Encryption) -> Self {
        Self {
            vault: Arc::new(self.vault.reconfigured(encryption)),
            directories: self.directories.clone(),
            secrets: Arc::clone(&self.secrets),
        }
    }

    /// Returns the vault, which seals and opens other documents about environments too.
    pub fn vault(&self) -> Arc<Vault> {
        Arc::clone(&self.vault)
    }

    /// Reports whether environments are stored sealed.
    pub fn is_encrypted(&self) -> bool {
        self.vault.enabled
    }

    /// Returns the id of the key for sealing. Returns `None` without encryption or before the first key. Creates no
    /// key.
    pub fn key_id(&self) -> Result<Option<String>, EnvironmentError> {
        if !self.vault.enabled {
            return Ok(None);
        }
        self.vault.keys.look().map_err(EnvironmentError::NoKey)
    }

    fn path(&self, id: &SessionId) -> PathBuf {
        self.directories.session(id).join(NAME)
    }

    /// Returns the stored environments of a session, or `None` before its first launch. Secrets have values only in
    /// a sealed file.
    pub fn read(&self, id: &SessionId) -> Result<Option<StoredEnvironments>, EnvironmentError> {
        let path = self.path(id);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(EnvironmentError::Read { path, source }),
        };
        if bytes.is_empty() {
            // A power cut can leave this of a file that was not on the disk yet; see `write`.
            return Ok(None);
        }
        let parse = |source| EnvironmentError::Parse { path: path.clone(), source };
        let version = version(&bytes).map_err(parse)?;
        if version == 1 {
            let last: EnvironmentView = serde_json::from_slice(&bytes).map_err(parse)?;
            return Ok(Some(StoredEnvironments { created: last.clone(), last, attributes: None }));
        }
        if !VERSIONS.iter().any(|known| u64::from(*known) == version) {
            return Err(EnvironmentError::Version { path, found: version });
        }
        match serde_json::from_slice::<Document<Box<StoredEnvironments>>>(&bytes).map_err(parse)?.content {
            Content::Clear(kept) => Ok(Some(*kept)),
            Content::Sealed(sealed) => {
                let key = self.vault.keys.find(&sealed.key).map_err(|errors| EnvironmentError::KeyGone {
                    path: path.clone(),
                    key: sealed.key.clone(),
                    tried: errors.iter().fold(String::new(), |text, error| format!("{text}; {}", chain(error))),
                })?;
                let opened = key.open(NAME, id.as_str(), &sealed);
                let opened = opened.map_err(|source| EnvironmentError::Sealed { path: path.clone(), source })?;
                serde_json::from_slice(&opened).map(Some).map_err(parse)
            }
        }
    }

    /// Stores the environment of a launch beside the first one. Returns the previously stored environments. The file
    /// may be empty after a power cut until [`Self::sync`].
    pub fn write(
        &self,
        id: &SessionId,
        environment: &Environment,
        captured: Timestamp,
        launch: u64,
    ) -> Result<Option<StoredEnvironments>, EnvironmentError> {
        let _writing = self.vault.writing();
        let before = self.read(id)?;
        let key = self.key()?;
        let last = environment.full_view(captured, launch);
        let created = before.as_ref().map_or_else(|| last.clone(), |before| before.created.clone());
        let stored = StoredEnvironments { created, last, attributes: environment.attributes.clone() };
        let (path, bytes) = self.file_of(id, &stored, key.as_ref())?;
        files::replace(&path, &bytes).map_err(|source| EnvironmentError::Write { path, source })?;
        let secrets = environment.secret_pairs().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
        locked(&self.secrets).insert(id.clone(), secrets);
        Ok(before)
    }

    /// Syncs the stored environment of a session to the disk.
    pub fn sync(&self, id: &SessionId) -> Result<(), EnvironmentError> {
        let path = self.path(id);
        files::sync(&path).map_err(|source| EnvironmentError::Write { path, source })
    }

    /// Stores the renewed environment of a running launch. Does nothing if a newer launch has been stored.
    pub fn renew(&self, id: &SessionId, view: EnvironmentView) -> Result<(), EnvironmentError> {
        let _writing = self.vault.writing();
        match self.read(id)? {
            Some(kept) if kept.last.launch == view.launch => {
                self.put(id, &StoredEnvironments { last: view, ..kept }, self.key()?.as_ref())
            }
            _ => Ok(()),
        }
    }

    /// Returns the secrets of the session's last launch under this daemon.
    pub fn secrets(&self, id: &SessionId) -> BTreeMap<String, Vec<u8>> {
        locked(&self.secrets).get(id).cloned().unwrap_or_default()
    }

    /// Drops the secrets of a removed session.
    pub fn forget(&self, id: &SessionId) {
        locked(&self.secrets).remove(id);
    }

    /// Takes a new key into use and seals every session's file with it. Former keys stay until no file needs them.
    pub fn rotate(&self) -> Result<RotationView, EnvironmentError> {
        let _writing = self.vault.writing();
        if !self.vault.enabled {
            return Err(EnvironmentError::NotEncrypted);
        }
        let key = self.vault.keys.renew().map_err(EnvironmentError::NoKey)?;
        let (mut rewritten, mut failed) = (Vec::new(), Vec::new());
        for session in self.sessions()? {
            let written = self.read(&session).and_then(|kept| match kept {
                Some(kept) => self.put(&session, &kept, Some(&key)).map(|()| true),
                None => Ok(false),
            });
            let begun_with = self.directories.session(&session).join(SESSION_SNAPSHOT);
            let resealed = stored_snapshot::reseal(&begun_with, &self.vault);
            let written = written.and_then(|written| {
                let failed = |source| EnvironmentError::Write { path: begun_with, source };
                resealed.map(|()| written).map_err(failed)
            });
            match written {
                Ok(true) => rewritten.push(session),
                Ok(false) => {}
                Err(error) => failed.push(RotationFailure { session, reason: chain(&error) }),
            }
        }
        let shared = stored_snapshot::reseal_all(&self.directories.shared_snapshots(), &self.vault);
        stored_snapshot::reseal_or_remove(&self.directories.snapshots(), &self.vault);
        let scheduled = stored_snapshot::reseal_all(&self.directories.schedule_environments(), &self.vault);
        if failed.is_empty() && shared && scheduled {
            self.vault.keys.forget_all_but(&key).map_err(EnvironmentError::Tidy)?;
        }
        let kept_keys = self.vault.keys.others(&key).map_err(EnvironmentError::Tidy)?;
        Ok(RotationView { key: key.id().to_owned(), rewritten, failed, kept_keys })
    }

    /// Returns every session with a directory, including sessions that could not be loaded.
    fn sessions(&self) -> Result<Vec<SessionId>, EnvironmentError> {
        let path = self.directories.sessions();
        let listed = std::fs::read_dir(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let listed = listed.map_err(|source| EnvironmentError::List { path, source })?;
        let mut ids: Vec<SessionId> =
            listed.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        ids.sort();
        Ok(ids)
    }

    fn key(&self) -> Result<Option<Key>, EnvironmentError> {
        self.vault.key().map_err(EnvironmentError::NoKey)
    }

    fn put(&self, id: &SessionId, kept: &StoredEnvironments, key: Option<&Key>) -> Result<(), EnvironmentError> {
        let (path, bytes) = self.file_of(id, kept, key)?;
        files::write(&path, &bytes).map_err(|source| EnvironmentError::Write { path, source })
    }

    /// Returns the path and the content of a session's file.
    fn file_of(
        &self,
        id: &SessionId,
        kept: &StoredEnvironments,
        key: Option<&Key>,
    ) -> Result<(PathBuf, Vec<u8>), EnvironmentError> {
        let path = self.path(id);
        let content = match key {
            Some(key) => {
                let document = serde_json::to_vec(kept)
                    .map_err(|source| EnvironmentError::Parse { path: path.clone(), source })?;
                let sealed = key.seal(NAME, id.as_str(), &document);
                Content::Sealed(sealed.map_err(|source| EnvironmentError::Seal { path: path.clone(), source })?)
            }
            None => Content::Clear(Box::new(StoredEnvironments {
                created: without_secrets(kept.created.clone()),
                last: without_secrets(kept.last.clone()),
                attributes: kept.attributes.clone(),
            })),
        };
        match files::json(&Document { version: VERSION, content }) {
            Ok(bytes) => Ok((path, bytes)),
            Err(source) => Err(EnvironmentError::Write { path, source }),
        }
    }
}

#[cfg(test)]
mod tests;
