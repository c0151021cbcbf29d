//! Defines the errors of `agentctl plugin new`.

use std::io;
use std::path::PathBuf;

/// Reason why no project was created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NewError {
    #[error("{name:?} is not a valid plugin name: {what}")]
    Name { name: String, what: &'static str },
    #[error("{} already exists, and is not an empty directory", .0.display())]
    Exists(PathBuf),
    #[error("cannot create {}", path.display())]
    Make { path: PathBuf, source: io::Error },
}

impl NewError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Name { .. } => Some("1 to 64 of a-z, 0-9 and -, beginning with a letter: corp-modules".to_owned()),
            Self::Exists(_) => Some("choose another directory with --dir, or remove it".to_owned()),
            Self::Make { .. } => None,
        }
    }
}
