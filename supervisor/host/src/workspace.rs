//! Checks that a session's working directory exists, answers, and can be entered.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentd_api::reason;
use agentd_api::{Code, Problem};
use agentd_plugin_host::Failure;
use async_recursion::async_recursion as boxed;

use crate::capability::{Machine, PathState, Subdirectories};
use crate::exhausted;

/// Reason why a directory cannot be a session's working directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkspaceError {
    /// The path is not absolute.
    #[error("the directory {path:?} is not absolute")]
    Relative { path: PathBuf },
    /// The directory does not exist.
    #[error("the directory {path:?} does not exist")]
    Gone { path: PathBuf },
    /// The path is not a directory.
    #[error("{path:?} is not a directory")]
    NotADirectory { path: PathBuf },
    /// This user cannot enter or examine the directory.
    #[error("the directory {path:?} cannot be entered: {reason}")]
    Closed { path: PathBuf, reason: String },
    /// The directory's file system does not answer.
    #[error("the directory {path:?} does not answer: {reason}")]
    Silent { path: PathBuf, reason: String },
    /// Resources of the machine or of agentd are exhausted.
    #[error("the directory {path:?} could not be examined: {reason}")]
    Unknown { path: PathBuf, reason: String },
}

impl WorkspaceError {
    /// Returns the directory.
    pub fn path(&self) -> &Path {
        match self {
            Self::Relative { path }
            | Self::Gone { path }
            | Self::NotADirectory { path }
            | Self::Closed { path, .. }
            | Self::Silent { path, .. }
            | Self::Unknown { path, .. } => path,
        }
    }

    /// Returns the reason for the condition, as one CamelCase word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Relative { .. } => reason::DIRECTORY_NOT_ABSOLUTE,
            Self::Gone { .. } => reason::DIRECTORY_GONE,
            Self::NotADirectory { .. } => "NotADirectory",
            Self::Closed { .. } => reason::DIRECTORY_CLOSED,
            Self::Silent { .. } => reason::DIRECTORY_SILENT,
            Self::Unknown { .. } => reason::OUT_OF_RESOURCES,
        }
    }

    /// Returns the problem document for a request that uses the directory.
    pub fn problem(&self) -> Problem {
        if let Self::Unknown { .. } = self {
            return exhausted::problem(&self.to_string());
        }
        if let Self::Silent { .. } = self {
            return Problem::new(Code::DirectorySilent, self.to_string()).hint(
                "check that the server of its file system is reachable, or unmount the file system; then try again",
            );
        }
        Problem::new(Code::NoSuchDirectory, self.to_string()).hint("give the absolute path of an existing directory")
    }
}

/// Time limit for the directory's answer. It exceeds the time that a working file server or an automatic mount takes.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Checks the directory. On success, an agent can be started in it.
#[boxed]
pub async fn check(machine: &Machine, path: &Path) -> Result<(), WorkspaceError> {
    if !path.is_absolute() {
        return Err(WorkspaceError::Relative { path: path.to_owned() });
    }
    let places = machine.path_states(vec![path.to_owned()], Instant::now() + ANSWER_TIME, |_| true).await;
    judge(path, places.into_iter().next())
}

/// Checks several directories within the time limit of one. Returns the error of the first that cannot be used.
#[boxed]
pub async fn check_all(machine: &Machine, paths: &[PathBuf]) -> Result<(), WorkspaceError> {
    if paths.is_empty() {
        return Ok(());
    }
    if let Some(path) = paths.iter().find(|path| !path.is_absolute()) {
        return Err(WorkspaceError::Relative { path: path.clone() });
    }
    let places = machine.path_states(paths.to_vec(), Instant::now() + ANSWER_TIME, |_| false).await;
    let mut places = places.into_iter();
    paths.iter().try_for_each(|path| judge(path, places.next()))
}

/// Lists at most `most` directories in `directory` whose names begin with `prefix`, within the time limit of a check.
#[boxed]
pub async fn subdirectories(
    machine: &Machine,
    directory: &Path,
    prefix: &str,
    most: u32,
) -> Result<Subdirectories, WorkspaceError> {
    check(machine, directory).await?;
    let listed = machine.subdirectories(directory, prefix, most, Instant::now() + ANSWER_TIME).await;
    listed.map_err(|failure| {
        let (path, reason) = (directory.to_owned(), failure.to_string());
        match failure {
            Failure::TimedOut(_) => WorkspaceError::Silent { path, reason },
            Failure::NotFound(_) => WorkspaceError::Gone { path },
            _ if exhausted::in_text(&reason).is_some() => WorkspaceError::Unknown { path, reason },
            _ => WorkspaceError::Closed { path, reason },
        }
    })
}

fn judge(path: &Path, place: Option<PathState>) -> Result<(), WorkspaceError> {
    let path = path.to_owned();
    match place {
        Some(PathState::Directory { usable: true, .. }) => Ok(()),
        Some(PathState::Directory { usable: false, .. }) => {
            Err(WorkspaceError::Closed { path, reason: "this user has no permission to enter it".to_owned() })
        }
        Some(PathState::File { .. } | PathState::Other) => Err(WorkspaceError::NotADirectory { path }),
        Some(PathState::Closed(reason)) => Err(WorkspaceError::Closed { path, reason }),
        Some(PathState::Silent(reason)) => Err(WorkspaceError::Silent { path, reason }),
        Some(PathState::Exhausted(reason)) => Err(WorkspaceError::Unknown { path, reason }),
        Some(PathState::Absent) | None => Err(WorkspaceError::Gone { path }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_that_can_be_wrong_with_a_directory_has_its_reason() {
        let path = PathBuf::from("/work");
        let of = |place| judge(&path, Some(place)).map_err(|error| error.reason());
        assert_eq!(of(PathState::Directory { path: path.clone(), usable: true }), Ok(()));
        assert_eq!(of(PathState::Directory { path: path.clone(), usable: false }), Err("DirectoryClosed"));
        assert_eq!(of(PathState::File { path: path.clone(), usable: true }), Err("NotADirectory"));
        assert_eq!(of(PathState::Other), Err("NotADirectory"));
        assert_eq!(of(PathState::Absent), Err("DirectoryGone"));
        assert_eq!(of(PathState::Closed("no".to_owned())), Err("DirectoryClosed"));
        assert_eq!(of(PathState::Silent("no".to_owned())), Err("DirectorySilent"));
        assert_eq!(of(PathState::Exhausted("no".to_owned())), Err("OutOfResources"));
        let code = |place| judge(&path, Some(place)).map_err(|error| error.problem().code);
        assert_eq!(code(PathState::Absent), Err(Code::NoSuchDirectory));
        assert_eq!(code(PathState::Silent("no".to_owned())), Err(Code::DirectorySilent), "it may be there");
    }
}
