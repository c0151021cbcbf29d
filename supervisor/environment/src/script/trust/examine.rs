//! Reads a script after checking that only its owner, who is the user or root, can write or replace it.
//!
//! The file is checked through the descriptor that is read. Its directories are checked by name, because a
//! replacement would need them. The order matters: if other users cannot change the directories, the name continues
//! to refer to the same file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use sha2::{Digest as _, Sha256};

use super::{TrustError, others};
use agentd_api::hex;

/// A script that may be approved.
pub(super) struct Examined {
    /// Path at which the script is searched. The symlinks of its directory are resolved, but not the script's own.
    pub(super) named: PathBuf,
    /// Path of the file with every symlink resolved.
    pub(super) real: PathBuf,
    pub(super) content: Vec<u8>,
    /// SHA-256 of the content in hexadecimal.
    pub(super) digest: String,
}

/// Maximum size of a script in bytes. A user must be able to read the script before the approval.
const LONGEST: u64 = 1 << 20;

/// Returns the path under which a decision is recorded, or `None` if its directory does not exist.
pub(super) fn named(path: &Path) -> Result<Option<PathBuf>, TrustError> {
    let failed = |source| TrustError::Read { path: path.to_owned(), source };
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed(io::ErrorKind::InvalidFilename.into()));
    };
    match directory.canonicalize() {
        Ok(directory) => Ok(Some(directory.join(name))),
        Err(error) if is_absent(&error) => Ok(None),
        Err(source) => Err(failed(source)),
    }
}

pub(super) fn examine(path: &Path) -> Result<Option<Examined>, TrustError> {
    let Some(named) = named(path)? else { return Ok(None) };
    let real = match named.canonicalize() {
        Ok(real) => real,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(source) => return Err(TrustError::Read { path: named, source }),
    };
    for directory in [&named, &real].into_iter().filter_map(|path| path.parent()) {
        check_directories(directory, &named)?;
    }
    let failed = |source| TrustError::Read { path: real.clone(), source };
    let mut file = open(&real).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(TrustError::NotAFile { path: real });
    }
    if let Some(owner) = others::foreign_owner(&metadata) {
        return Err(TrustError::Owner { path: real, owner });
    }
    if others::can_write(&real, &metadata) {
        return Err(TrustError::Writable { path: real, mode: metadata.mode() & 0o7777 });
    }
    let mut content = Vec::new();
    file.by_ref().take(LONGEST + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > LONGEST {
        return Err(TrustError::TooLong { path: real, limit: LONGEST });
    }
    let digest = hex(&Sha256::digest(&content));
    Ok(Some(Examined { named, real, content, digest }))
}

/// Opens a file without blocking: a pipe in the script's place must not delay the caller.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Checks that other users cannot replace the script or a directory above it. In a sticky directory, only the owner
/// of an entry can replace it (unlink(2), EPERM), and each entry's owner is checked.
fn check_directories(directory: &Path, script: &Path) -> Result<(), TrustError> {
    for directory in directory.ancestors() {
        let metadata =
            directory.symlink_metadata().map_err(|source| TrustError::Read { path: directory.to_owned(), source })?;
        let (path, script) = (directory.to_owned(), script.to_owned());
        if let Some(owner) = others::foreign_owner(&metadata) {
            return Err(TrustError::DirectoryOwner { path, owner, script });
        }
        let mode = metadata.mode() & 0o7777;
        if mode & 0o1000 == 0 && others::can_write(&path, &metadata) {
            return Err(TrustError::DirectoryWritable { path, mode, script });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_script_in_or_below_a_directory_that_others_can_write_is_refused_unless_it_is_sticky() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let script = inner.join("s.sh");
        fs::write(&script, "x").unwrap();
        mode(&script, 0o600);
        assert!(examine(&script).unwrap().is_some());
        for place in [&inner, directory.path()] {
            for (bits, fine) in [(0o777, false), (0o757, false), (0o1777, true), (0o755, true)] {
                mode(place, bits);
                let result = examine(&script);
                assert_eq!(result.is_ok(), fine, "{} {bits:o}", place.display());
                assert!(fine || matches!(result, Err(TrustError::DirectoryWritable { mode, .. }) if mode == bits));
            }
        }
    }

    #[test]
    fn a_path_that_is_no_regular_file_is_refused_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe.sh");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert!(matches!(examine(&pipe), Err(TrustError::NotAFile { .. })));
        assert!(matches!(examine(directory.path()), Err(TrustError::NotAFile { .. })));
        let long = directory.path().join("long.sh");
        fs::write(&long, vec![b'#'; usize::try_from(LONGEST).unwrap() + 1]).unwrap();
        mode(&long, 0o600);
        assert!(matches!(examine(&long), Err(TrustError::TooLong { .. })));
        assert!(examine(&pipe.join("below.sh")).unwrap().is_none());
    }

    #[test]
    fn a_script_of_another_user_is_refused() {
        if !nix::unistd::getuid().is_root() {
            return; // only root can change the owner of a file
        }
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("s.sh");
        fs::write(&script, "x").unwrap();
        mode(&script, 0o600);
        std::os::unix::fs::chown(&script, Some(4711), None).unwrap();
        assert!(matches!(examine(&script), Err(TrustError::Owner { owner: 4711, .. })));
        std::os::unix::fs::chown(&script, Some(0), None).unwrap();
        std::os::unix::fs::chown(directory.path(), Some(4711), None).unwrap();
        assert!(matches!(examine(&script), Err(TrustError::DirectoryOwner { owner: 4711, .. })));
    }
}
