//! The mount table of this process's namespace, read again when it has changed, and paths without symbolic links.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use agentd_plugin_host::MountEntry;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use super::linux_facts::mounts;

/// Maximum number of readings if the table changes meanwhile.
const READINGS: usize = 8;

/// The mount table and the descriptor that reports its changes.
#[derive(Debug)]
pub struct MountWatch {
    table: File,
    /// Whether the entries have been read since the last change.
    is_read: bool,
}

impl MountWatch {
    /// Opens the table.
    pub fn open() -> io::Result<Self> {
        Ok(Self { table: File::open("/proc/self/mountinfo")?, is_read: false })
    }

    /// Reads the table if it has changed since the last call. The first call always reads it. Returns `None` if the
    /// table is unchanged.
    pub fn changed(&mut self) -> io::Result<Option<Vec<MountEntry>>> {
        // The change is taken before the table is read. A change during the reading is found after it.
        if !self.has_event()? && self.is_read {
            return Ok(None);
        }
        for _ in 0..READINGS {
            self.is_read = false;
            let entries = mounts()?;
            if !self.has_event()? {
                self.is_read = true;
                return Ok(Some(entries));
            }
        }
        Err(io::Error::other("the mount table changes all the time"))
    }

    /// Reports whether the table has changed since the last call. A change is an error and urgent data for poll(2)
    /// (proc(5), `/proc/pid/mountinfo`).
    fn has_event(&self) -> io::Result<bool> {
        let mut table = [PollFd::new(self.table.as_fd(), PollFlags::POLLPRI)];
        poll(&mut table, PollTimeout::ZERO)?;
        let events = table[0].revents().unwrap_or(PollFlags::POLLERR);
        Ok(events.intersects(PollFlags::POLLPRI | PollFlags::POLLERR))
    }
}

/// Opens a path for its attributes alone. Fails with `ELOOP` if one of its directories is a symbolic link, and if the
/// file itself is one unless `may_be_link`.
pub fn open_without_links(path: &Path, may_be_link: bool) -> io::Result<OwnedFd> {
    let last = if may_be_link { OFlags::NOFOLLOW } else { OFlags::empty() };
    let flags = OFlags::PATH | OFlags::CLOEXEC | last;
    Ok(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}
