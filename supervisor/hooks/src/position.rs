//! `hooks/NAME.json` in the state directory: how far a hook has dealt with the feed.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use agentd_host::files;
use serde::{Deserialize, Serialize};

use crate::tracker::Tracker;

/// Version of the file. A file of another version is not read and stays unchanged.
const VERSION: u32 = 1;

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    version: u32,
    /// Cursor of the last event that the hook has dealt with.
    pub(crate) cursor: u64,
    /// State of the sessions at the cursor.
    #[serde(default)]
    pub(crate) tracker: Tracker,
}

/// The field that every version of the file has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// The file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PositionError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path:?} is not the position of a hook; remove it, and the hook begins with new events")]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error("{path:?} has version {found}, but this agentd supports version {VERSION}; the file is unchanged")]
    Version { path: PathBuf, found: u32 },
    #[error("cannot write {path:?}")]
    Write { path: PathBuf, source: io::Error },
}

impl Position {
    pub(crate) fn at(cursor: u64, tracker: Tracker) -> Self {
        Self { version: VERSION, cursor, tracker }
    }

    /// Reads the position of a hook. `None` for a new hook.
    pub(crate) fn read(directory: &Path, name: &str) -> Result<Option<Self>, PositionError> {
        let path = path(directory, name);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(PositionError::Read { path, source }),
        };
        let parse = |source| PositionError::Parse { path: path.clone(), source };
        let found = serde_json::from_slice::<Versioned>(&bytes).map_err(parse)?.version;
        if found != VERSION {
            return Err(PositionError::Version { path, found });
        }
        serde_json::from_slice(&bytes).map(Some).map_err(parse)
    }

    /// Replaces the file in one step.
    pub(crate) fn write(&self, directory: &Path, name: &str) -> Result<(), PositionError> {
        let path = path(directory, name);
        let written = agentd_directory::create(directory).and_then(|()| files::write_json(&path, self));
        written.map_err(|source| PositionError::Write { path, source })
    }
}

/// Removes the positions of all other hooks.
pub(crate) fn forget(directory: &Path, names: &BTreeSet<String>) -> io::Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if path.extension().is_some_and(|extension| extension == "json") && !names.contains(name) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_back_and_others_are_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("hooks");
        assert_eq!(Position::read(&directory, "a").unwrap(), None);
        forget(&directory, &BTreeSet::new()).unwrap();
        let position = Position::at(7, Tracker::default());
        position.write(&directory, "a").unwrap();
        position.write(&directory, "b").unwrap();
        forget(&directory, &["a".to_owned()].into()).unwrap();
        assert_eq!(Position::read(&directory, "a").unwrap(), Some(position));
        assert_eq!(Position::read(&directory, "b").unwrap(), None);
    }

    #[test]
    fn a_damaged_file_and_another_version_are_errors_that_name_the_file() {
        let root = tempfile::tempdir().unwrap();
        for (text, expected) in [("{", "is not the position"), ("{\"version\":2,\"cursor\":[]}", "version 2")] {
            std::fs::write(root.path().join("a.json"), text).unwrap();
            let error = Position::read(root.path(), "a").unwrap_err().to_string();
            assert!(error.contains("a.json") && error.contains(expected), "{error}");
        }
    }
}
