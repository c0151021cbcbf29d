//! Describes agentd as a service of systemd or launchd: its files, its state, and the commands that repair it.
//!
//! The managers are called through their own programs, as a user would. [`record`] stores the installed files: only
//! these are replaced or removed without `--force`. Not responsible for the steps of an install
//! (`commands/service/`).

pub(crate) mod host;
pub(crate) mod journal;
pub(crate) mod launchd;
pub(crate) mod manager;
pub(crate) mod material;
pub(crate) mod record;
pub(crate) mod repair;
pub(crate) mod survey;

use std::path::PathBuf;

use crate::error::Error;
pub(crate) use crate::error::ServiceError;

/// Returns the directory of this program, with links resolved. The other programs of the build are in the same
/// directory.
pub(crate) fn own_directory() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().and_then(std::fs::canonicalize).map_err(Error::Setup)?;
    Ok(own.parent().map(PathBuf::from).unwrap_or_default())
}
