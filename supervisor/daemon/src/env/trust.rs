//! Which scripts of working directories may run: those whose path and content their user has approved.
//!
//! A script in a working directory comes from whoever wrote the repository. It is approved as *this path with this content*
//! (direnv's rule), and the record is a file of the daemon's state; nothing about it is kept in the directory itself.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::merge::hex;
use crate::store;

/// The record, and the file it is kept in.
#[derive(Debug)]
pub(crate) struct Trust {
    file: PathBuf,
    record: Mutex<Record>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Record {
    version: u32,
    /// By the script's real path.
    scripts: BTreeMap<PathBuf, Decision>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "decision")]
enum Decision {
    Allowed { sha256: String },
    Denied,
}

pub(crate) const VERSION: u32 = 1;

/// How a script stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Standing {
    Approved,
    NotApproved,
    /// Approved with another content.
    Changed,
    Denied,
}

/// A script and how it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Script {
    /// With symlinks resolved.
    pub(crate) path: PathBuf,
    /// SHA-256 of its content, hex.
    pub(crate) digest: String,
    pub(crate) state: Standing,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path:?} belongs to user {owner}: only your own scripts and root's can be approved")]
    Owner { path: PathBuf, owner: u32 },
    #[error("{path:?} can be written by others than its owner (mode {mode:o}); `chmod go-w` it first")]
    Writable { path: PathBuf, mode: u32 },
    #[error("cannot keep the approval in {path:?}")]
    Keep { path: PathBuf, source: io::Error },
    #[error("{path:?} is of version {found}; this agentd knows {VERSION}")]
    Version { path: PathBuf, found: u32 },
    #[error("{path:?} is not a record of approvals")]
    Parse { path: PathBuf, source: serde_json::Error },
}

impl Trust {
    /// Reads the record.
    pub(crate) fn open(state: &Path) -> Result<Self, TrustError> {
        let file = state.join("trust.json");
        let record = match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice::<Record>(&bytes)
                .map_err(|source| TrustError::Parse { path: file.clone(), source })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Record { version: VERSION, ..Record::default() },
            Err(source) => return Err(TrustError::Read { path: file, source }),
        };
        if record.version != VERSION {
            return Err(TrustError::Version { path: file, found: record.version });
        }
        Ok(Self { file, record: Mutex::new(record) })
    }

    /// How the script stands; `None` where there is none.
    pub(crate) fn standing(&self, path: &Path) -> Result<Option<Script>, TrustError> {
        let Some((path, digest)) = examine(path)? else { return Ok(None) };
        let record = self.record.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let state = match record.scripts.get(&path) {
            None => Standing::NotApproved,
            Some(Decision::Denied) => Standing::Denied,
            Some(Decision::Allowed { sha256 }) if *sha256 == digest => Standing::Approved,
            Some(Decision::Allowed { .. }) => Standing::Changed,
        };
        Ok(Some(Script { path, digest, state }))
    }

    /// Approves or denies the script as it is now.
    pub(crate) fn decide(&self, path: &Path, allow: bool) -> Result<Option<Script>, TrustError> {
        let Some((path, digest)) = examine(path)? else { return Ok(None) };
        let mut record = self.record.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut changed = record.clone();
        let decision = if allow { Decision::Allowed { sha256: digest.clone() } } else { Decision::Denied };
        changed.scripts.insert(path.clone(), decision);
        store::write_json(&self.file, &changed)
            .map_err(|source| TrustError::Keep { path: self.file.clone(), source })?;
        *record = changed;
        let state = if allow { Standing::Approved } else { Standing::Denied };
        Ok(Some(Script { path, digest, state }))
    }
}

/// The real path and the digest of a script that only its owner, we or root, can write.
fn examine(path: &Path) -> Result<Option<(PathBuf, String)>, TrustError> {
    let failed = |source| TrustError::Read { path: path.to_owned(), source };
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    let content = std::fs::read(&real).map_err(failed)?;
    let metadata = std::fs::metadata(&real).map_err(failed)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != 0 && owner != nix::unistd::getuid().as_raw() {
        return Err(TrustError::Owner { path: real, owner });
    }
    if mode & 0o022 != 0 {
        return Err(TrustError::Writable { path: real, mode });
    }
    Ok(Some((real, hex(&Sha256::digest(content)))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn script(directory: &Path, content: &str, mode: u32) -> PathBuf {
        let path = directory.join("s.sh");
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn state(trust: &Trust, path: &Path) -> Standing {
        trust.standing(path).unwrap().unwrap().state
    }

    #[test]
    fn an_approval_is_of_this_path_with_this_content_and_outlives_the_daemon() {
        let directory = tempfile::tempdir().unwrap();
        let path = script(directory.path(), "export A=1", 0o644);
        let trust = Trust::open(directory.path()).unwrap();
        assert_eq!(state(&trust, &path), Standing::NotApproved);
        trust.decide(&path, true).unwrap();
        assert_eq!(state(&Trust::open(directory.path()).unwrap(), &path), Standing::Approved);
        script(directory.path(), "export A=2", 0o644);
        assert_eq!(state(&trust, &path), Standing::Changed);
        trust.decide(&path, false).unwrap();
        assert_eq!(state(&trust, &path), Standing::Denied);
        assert_eq!(trust.standing(&directory.path().join("none")).unwrap(), None);
    }

    #[test]
    fn a_script_that_others_can_write_is_refused_and_a_symlink_stands_for_what_it_points_to() {
        let directory = tempfile::tempdir().unwrap();
        let trust = Trust::open(directory.path()).unwrap();
        let path = script(directory.path(), "x", 0o666);
        assert!(matches!(trust.decide(&path, true), Err(TrustError::Writable { mode: 0o666, .. })));
        let path = script(directory.path(), "x", 0o644);
        let link = directory.path().join("link.sh");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        trust.decide(&link, true).unwrap();
        assert_eq!(state(&trust, &path), Standing::Approved);
    }

    #[test]
    fn a_record_from_the_future_is_refused_and_not_rewritten() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("trust.json"), r#"{"version":9,"scripts":{}}"#).unwrap();
        assert!(matches!(Trust::open(directory.path()), Err(TrustError::Version { found: 9, .. })));
    }
}
