//! The directories of a run: below a given directory, or in a temporary one.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use agentd_daemon::{Directories, DirectoryError, DirectoryOptions};
use agentd_host::directories::make_private;
use nix::unistd::{AccessFlags, access};
use tempfile::TempDir;

use crate::RunOptions;
use crate::progress::Progress;

/// Reason why a run has no directories.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error(
        "cannot create a temporary directory in {}: {source}; give --state DIR, or mount a writable volume there",
        directory.display()
    )]
    Temporary { directory: PathBuf, source: io::Error },
    #[error("the state directory cannot be used: {}; --state names a directory that this user can write to", chain(.0))]
    State(#[source] DirectoryError),
}

fn chain(error: &DirectoryError) -> String {
    agentd_api::chain(error)
}

/// The directories of a run.
#[derive(Debug)]
pub(crate) struct Place {
    root: PathBuf,
    /// Removed at the end, unless the results could not be delivered.
    temporary: Option<TempDir>,
    /// Directory of the sockets.
    pub(crate) runtime: PathBuf,
    /// Configuration directory of the user.
    pub(crate) config: PathBuf,
    home: Option<PathBuf>,
}

impl Place {
    /// Creates the directories. Each is private, and belongs to this user. The root itself may be a mount that belongs
    /// to another user.
    pub(crate) fn new(options: &RunOptions) -> Result<Self, PlaceError> {
        let temporary = options.state.is_none().then(temporary).transpose()?;
        let root = temporary.as_ref().map(TempDir::path).or(options.state.as_deref()).unwrap_or(Path::new(""));
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        make_private(&root.join("state")).map_err(PlaceError::State)?;
        let runtime = options.runtime_dir.clone().unwrap_or_else(|| root.join("run"));
        let config = options.config_dir.clone().or_else(users_config).unwrap_or_else(|| root.join("config"));
        let home = if has_home() {
            None
        } else {
            let home = root.join("home");
            make_private(&home).map_err(PlaceError::State)?;
            Some(home)
        };
        Ok(Self { root, temporary, runtime, config, home })
    }

    /// Returns the state directory of the daemon.
    pub(crate) fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// Returns the directory of compiled plugins.
    pub(crate) fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// Returns the home directory that the run gives to its session, because this user has no home directory.
    pub(crate) fn home(&self) -> Option<PathBuf> {
        self.home.clone()
    }

    /// Removes a temporary directory that is not needed: its results were delivered, or it has no session. Otherwise
    /// prints where the files of the session are.
    pub(crate) fn leave(self, is_needed: bool, progress: &mut Progress) {
        match self.temporary {
            Some(temporary) if !is_needed => {
                if let Err(error) = temporary.close() {
                    progress.line(&format!("cannot remove the temporary directory: {error}"));
                }
            }
            Some(temporary) => {
                let path = temporary.keep();
                progress.line(&format!("the session's files stay in {}", path.display()));
            }
            None => progress.line(&format!("the session's files stay in {}", self.root.display())),
        }
    }
}

fn temporary() -> Result<TempDir, PlaceError> {
    let directory = std::env::temp_dir();
    let made = tempfile::Builder::new().prefix("agentd-run-").tempdir_in(&directory);
    made.map_err(|source| PlaceError::Temporary { directory, source })
}

/// Returns the configuration directory of a user with a home directory.
fn users_config() -> Option<PathBuf> {
    Directories::find(&DirectoryOptions::default()).ok().map(|found| found.config)
}

/// Reports whether the user has a home directory: `HOME`, else the directory of the passwd entry.
fn has_home() -> bool {
    std::env::home_dir().is_some_and(|home| home.is_absolute())
}

/// Returns a warning about a home directory in which nothing can be written.
pub(crate) fn warning_about(home: Option<&OsStr>) -> Option<String> {
    let home = Path::new(home?);
    let is_writable = access(home, AccessFlags::W_OK).is_ok();
    (!is_writable).then(|| {
        format!("HOME is {}, which this user cannot write to: set HOME to a writable directory", home.display())
    })
}
