//! The file with agentd-keeper that a place takes along: its digest, computed once for each version of the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use agentd_place::KeeperCopy;

use crate::sha256::sha256;

/// Device, inode, size, and time of the last change of a file.
type Version = (u64, u64, u64, i64, i64);

/// The digest of the last read version.
#[derive(Debug, Default)]
pub(super) struct Copies(Mutex<Option<(Version, KeeperCopy)>>);

impl Copies {
    /// Returns the digest of the file, and reads the file if it was changed since.
    pub(super) fn of(&self, path: &Path) -> io::Result<KeeperCopy> {
        // To open a named pipe would wait for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        let file = File::open(path)?;
        let facts = file.metadata()?;
        let version = (facts.dev(), facts.ino(), facts.len(), facts.ctime(), facts.ctime_nsec());
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, copy)) = last.as_ref().filter(|(known, _)| *known == version) {
            return Ok(copy.clone());
        }
        let (bytes, digest) = sha256(file, |_| true)?;
        let copy = KeeperCopy { sha256: digest.unwrap_or_default(), bytes };
        *last = Some((version, copy.clone()));
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_changed_file_has_another_digest() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agentd-keeper");
        let copies = Copies::default();
        assert_eq!(copies.of(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(copies.of(directory.path()).unwrap_err().to_string(), "it is no regular file");
        fs::write(&path, "abc").unwrap();
        // FIPS 180-4, the example of one block.
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let expected = KeeperCopy { sha256: digest.to_owned(), bytes: 3 };
        assert_eq!((copies.of(&path).unwrap(), copies.of(&path).unwrap()), (expected.clone(), expected));
        fs::write(&path, "another").unwrap();
        assert_eq!(copies.of(&path).unwrap().bytes, 7);
    }
}
