//! The mount table of macOS. The kernel reports no change to a caller who does not wait, so each call reads the table.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use agentd_plugin_host::MountEntry;

use super::macos_facts::mounts;

/// The mount table.
#[derive(Debug)]
pub struct MountWatch(());

impl MountWatch {
    /// Succeeds always.
    pub fn open() -> io::Result<Self> {
        Ok(Self(()))
    }

    /// Reads the table.
    pub fn changed(&mut self) -> io::Result<Option<Vec<MountEntry>>> {
        mounts().map(Some)
    }
}

/// Returns an error: a lookup process looks at each path.
pub fn open_without_links(_path: &Path, _may_be_link: bool) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}
