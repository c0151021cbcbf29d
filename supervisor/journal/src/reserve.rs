//! Disk space reserved for a journal's last records, which say how a turn, a launch and an agent ended.
//!
//! The reserve is a range of blocks behind the end of the current segment (`fallocate` with `FALLOC_FL_KEEP_SIZE`).
//! Other programs cannot use these blocks, and a quota already counts them. Readers do not see them, because the
//! file's length does not change. An ordinary append first ensures that the whole reserve remains behind its records,
//! and fails otherwise. Final records use the reserve.
//!
//! There is no reserve on macOS and on a file system without `fallocate`. Final records then wait for space like all
//! others.

use std::fs::File;
use std::io;

/// Number of bytes that stay allocated behind an ordinary append.
pub const RESERVE: u64 = 256 << 10;
/// Number of extra bytes to allocate at once, so that most appends need no fallocate(2).
const STEP: u64 = 64 << 10;
/// Number of extra bytes for a long append, because more long appends are likely to follow.
const LONG_STEP: u64 = 4 << 20;

/// Share of the reserve that an append may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReserveUse {
    /// None: the whole reserve remains.
    Ordinary,
    /// Half of the reserve: for the agent's last output.
    Late,
    /// The whole reserve: for records of how a turn, a launch or an agent ended.
    Final,
}

impl ReserveUse {
    fn leaves(self) -> u64 {
        match self {
            Self::Ordinary => RESERVE,
            Self::Late => RESERVE / 2,
            Self::Final => 0,
        }
    }
}

/// State of one segment's preallocated blocks.
#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// File offset up to which blocks are allocated.
    until: u64,
    /// Whether the file system does not support preallocation.
    impossible: bool,
}

impl Reserve {
    /// Ensures that a file that will end at `end` has the reserve that `need` leaves. An error means that the disk or
    /// the quota is full.
    pub(crate) fn ensure(&mut self, file: &File, end: u64, need: ReserveUse) -> io::Result<()> {
        if need == ReserveUse::Final || self.impossible {
            return Ok(());
        }
        let wanted = end + need.leaves();
        if wanted <= self.until {
            return Ok(());
        }
        let is_long = self.until > 0 && wanted > self.until + STEP;
        let step = if is_long { LONG_STEP } else { STEP };
        for until in [wanted + step, wanted] {
            match allocate(file, self.until.min(end), until) {
                Ok(()) => {
                    self.until = until;
                    return Ok(());
                }
                Err(error) if is_impossible(&error) => {
                    self.impossible = true;
                    return Ok(());
                }
                Err(error) if until == wanted => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Records that the blocks behind the end of the file were released.
    pub(crate) fn reset(&mut self) {
        self.until = 0;
    }
}

/// Releases the blocks behind the end of the file.
pub(crate) fn release(file: &File) -> io::Result<()> {
    file.set_len(file.metadata()?.len())
}

/// Reports whether the error means that this file cannot have preallocated blocks (fallocate(2)). A full disk is a
/// different error.
fn is_impossible(error: &io::Error) -> bool {
    let Some(errno) = error.raw_os_error() else { return true };
    // No single document lists the file systems that return EINVAL or the systems without this call.
    [nix::libc::EOPNOTSUPP, nix::libc::ENOSYS, nix::libc::EINVAL, nix::libc::ENODEV, nix::libc::EPERM].contains(&errno)
}

/// Begins to write these bytes of the file to the disk, without waiting. A later sync then finds less to do.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "nix has no sync_file_range")]
pub(crate) fn begin_writeback(file: &File, from: u64, until: u64) {
    use std::os::fd::AsRawFd as _;
    let (Ok(from), Ok(length)) = (i64::try_from(from), i64::try_from(until - from)) else { return };
    // SAFETY: the call changes no memory, and the file descriptor is open. A failure leaves the work to the sync.
    unsafe { nix::libc::sync_file_range(file.as_raw_fd(), from, length, nix::libc::SYNC_FILE_RANGE_WRITE) };
}

/// Does nothing: this system has no such call.
#[cfg(not(target_os = "linux"))]
pub(crate) fn begin_writeback(_file: &File, _from: u64, _until: u64) {}

#[cfg(target_os = "linux")]
fn allocate(file: &File, from: u64, until: u64) -> io::Result<()> {
    use nix::fcntl::{FallocateFlags, fallocate};
    let offset = |bytes: u64| i64::try_from(bytes).map_err(io::Error::other);
    let (from, until) = (offset(from)?, offset(until)?);
    loop {
        match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, from, until - from) {
            Err(nix::errno::Errno::EINTR) => {}
            allocated => return Ok(allocated?),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(_file: &File, _from: u64, _until: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    use jiff::Timestamp;
    use serde_json::value::to_raw_value;

    use super::*;
    use crate::{JOURNAL, Options, Reader, Record, Writer, segments};

    /// Returns the size of the file's blocks in bytes.
    fn allocated(path: &Path) -> u64 {
        fs::metadata(path).unwrap().blocks() * 512
    }

    #[test]
    fn only_missing_preallocation_support_disables_the_reserve() {
        use nix::libc;
        for errno in [libc::ENOSPC, libc::EDQUOT, libc::EROFS, libc::EIO, libc::ENOMEM, libc::EINTR, libc::EFBIG] {
            assert!(!is_impossible(&io::Error::from_raw_os_error(errno)), "{errno}");
        }
        for errno in [libc::EOPNOTSUPP, libc::ENOSYS] {
            assert!(is_impossible(&io::Error::from_raw_os_error(errno)), "{errno}");
        }
    }

    #[test]
    fn an_ordinary_append_leaves_the_reserve_and_release_frees_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(JOURNAL);
        let (mut writer, _) = Writer::open(directory.path(), Options { rotate: 10_000, ..Options::default() }).unwrap();
        let mut append = |need, length| {
            let data = to_raw_value(&"x".repeat(length)).unwrap();
            writer.append_as(need, Timestamp::UNIX_EPOCH, &[Record { kind: "turn.ended", data: &data }]).unwrap()
        };
        append(ReserveUse::Ordinary, 100);
        let length = fs::metadata(&path).unwrap().len();
        assert!(length < 1000 && allocated(&path) >= length + RESERVE, "{} for {length}", allocated(&path));
        // A closed segment has no reserve, and the next segment has its own.
        append(ReserveUse::Ordinary, 9_950);
        assert!(allocated(&path) >= RESERVE);
        let closed = segments::path(directory.path(), 1);
        assert!(allocated(&closed) < RESERVE, "{}", allocated(&closed));
        // A final record stays in the current segment, however long that becomes.
        assert_eq!(append(ReserveUse::Final, 9_000), 3);
        assert!(fs::metadata(&path).unwrap().len() > 10_000);
        drop(writer);
        crate::release_reserve(directory.path()).unwrap();
        assert!(allocated(&path) < RESERVE, "{}", allocated(&path));
        let mut reader = Reader::open(directory.path(), 0).unwrap();
        while reader.next().unwrap().is_some() {}
        assert_eq!(reader.position(), 3);
    }
}
