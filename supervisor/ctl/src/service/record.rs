//! Records the installed files with their digests, so that only unchanged files are replaced or removed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ServiceError;
use super::material::digest;

/// Version of the file's format. Other versions are neither read nor overwritten.
const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    /// Version of agentd that was installed.
    pub(crate) version: String,
    pub(crate) programs: PathBuf,
    /// Path and SHA-256 of each installed file.
    pub(crate) files: BTreeMap<PathBuf, String>,
}

/// State of a file in comparison with the file that this program would install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Absent,
    /// Equal to the file to install.
    Current,
    /// Unchanged since an earlier install.
    Ours,
    /// Changed since the install, or of another origin.
    Foreign,
}

impl Record {
    pub(crate) fn new(version: &str, programs: &Path, files: BTreeMap<PathBuf, String>) -> Self {
        Self { format: VERSION, version: version.to_owned(), programs: programs.to_owned(), files }
    }

    /// Reads the record from a file; `None` without a file.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, ServiceError> {
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

    pub(crate) fn text(&self) -> Result<String, ServiceError> {
        let text = serde_json::to_string_pretty(self).map_err(|error| ServiceError::Encode(error.into()))?;
        Ok(text + "\n")
    }

    pub(crate) fn has(&self, path: &Path, digest: &str) -> bool {
        self.files.get(path).is_some_and(|known| known == digest)
    }
}

/// Returns the digest of a file's content; `None` without a file.
pub(crate) fn digest_of(path: &Path) -> Result<Option<String>, ServiceError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(digest(&bytes))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ServiceError::Read { path: path.to_owned(), source }),
    }
}

/// Compares the file at a path with the wanted digest and with the record.
pub(crate) fn standing(path: &Path, wanted: &str, record: Option<&Record>) -> Result<Standing, ServiceError> {
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
