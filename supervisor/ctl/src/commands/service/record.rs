//! What an install put where, with the digest that it had then: so it is known what is ours to replace and to remove.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ServiceError;
use super::material::digest;

/// Version of the file. Another one is not read, and not written over.
const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::commands) struct Record {
    format: u32,
    /// The version of agentd that was installed.
    pub(in crate::commands) version: String,
    pub(super) programs: PathBuf,
    /// Each file by its path, with its SHA-256.
    pub(super) files: BTreeMap<PathBuf, String>,
}

/// How a file stands to what this program would put there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum Standing {
    Absent,
    /// The same.
    Current,
    /// As an install left it.
    Ours,
    /// Somebody else's, or changed since.
    Foreign,
}

impl Record {
    pub(super) fn new(version: &str, programs: &Path, files: BTreeMap<PathBuf, String>) -> Self {
        Self { format: VERSION, version: version.to_owned(), programs: programs.to_owned(), files }
    }

    /// The record in a file; nothing where there is none.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, ServiceError> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ServiceError::Read { path: path.to_owned(), source }),
        };
        let damaged = |reason: String| ServiceError::Record { path: path.to_owned(), reason };
        let record: Self = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if record.format == VERSION {
            Ok(Some(record))
        } else {
            Err(damaged(format!("it has format {}, and this agentctl knows {VERSION}", record.format)))
        }
    }

    pub(super) fn text(&self) -> Result<String, ServiceError> {
        let text = serde_json::to_string_pretty(self).map_err(|error| ServiceError::Encode(error.into()))?;
        Ok(text + "\n")
    }

    pub(super) fn has(&self, path: &Path, digest: &str) -> bool {
        self.files.get(path).is_some_and(|known| known == digest)
    }
}

/// The digest of a file's content; nothing where there is no file.
pub(super) fn digest_of(path: &Path) -> Result<Option<String>, ServiceError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(digest(&bytes))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ServiceError::Read { path: path.to_owned(), source }),
    }
}

/// How the file at a path stands to a wanted digest and to what was installed.
pub(super) fn standing(path: &Path, wanted: &str, record: Option<&Record>) -> Result<Standing, ServiceError> {
    Ok(match digest_of(path)? {
        None => Standing::Absent,
        Some(found) if found == wanted => Standing::Current,
        Some(found) if record.is_some_and(|record| record.has(path, &found)) => Standing::Ours,
        Some(_) => Standing::Foreign,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_installed_is_told_from_what_somebody_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agentd.service");
        let record = Record::new("1", directory.path(), [(path.clone(), digest(b"one"))].into());
        let standing = |wanted: &[u8]| standing(&path, &digest(wanted), Some(&record)).unwrap();
        assert_eq!(standing(b"two"), Standing::Absent);
        std::fs::write(&path, "one").unwrap();
        assert_eq!((standing(b"one"), standing(b"two")), (Standing::Current, Standing::Ours));
        std::fs::write(&path, "one, changed").unwrap();
        assert_eq!(standing(b"two"), Standing::Foreign);
    }

    #[test]
    fn a_record_of_another_format_is_refused_and_none_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("installed.json");
        assert_eq!(Record::read(&path).unwrap(), None);
        let record = Record::new("1", Path::new("/bin"), BTreeMap::new());
        std::fs::write(&path, record.text().unwrap()).unwrap();
        assert_eq!(Record::read(&path).unwrap(), Some(record));
        std::fs::write(&path, r#"{"format":2,"version":"9","programs":"/","files":{}}"#).unwrap();
        assert!(matches!(Record::read(&path), Err(ServiceError::Record { .. })));
    }
}
