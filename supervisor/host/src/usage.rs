//! Measures the space that a directory uses on the disk.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

/// Unit of `st_blocks` in bytes (stat(2)).
const BLOCK: u64 = 512;

/// Returns the number of bytes that a directory and everything in it use on the disk, as du(1) counts them: allocated
/// blocks, and each file once. Does not follow symlinks. Returns `None` if the deadline expires.
///
/// # Errors
///
/// The directory, or a directory in it, cannot be read. A file that disappears meanwhile does not count.
pub fn disk_usage(directory: &Path, deadline: Instant) -> io::Result<Option<u64>> {
    let metadata = directory.symlink_metadata()?;
    let mut bytes = metadata.blocks() * BLOCK;
    let mut linked = HashSet::new();
    let mut left = if metadata.is_dir() { vec![directory.to_owned()] } else { Vec::new() };
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory)? {
            if Instant::now() >= deadline {
                return Ok(None);
            }
            let entry = entry?;
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if metadata.is_dir() {
                left.push(entry.path());
            } else if metadata.nlink() > 1 && !linked.insert((metadata.dev(), metadata.ino())) {
                continue;
            }
            bytes += metadata.blocks() * BLOCK;
        }
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_directory_has_the_size_that_du_reports() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        for (name, bytes) in [("one", 1), ("a/page", 4096), ("a/b/more", 100_001), ("empty", 0)] {
            fs::write(root.path().join(name), vec![7; bytes]).unwrap();
        }
        // A sparse file, a second link, and a symlink to a large file.
        fs::File::create(root.path().join("sparse")).unwrap().set_len(1 << 24).unwrap();
        fs::hard_link(root.path().join("a/b/more"), root.path().join("again")).unwrap();
        std::os::unix::fs::symlink("/proc/self/exe", root.path().join("link")).unwrap();
        let output = Command::new("du").arg("-sk").arg(root.path()).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        let kilobytes: u64 = told.split_whitespace().next().unwrap().parse().unwrap();
        let measured = disk_usage(root.path(), Instant::now() + Duration::from_mins(1)).unwrap().unwrap();
        assert_eq!(measured.div_ceil(1024), kilobytes);
        assert_eq!(disk_usage(root.path(), Instant::now()).unwrap(), None);
        assert!(disk_usage(&root.path().join("gone"), Instant::now()).is_err());
    }
}
