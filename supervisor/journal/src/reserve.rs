//! Room on the disk that a journal keeps for its last records: how a turn, a launch and an agent ended.
//!
//! The room is blocks of the current segment behind its end (`fallocate` with `FALLOC_FL_KEEP_SIZE`). No other program can take them, a
//! quota has counted them already, and a reader does not see them, since the file is no longer for it. An ordinary append first makes
//! sure that the whole reserve is still there behind it, and fails where it is not. Records of an end are written into it.
//!
//! A file system that cannot allocate ahead, and macOS, have no reserve: there the last records wait for room like all others.

use std::fs::File;
use std::io;

/// Bytes that stay allocated behind an ordinary append.
pub const RESERVE: u64 = 256 << 10;
/// How much more is asked for at once, so that not every append is a system call more.
const STEP: u64 = 64 << 10;

/// What an append may use of the reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing: all of it is there afterwards.
    Ordinary,
    /// Half of it: what an agent said last.
    Late,
    /// All of it: how a turn, a launch or an agent ended.
    Final,
}

impl Need {
    fn leaves(self) -> u64 {
        match self {
            Self::Ordinary => RESERVE,
            Self::Late => RESERVE / 2,
            Self::Final => 0,
        }
    }
}

/// What is known of one segment's blocks.
#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// Up to here the file has blocks.
    until: u64,
    /// The file system cannot allocate ahead.
    impossible: bool,
}

impl Reserve {
    /// Sees to it that a file that will end at `end` has the blocks that such an append leaves. An error: the disk or the quota has no room.
    pub(crate) fn make(&mut self, file: &File, end: u64, need: Need) -> io::Result<()> {
        if need == Need::Final || self.impossible {
            return Ok(());
        }
        let wanted = end + need.leaves();
        if wanted <= self.until {
            return Ok(());
        }
        for until in [wanted + STEP, wanted] {
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

    /// The blocks behind the file's end were given back.
    pub(crate) fn forget(&mut self) {
        self.until = 0;
    }
}

/// Gives the blocks behind the file's end back.
pub(crate) fn release(file: &File) -> io::Result<()> {
    file.set_len(file.metadata()?.len())
}

/// Whether it says that this file cannot have blocks ahead (fallocate(2)), and not that there is no room for them now.
fn is_impossible(error: &io::Error) -> bool {
    let Some(errno) = error.raw_os_error() else { return true };
    // Which file systems give EINVAL, and which systems have no such call, is not written down in one place.
    [nix::libc::EOPNOTSUPP, nix::libc::ENOSYS, nix::libc::EINVAL, nix::libc::ENODEV, nix::libc::EPERM].contains(&errno)
}

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

    /// Bytes that the file has blocks for.
    fn allocated(path: &Path) -> u64 {
        fs::metadata(path).unwrap().blocks() * 512
    }

    #[test]
    fn only_a_file_that_cannot_have_blocks_ahead_is_left_without_a_reserve() {
        use nix::libc;
        for errno in [libc::ENOSPC, libc::EDQUOT, libc::EROFS, libc::EIO, libc::ENOMEM, libc::EINTR, libc::EFBIG] {
            assert!(!is_impossible(&io::Error::from_raw_os_error(errno)), "{errno}");
        }
        for errno in [libc::EOPNOTSUPP, libc::ENOSYS] {
            assert!(is_impossible(&io::Error::from_raw_os_error(errno)), "{errno}");
        }
    }

    #[test]
    fn an_ordinary_append_leaves_room_for_the_last_records_which_are_written_there_and_give_it_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(JOURNAL);
        let (mut writer, _) = Writer::open(directory.path(), Options { rotate: 10_000, ..Options::default() }).unwrap();
        let mut append = |need, length| {
            let data = to_raw_value(&"x".repeat(length)).unwrap();
            writer.append_as(need, Timestamp::UNIX_EPOCH, &[Record { kind: "turn.ended", data: &data }]).unwrap()
        };
        append(Need::Ordinary, 100);
        let length = fs::metadata(&path).unwrap().len();
        assert!(length < 1000 && allocated(&path) >= length + RESERVE, "{} for {length}", allocated(&path));
        // A segment that is put aside has none, and the next one has its own.
        append(Need::Ordinary, 9_950);
        assert!(allocated(&path) >= RESERVE);
        let aside = segments::path(directory.path(), 1);
        assert!(allocated(&aside) < RESERVE, "{}", allocated(&aside));
        // What is final stays in its segment, however long that is.
        assert_eq!(append(Need::Final, 9_000), 3);
        assert!(fs::metadata(&path).unwrap().len() > 10_000);
        drop(writer);
        crate::release(directory.path()).unwrap();
        assert!(allocated(&path) < RESERVE, "{}", allocated(&path));
        let mut reader = Reader::open(directory.path(), 0).unwrap();
        while reader.next().unwrap().is_some() {}
        assert_eq!(reader.position(), 3);
    }
}
