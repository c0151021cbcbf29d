//! Check that a file is still the version that the user approved.
//!
//! The program gets exactly the bytes that this check reads (`os::Substitution`). A second check after the run
//! detects a file that changed while the program ran. The run then has no result, because other files that the
//! program sourced may belong to the changed file.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use nix::fcntl::OFlag;
use sha2::{Digest as _, Sha256};

use crate::protocol::ExpectedFile;

/// The file is not the expected one, or cannot be read.
#[derive(Debug)]
pub(crate) struct Unexpected;

/// File with the expected content. It is held open, so that the system cannot reuse its inode number.
#[derive(Debug)]
pub(crate) struct Checked {
    path: PathBuf,
    file: File,
    stamp: Stamp,
    content: Vec<u8>,
}

/// Identity of a file and time of its last change to content, mode, owner or links. The name is not part of the stamp
/// and is looked up again.
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
    /// Opens the file and compares its digest with the expected one.
    pub(crate) fn open(expected: &ExpectedFile) -> Result<Self, Unexpected> {
        let path = PathBuf::from(OsStr::from_bytes(expected.path.as_bytes()));
        let (file, content, digest) = read(&path).map_err(|_| Unexpected)?;
        let stamp = Stamp::of(&file.metadata().map_err(|_| Unexpected)?);
        if digest == expected.sha256 { Ok(Self { path, file, stamp, content }) } else { Err(Unexpected) }
    }

    /// Returns the content that was checked.
    pub(crate) fn content(&self) -> &[u8] {
        &self.content
    }

    /// Reports whether neither the file nor its name has changed since the check.
    pub(crate) fn is_unchanged(&self) -> bool {
        let same = |metadata: io::Result<Metadata>| metadata.is_ok_and(|metadata| Stamp::of(&metadata) == self.stamp);
        same(self.file.metadata()) && same(self.path.symlink_metadata())
    }
}

/// Opens a regular file. Returns the file, its content and the SHA-256 digest of the content in hex.
fn read(path: &PathBuf) -> io::Result<(File, Vec<u8>, String)> {
    // Opening a FIFO in the file's place must not block, and a symbolic link is not the checked file.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let mut file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    let digest = agentd_api::hex(&Sha256::digest(&content));
    Ok((file, content, digest))
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
        assert!(checked.is_unchanged());
        // Only the stamp shows another file with equal content, or a name moved back to the first file.
        let aside = directory.path().join("aside");
        std::fs::rename(&path, &aside).unwrap();
        assert!(!checked.is_unchanged());
        std::fs::write(&path, "x").unwrap();
        assert!(!checked.is_unchanged());
        assert!(Checked::open(&expected(&path)).unwrap().is_unchanged());
    }

    #[test]
    fn changed_content_a_link_and_a_pipe_are_unexpected() {
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
