//! `environment.json`: the environments of a session's first and last launch, whole or not there, sealed where that is configured.
//!
//! A file in clear has no secret's value. A sealed one has everything, and says in clear nothing but its key's id. What cannot be
//! read is never written over: the launch that would do it is refused. A file is sealed, or opened, when it is next written
//! after the setting was changed.

mod document;
mod keys;
mod seal;
mod vault;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use agentd_api::environment::{EnvironmentView, RotationFailure, RotationView};
use agentd_api::{Code, Problem, SessionId};
use agentd_keeper::protocol::Attributes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::merge::{Environment, without_secrets};
use super::services::chain;
use super::snapshot::{self, SESSION_SNAPSHOT};
use crate::config::Encryption;
use crate::directories::Directories;
use crate::store;
pub(crate) use document::{Content, Document, version};
use keys::KeyError;
use seal::{Key, SealError};
pub(crate) use vault::Vault;

const NAME: &str = "environment.json";
/// The version of the file. Version 1 had none, and was the last launch's environment; version 2 knew no variable that expires, and
/// would give one again that has.
const VERSION: u32 = 3;
/// Those that are read.
pub(crate) const VERSIONS: [u32; 3] = [1, 2, VERSION];

/// The environments of all sessions.
#[derive(Debug)]
pub(crate) struct Environments {
    directories: Directories,
    vault: Arc<Vault>,
    /// The secrets of each session's last launch under this daemon.
    secrets: Arc<Mutex<SecretsOfSessions>>,
}

type SecretsOfSessions = HashMap<SessionId, BTreeMap<String, Vec<u8>>>;

/// What is kept of a session's environments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Of the first launch that is known; which one it was stands in it.
    pub(crate) created: EnvironmentView,
    pub(crate) last: EnvironmentView,
    /// What the agent of the last one inherited besides its variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) attributes: Option<Attributes>,
}

/// Why a stored environment cannot be read or written. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvironmentError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path:?} is not a stored environment")]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error(
        "{path:?} is of version {found}; this agentd knows {VERSION}. A newer agentd wrote it; nothing was changed"
    )]
    Version { path: PathBuf, found: u64 },
    #[error("{path:?} is sealed with the key {key}, which is not there{tried}; nothing was changed")]
    KeyGone { path: PathBuf, key: String, tried: String },
    #[error("{path:?} is sealed and cannot be opened")]
    Sealed { path: PathBuf, source: SealError },
    #[error("environments are to be sealed, and the key for it cannot be had")]
    NoKey(#[source] KeyError),
    #[error("cannot write {path:?}")]
    Write { path: PathBuf, source: io::Error },
    #[error("{path:?} could not be sealed")]
    Seal { path: PathBuf, source: SealError },
    #[error("environments are not encrypted, so there is no key to change")]
    NotEncrypted,
    #[error("cannot list the sessions in {path:?}")]
    List { path: PathBuf, source: io::Error },
    #[error("a key that nothing needs any more could not be removed")]
    Tidy(#[source] KeyError),
}

impl EnvironmentError {
    /// One CamelCase word, for the condition.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::KeyGone { .. } | Self::NoKey(_) => "KeyUnavailable",
            Self::Write { .. } | Self::Seal { .. } | Self::Tidy(_) => "NotKept",
            Self::NotEncrypted => "NotEncrypted",
            Self::Read { .. } | Self::Parse { .. } | Self::Version { .. } | Self::Sealed { .. } | Self::List { .. } => {
                "EnvironmentUnreadable"
            }
        }
    }

    pub(crate) fn problem(&self) -> Problem {
        let (code, hint) = match self {
            Self::KeyGone { .. } => (
                Code::KeyUnavailable,
                "bring the key back, at its place or under environment.encryption.previous; without it, remove the file \
                 and the session goes on with a fresh environment",
            ),
            Self::NoKey(_) => (Code::KeyUnavailable, "see environment.encryption in the configuration"),
            Self::NotEncrypted => {
                (Code::InvalidRequest, "set enabled = true under [environment.encryption], and `agentctl reload`")
            }
            Self::Write { .. } | Self::Seal { .. } | Self::Tidy(_) | Self::List { .. } => {
                (Code::Internal, "is the disk full? agentd's log has more")
            }
            Self::Read { .. } | Self::Parse { .. } | Self::Version { .. } | Self::Sealed { .. } => {
                (Code::EnvironmentUnreadable, "move the file away, and the session goes on with a fresh environment")
            }
        };
        Problem::new(code, chain(self)).hint(hint)
    }
}

impl Environments {
    /// `credentials`: the directory that systemd put this service's credentials in.
    pub(crate) fn new(directories: &Directories, encryption: &Encryption, credentials: Option<PathBuf>) -> Self {
        Self {
            vault: Arc::new(Vault::new(encryption, credentials, &directories.state)),
            directories: directories.clone(),
            secrets: Arc::default(),
        }
    }

