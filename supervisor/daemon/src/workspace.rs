//! The session's working directory: whether it is there and can be worked in.

use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// Why a directory cannot be a session's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WorkspaceError {
    #[error("the directory {path:?} is not absolute")]
    Relative { path: PathBuf },
    #[error("the directory {path:?} is not there")]
    Gone { path: PathBuf },
    #[error("{path:?} is not a directory")]
    NotADirectory { path: PathBuf },
    #[error("the directory {path:?} cannot be entered: {reason}")]
    Closed { path: PathBuf, reason: String },
}

impl WorkspaceError {
    /// One CamelCase word, for the condition.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Relative { .. } => "DirectoryNotAbsolute",
            Self::Gone { .. } => "DirectoryGone",
            Self::NotADirectory { .. } => "NotADirectory",
            Self::Closed { .. } => "DirectoryClosed",
        }
    }
}

/// Looks at the directory; an agent may be started in it if this is well.
pub(crate) fn check(path: &Path) -> Result<(), WorkspaceError> {
    let path_buf = || path.to_owned();
    if !path.is_absolute() {
        return Err(WorkspaceError::Relative { path: path_buf() });
    }
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_dir() => return Err(WorkspaceError::NotADirectory { path: path_buf() }),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(WorkspaceError::Gone { path: path_buf() });
        }
        Err(error) => return Err(WorkspaceError::Closed { path: path_buf(), reason: error.to_string() }),
    }
    access(path, AccessFlags::X_OK)
        .map_err(|errno| WorkspaceError::Closed { path: path_buf(), reason: errno.desc().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_that_can_be_wrong_with_a_directory_has_its_reason() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(check(directory.path()), Ok(()));
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(check(&file).unwrap_err().reason(), "NotADirectory");
        assert_eq!(check(&directory.path().join("none")).unwrap_err().reason(), "DirectoryGone");
        assert_eq!(check(Path::new("x")).unwrap_err().reason(), "DirectoryNotAbsolute");
    }
}
