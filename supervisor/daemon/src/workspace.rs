//! The session's working directory: whether it is there, answers, and can be worked in.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentd_api::{Code, Problem};

use crate::capability::{Machine, Place};
use crate::scarce;

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
    #[error("the directory {path:?} does not answer: {reason}")]
    Silent { path: PathBuf, reason: String },
    #[error("the directory {path:?} could not be looked at: {reason}")]
    Unknown { path: PathBuf, reason: String },
}

impl WorkspaceError {
    /// One CamelCase word, for the condition.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Relative { .. } => "DirectoryNotAbsolute",
            Self::Gone { .. } => "DirectoryGone",
            Self::NotADirectory { .. } => "NotADirectory",
            Self::Closed { .. } => "DirectoryClosed",
            Self::Silent { .. } => "DirectorySilent",
            Self::Unknown { .. } => "OutOfResources",
        }
    }

    /// What is answered to who asks for something in it.
    pub(crate) fn problem(&self) -> Problem {
        if let Self::Unknown { .. } = self {
            return scarce::problem(&self.to_string());
        }
        if let Self::Silent { .. } = self {
            return Problem::new(Code::DirectorySilent, self.to_string()).hint(
                "see whether the server of its file system can be reached, and unmount what is dead; then ask again",
            );
        }
        Problem::new(Code::NoSuchDirectory, self.to_string())
            .hint("give the absolute path of a directory that is there")
    }
}

/// How long a directory has to answer. Longer than a file server takes that is well, and one that has to be mounted first.
const ANSWER: Duration = Duration::from_secs(10);

/// Looks at the directory; an agent may be started in it if this is well.
pub(crate) async fn check(machine: &Machine, path: &Path) -> Result<(), WorkspaceError> {
    if !path.is_absolute() {
        return Err(WorkspaceError::Relative { path: path.to_owned() });
    }
    let places = machine.places([path.to_owned()], Instant::now() + ANSWER, |_| true).await;
    judge(path, places.into_iter().next())
}

fn judge(path: &Path, place: Option<Place>) -> Result<(), WorkspaceError> {
    let path = path.to_owned();
    match place {
        Some(Place::Directory { usable: true, .. }) => Ok(()),
        Some(Place::Directory { usable: false, .. }) => {
            Err(WorkspaceError::Closed { path, reason: "it is not open to this user".to_owned() })
        }
        Some(Place::File { .. } | Place::Other) => Err(WorkspaceError::NotADirectory { path }),
        Some(Place::Closed(reason)) => Err(WorkspaceError::Closed { path, reason }),
        Some(Place::Silent(reason)) => Err(WorkspaceError::Silent { path, reason }),
        Some(Place::Scarce(reason)) => Err(WorkspaceError::Unknown { path, reason }),
        Some(Place::Absent) | None => Err(WorkspaceError::Gone { path }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_that_can_be_wrong_with_a_directory_has_its_reason() {
        let path = PathBuf::from("/work");
        let of = |place| judge(&path, Some(place)).map_err(|error| error.reason());
        assert_eq!(of(Place::Directory { path: path.clone(), usable: true }), Ok(()));
        assert_eq!(of(Place::Directory { path: path.clone(), usable: false }), Err("DirectoryClosed"));
        assert_eq!(of(Place::File { path: path.clone(), usable: true }), Err("NotADirectory"));
        assert_eq!(of(Place::Other), Err("NotADirectory"));
        assert_eq!(of(Place::Absent), Err("DirectoryGone"));
        assert_eq!(of(Place::Closed("no".to_owned())), Err("DirectoryClosed"));
        assert_eq!(of(Place::Silent("no".to_owned())), Err("DirectorySilent"));
        assert_eq!(of(Place::Scarce("no".to_owned())), Err("OutOfResources"));
        let code = |place| judge(&path, Some(place)).map_err(|error| error.problem().code);
        assert_eq!(code(Place::Absent), Err(Code::NoSuchDirectory));
        assert_eq!(code(Place::Silent("no".to_owned())), Err(Code::DirectorySilent), "it may be there");
    }
}