    /// The same under another configuration.
    pub(crate) fn again(&self, encryption: &Encryption) -> Self {
        Self {
            vault: Arc::new(self.vault.again(encryption)),
            directories: self.directories.clone(),
            secrets: Arc::clone(&self.secrets),
        }
    }

    /// What seals and opens, for other documents that are kept of environments.
    pub(crate) fn vault(&self) -> Arc<Vault> {
        Arc::clone(&self.vault)
    }

    /// Whether what is kept is sealed.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.vault.enabled
    }

    /// The id of the key that is sealed with; nothing where none is, or none was made yet. Makes none.
    pub(crate) fn key_id(&self) -> Result<Option<String>, EnvironmentError> {
        if !self.vault.enabled {
            return Ok(None);
        }
        self.vault.keys.look().map_err(EnvironmentError::NoKey)
    }

    fn path(&self, id: &SessionId) -> PathBuf {
        self.directories.session(id).join(NAME)
    }

    /// What is kept of a session; nothing before its first launch. Secrets have values where the file is sealed.
    pub(crate) fn read(&self, id: &SessionId) -> Result<Option<Kept>, EnvironmentError> {
        let path = self.path(id);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(EnvironmentError::Read { path, source }),
        };
        let parse = |source| EnvironmentError::Parse { path: path.clone(), source };
        let version = version(&bytes).map_err(parse)?;
        if version == 1 {
            let last: EnvironmentView = serde_json::from_slice(&bytes).map_err(parse)?;
            return Ok(Some(Kept { created: last.clone(), last, attributes: None }));
        }
        if !VERSIONS.iter().any(|known| u64::from(*known) == version) {
            return Err(EnvironmentError::Version { path, found: version });
        }
        match serde_json::from_slice::<Document<Box<Kept>>>(&bytes).map_err(parse)?.content {
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

    /// Keeps the environment of a launch, and the first one there was; what was kept before is given back.
    pub(crate) fn write(
        &self,
        id: &SessionId,
        environment: &Environment,
        captured: Timestamp,
        launch: u64,
    ) -> Result<Option<Kept>, EnvironmentError> {
        let _writing = self.vault.writing();
        let before = self.read(id)?;
        let key = self.key()?;
        let last = environment.full_view(captured, launch);
        let created = before.as_ref().map_or_else(|| last.clone(), |before| before.created.clone());
        self.put(id, &Kept { created, last, attributes: environment.attributes.clone() }, key.as_ref())?;
        let secrets = environment.secret_pairs().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), secrets);
        Ok(before)
    }

    /// Keeps what was found of the environment of a launch that runs; nothing is done where another launch has come since.
    pub(crate) fn renew(&self, id: &SessionId, view: EnvironmentView) -> Result<(), EnvironmentError> {
        let _writing = self.vault.writing();
        match self.read(id)? {
            Some(kept) if kept.last.launch == view.launch => {
                self.put(id, &Kept { last: view, ..kept }, self.key()?.as_ref())
            }
            _ => Ok(()),
        }
    }

    /// The secrets that the session's last launch under this daemon had.
    pub(crate) fn secrets(&self, id: &SessionId) -> BTreeMap<String, Vec<u8>> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned().unwrap_or_default()
    }

    /// The session is removed.
    pub(crate) fn forget(&self, id: &SessionId) {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Takes another key into use and seals every session's file with it. Former keys are kept until none is left that needs one.
    pub(crate) fn rotate(&self) -> Result<RotationView, EnvironmentError> {
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
            let resealed = snapshot::reseal(&begun_with, &self.vault);
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
        let shared = snapshot::reseal_all(&self.directories.shared_snapshots(), &self.vault);
        snapshot::reseal_or_remove(&self.directories.snapshots(), &self.vault);
        if failed.is_empty() && shared {
            self.vault.keys.forget_all_but(&key).map_err(EnvironmentError::Tidy)?;
        }
        let kept_keys = self.vault.keys.others(&key).map_err(EnvironmentError::Tidy)?;
        Ok(RotationView { key: key.id().to_owned(), rewritten, failed, kept_keys })
    }

    /// Every session that has a directory, those too that could not be read otherwise.
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

    fn put(&self, id: &SessionId, kept: &Kept, key: Option<&Key>) -> Result<(), EnvironmentError> {
        let path = self.path(id);
        let content = match key {
            Some(key) => {
                let document = serde_json::to_vec(kept)
                    .map_err(|source| EnvironmentError::Parse { path: path.clone(), source })?;
                let sealed = key.seal(NAME, id.as_str(), &document);
                Content::Sealed(sealed.map_err(|source| EnvironmentError::Seal { path: path.clone(), source })?)
            }
            None => Content::Clear(Box::new(Kept {
                created: without_secrets(kept.created.clone()),
                last: without_secrets(kept.last.clone()),
                attributes: kept.attributes.clone(),
            })),
        };
        store::write_json(&path, &Document { version: VERSION, content })
            .map_err(|source| EnvironmentError::Write { path, source })
    }
}

#[cfg(test)]
mod tests;
