//! Looks at files of file systems that cannot hang, in the daemon itself. Such a look takes a few system calls, and one
//! through a lookup process takes many times as long.
//!
//! A path qualifies if each mount on its way has a type of [`LOCAL_TYPES`]. The way is known only if it has no symbolic
//! link: a link can lead to any other file system. The kernel therefore opens a path only if it has no link.
//! [`LocalFiles`] follows each link itself, after it has judged the link's target by the mount table. For every other
//! path the answer is `None`, and a lookup process has to look ([`super::look`]).
//!
//! The functions here read from disks, so they belong on a thread that may block.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use agentd_plugin_host::MountEntry;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, readlinkat};
use nix::sys::stat::{FileStat, SFlag, fstat};
use nix::unistd::{AccessFlags, access, faccessat};

use super::path_state::PathState;
use crate::platform;

/// Types of file systems on a disk or in memory. All others may wait for a server or a program.
const LOCAL_TYPES: [&str; 12] =
    ["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "ramfs", "rootfs", "tmpfs", "xfs", "zfs"];
/// Block devices that may lie on a server or in a file.
const SERVED_DEVICES: [&str; 4] = ["/dev/drbd", "/dev/loop", "/dev/nbd", "/dev/rbd"];
/// Maximum number of links that are followed, as in `path_resolution(7)`.
const LINKS: usize = 40;

/// The mount table of the daemon, kept until it changes. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Mounts {
    watched: Arc<Mutex<Watched>>,
    is_elsewhere: bool,
}

#[derive(Debug, Default)]
struct Watched {
    watch: Option<platform::MountWatch>,
    entries: Arc<Vec<MountEntry>>,
}

impl Mounts {
    /// Returns the table of a machine that this daemon cannot look at. The table is empty, so a lookup process looks at
    /// each path.
    pub(super) fn elsewhere() -> Self {
        Self { is_elsewhere: true, ..Self::default() }
    }

    /// Returns the current mount table. Reads it only if it has changed. Waits for no file system.
    pub fn current(&self) -> io::Result<Arc<Vec<MountEntry>>> {
        if self.is_elsewhere {
            return Ok(Arc::default());
        }
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let mut watch = match watched.watch.take() {
            Some(watch) => watch,
            None => platform::MountWatch::open()?,
        };
        if let Some(entries) = watch.changed()? {
            watched.entries = Arc::new(entries);
        }
        // After an error the table is opened and read again.
        watched.watch = Some(watch);
        Ok(Arc::clone(&watched.entries))
    }

    /// Returns a view of the files that cannot hang, by the current table. Without a table the view is empty.
    pub fn local_files(&self) -> LocalFiles {
        LocalFiles(self.current().unwrap_or_default())
    }
}

/// The files that cannot hang, by one state of the mount table.
#[derive(Debug, Clone, Default)]
pub struct LocalFiles(pub(super) Arc<Vec<MountEntry>>);

/// A resolved path and its file, pinned by a descriptor.
struct Found {
    path: PathBuf,
    file: OwnedFd,
    stat: FileStat,
}

/// Reason why a path was not found.
enum NotFound {
    /// A lookup process must look.
    Unknown,
    Failed(Errno),
}

impl From<Errno> for NotFound {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES => Self::Failed(errno),
            _ => Self::Unknown,
        }
    }
}

impl From<io::Error> for NotFound {
    fn from(error: io::Error) -> Self {
        Errno::from_raw(error.raw_os_error().unwrap_or_default()).into()
    }
}

impl LocalFiles {
    /// Examines a path like [`super::Machine::path_states`].
    pub fn state(&self, path: &Path) -> Option<PathState> {
        Some(match self.find(path) {
            Ok(found) if is(&found.stat, SFlag::S_IFDIR) => {
                let usable = faccessat(&found.file, ".", AccessFlags::X_OK, AtFlags::empty()).is_ok();
                PathState::Directory { path: found.path, usable }
            }
            Ok(found) if is(&found.stat, SFlag::S_IFREG) => {
                let usable = access(&pinned(&found.file), AccessFlags::X_OK).is_ok();
                PathState::File { path: found.path, usable }
            }
            Ok(_) => PathState::Other,
            Err(NotFound::Failed(Errno::EACCES)) => PathState::Closed(io::Error::from(Errno::EACCES).to_string()),
            Err(NotFound::Failed(_)) => PathState::Absent,
            Err(NotFound::Unknown) => return None,
        })
    }

    /// Reports whether no part of the path, with its links followed, can hang. The path need not exist.
    pub fn has(&self, path: &Path) -> bool {
        !matches!(self.find(path), Err(NotFound::Unknown))
    }

    /// Reports whether all mounts on the way of a path without links are local.
    fn has_way(&self, path: &Path) -> bool {
        let mut on_way = self.0.iter().filter(|mounted| path.starts_with(&mounted.path)).peekable();
        on_way.peek().is_some() && on_way.all(is_local)
    }

    fn find(&self, path: &Path) -> Result<Found, NotFound> {
        let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if !path.is_absolute() || path.as_os_str().as_bytes().contains(&0) {
            return Err(NotFound::Unknown);
        }
        // Most paths have no link, and are opened at once.
        if path.components().all(is_plain) && self.has_way(path) {
            match platform::open_without_links(path, false) {
                Ok(file) => return Ok(Found { stat: fstat(&file)?, path: path.components().collect(), file }),
                Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.follow(path)
    }

    /// Resolves a path step by step.
    fn follow(&self, path: &Path) -> Result<Found, NotFound> {
        let open = |path: &Path| {
            if !self.has_way(path) {
                return Err(NotFound::Unknown);
            }
            let file = platform::open_without_links(path, true)?;
            Ok((fstat(&file)?, file))
        };
        let (mut links, mut done, mut rest) = (0, PathBuf::from("/"), Vec::new());
        let add = |rest: &mut Vec<OsString>, path: &Path| {
            let parts = path.components().rev().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
            rest.extend(parts.map(|part| part.as_os_str().to_owned()));
        };
        add(&mut rest, path);
        while let Some(part) = rest.pop() {
            if part == ".." {
                done.pop(); // `done` has no links
                continue;
            }
            let next = done.join(part);
            let (stat, file) = open(&next)?;
            if !is(&stat, SFlag::S_IFLNK) {
                if !rest.is_empty() && !is(&stat, SFlag::S_IFDIR) {
                    return Err(NotFound::Failed(Errno::ENOTDIR));
                }
                done = next;
                continue;
            }
            links += 1;
            if links > LINKS {
                return Err(NotFound::Unknown);
            }
            let target = PathBuf::from(readlinkat(&file, "")?);
            if target.is_absolute() {
                done = PathBuf::from("/");
            }
            add(&mut rest, &target);
        }
        let (stat, file) = open(&done)?;
        Ok(Found { path: done, file, stat })
    }
}

fn is(stat: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == kind
}

/// Returns a path that leads to the file of a descriptor.
fn pinned(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

/// Reports whether a file system cannot hang.
fn is_local(mounted: &MountEntry) -> bool {
    LOCAL_TYPES.contains(&mounted.kind.as_str())
        && !SERVED_DEVICES.iter().any(|device| mounted.source.starts_with(device))
}

#[cfg(test)]
mod tests;
