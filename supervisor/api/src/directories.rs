//! Directories on the daemon's machine, for the completion of a path: `/v1/directories`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Maximum number of directories in a [`DirectoryList`].
pub const LISTED_DIRECTORIES: u32 = 200;

/// The response of `GET /v1/directories`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DirectoryList {
    /// The directory that was listed.
    pub directory: PathBuf,
    /// Absolute paths of the directories in it that fit, sorted. At most 200.
    pub directories: Vec<PathBuf>,
    /// Whether more directories fit.
    pub more: bool,
}
