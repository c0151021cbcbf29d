//! Whether a file is what somebody saw when they said that it may be read.
//!
//! The bytes that are looked at here are those that the program gets (`os::Substitution`). A file that becomes another one while the program
//! runs is seen afterwards, and then the program has no result: what it sourced beside the file may belong to the other one.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use nix::fcntl::OFlag;
use sha2::{Digest as _, Sha256};

use crate::protocol::ExpectedFile;

/// The file is not the one that was expected, or cannot be read any more.
#[derive(Debug)]
pub(crate) struct Unexpected;

/// A file that is what it was expected to be. It is held open, so that its number is given to no other.
#[derive(Debug)]
pub(crate) struct Checked {
    path: PathBuf,
    file: File,
    stamp: Stamp,
    content: Vec<u8>,
}

/// Which file it is and when it last changed: contents, mode, owner or links. Its name is not part of it, and is looked up again.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Checked {
    pub(crate) fn open(expected: &ExpectedFile) -> Result<Self, Unexpected> {
        let path = PathBuf::from(OsStr::from_bytes(expected.path.as_bytes()));
        let (file, content, digest) = read(&path).map_err(|_| Unexpected)?;
        let stamp = Stamp::of(&file.metadata().map_err(|_| Unexpected)?);
        if digest == expected.sha256 { Ok(Self { path, file, stamp, content }) } else { Err(Unexpected) }
    }

    /// What was looked at.
    pub(crate) fn content(&self) -> &[u8] {
        &self.content
    }

    /// Whether it has been the same all the time.
    pub(crate) fn holds(&self) -> bool {
        let same = |metadata: io::Result<Metadata>| metadata.is_ok_and(|metadata| Stamp::of(&metadata) == self.stamp);
        same(self.file.metadata()) && same(self.path.symlink_metadata())
    }
}

/// The file, its content and that one's digest.
fn read(path: &PathBuf) -> io::Result<(File, Vec<u8>, String)> {
    // A pipe in the file's place must not make us wait, and a link is not what was looked at.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let mut file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(&content) {
        let _ = write!(text, "{byte:02x}"); // a string takes everything
    }
    Ok((file, content, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: &str = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";

    fn expected(path: &std::path::Path) -> ExpectedFile {
        ExpectedFile { path: path.as_os_str().into(), sha256: X.to_owned() }
    }

    #[test]
    fn a_file_holds_until_it_or_its_name_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        std::fs::write(&path, "x").unwrap();
        let checked = Checked::open(&expected(&path)).unwrap();
        assert!(checked.holds());
        // Another file with the same content, and the name back on the first one: who looks at the content alone sees nothing.
        let aside = directory.path().join("aside");
        std::fs::rename(&path, &aside).unwrap();
        assert!(!checked.holds());
        std::fs::write(&path, "x").unwrap();
        assert!(!checked.holds());
        assert!(Checked::open(&expected(&path)).unwrap().holds());
    }

    #[test]
    fn another_content_a_link_and_a_pipe_are_not_what_was_expected() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("s"), directory.path().join("l"));
        assert!(Checked::open(&expected(&path)).is_err());
        std::fs::write(&path, "x").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Checked::open(&expected(&link)).is_err());
        std::fs::write(&path, "y").unwrap();
        assert!(Checked::open(&expected(&path)).is_err());
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(Checked::open(&expected(&path)).is_err());
    }
}
