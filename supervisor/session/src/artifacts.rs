//! Lists the files that a session left in its artifacts directory, with their sizes and digests. Blocks on the disk.
//!
//! The agent wrote the directory, so nothing in it is trusted. Links are not followed, special files are not opened,
//! and number, size and time are bounded.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentd_api::completion::Artifact;
use nix::libc;

use crate::sha256::sha256;

/// Maximum number of files in the list, and of entries that are looked at.
const FILES: usize = 1000;
const ENTRIES: usize = 20_000;
/// Maximum depth of directories.
const DEPTH: usize = 32;
/// Maximum number of bytes and maximum time for all digests.
const BYTES: u64 = 4 << 30;
const TIME: Duration = Duration::from_mins(1);

/// The list of a session's artifacts.
#[derive(Debug, Default)]
pub(crate) struct Artifacts {
    pub files: Vec<Artifact>,
    /// The missing parts of the list, for people.
    pub cut: Option<String>,
}

/// Lists the regular files below a directory in the order of their paths. A missing directory has no files.
pub(crate) fn list(root: &Path) -> Artifacts {
    let mut found = Found { limit: FILES, ..Found::default() };
    found.look(root, Path::new(""), 0);
    found.paths.sort();
    let mut list = Artifacts { files: Vec::new(), cut: found.lacks };
    let (mut left, until) = (BYTES, Instant::now() + TIME);
    for path in found.paths {
        let name = path.to_string_lossy().into_owned();
        let hashed = regular(&root.join(&path)).and_then(|(file, size)| digest(file, size, &mut left, until));
        match hashed {
            Ok((size, sha256)) => {
                if sha256.is_none() {
                    list.cut.get_or_insert_with(|| {
                        "not all files have a digest: they are too large together, or take too long to read".to_owned()
                    });
                }
                list.files.push(Artifact { path: name, size, sha256 });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => _ = list.cut.get_or_insert_with(|| format!("{name} cannot be read: {error}")),
        }
    }
    list
}

/// Paths of files below the root.
#[derive(Default)]
struct Found {
    paths: Vec<PathBuf>,
    limit: usize,
    entries: usize,
    lacks: Option<String>,
}

impl Found {
    fn lack(&mut self, text: String) {
        self.lacks.get_or_insert(text);
    }

    fn look(&mut self, root: &Path, below: &Path, depth: usize) {
        // A path that ends with a slash would follow a link.
        let directory = if depth == 0 { root.to_owned() } else { root.join(below) };
        let entries = match fs::symlink_metadata(&directory) {
            Ok(found) if found.is_dir() => fs::read_dir(&directory),
            // The root is a link, or was replaced by one.
            Ok(_) => return,
            Err(error) => Err(error),
        };
        let entries = match entries {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.lack(format!("{} cannot be listed: {error}", directory.display())),
            Ok(entries) => entries,
        };
        for entry in entries.flatten() {
            self.entries += 1;
            if self.entries > ENTRIES {
                return self.lack(format!("only {ENTRIES} entries of the directory were looked at"));
            }
            let path = below.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_file() && self.paths.len() == self.limit => {
                    return self.lack(format!("there are more than {} files", self.limit));
                }
                Ok(kind) if kind.is_file() => self.paths.push(path),
                Ok(kind) if kind.is_dir() && depth == DEPTH => {
                    self.lack(format!("directories below {} are too deep", path.display()));
                }
                Ok(kind) if kind.is_dir() => self.look(root, &path, depth + 1),
                _ => {}
            }
        }
    }
}

/// Opens a regular file without following a link in its last part, and without waiting for a pipe.
fn regular(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok((file, metadata.len())) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Returns the file's size and digest. The digest is `None` beyond the limits of bytes and time.
fn digest(file: File, size: u64, left: &mut u64, until: Instant) -> io::Result<(u64, Option<String>)> {
    if size > *left {
        return Ok((size, None));
    }
    let (read, digest) = sha256(file, |n| {
        *left = left.saturating_sub(n);
        *left > 0 && Instant::now() <= until
    })?;
    Ok(if digest.is_some() { (read, digest) } else { (size, None) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn regular_files_are_listed_with_their_digests_and_links_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let (root, outside) = (directory.path().join("artifacts"), directory.path().join("secret"));
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(&outside, "secret").unwrap();
        fs::write(root.join("sub/b.txt"), "b").unwrap();
        fs::write(root.join("a.txt"), "").unwrap();
        symlink(&outside, root.join("link")).unwrap();
        symlink(directory.path(), root.join("up")).unwrap();
        nix::unistd::mkfifo(&root.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let list = list(&root);
        let paths: Vec<_> = list.files.iter().map(|file| (file.path.as_str(), file.size)).collect();
        assert_eq!((paths, list.cut), (vec![("a.txt", 0), ("sub/b.txt", 1)], None));
        let digest = "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d";
        assert_eq!(list.files[1].sha256.as_deref(), Some(digest));
        assert!(super::list(&directory.path().join("none")).files.is_empty());
        symlink(&root, directory.path().join("linked")).unwrap();
        assert!(super::list(&directory.path().join("linked")).files.is_empty(), "a link is no directory of artifacts");
    }

    #[test]
    fn a_list_that_is_too_long_says_so() {
        let directory = tempfile::tempdir().unwrap();
        for n in 0..=FILES {
            fs::write(directory.path().join(format!("{n}")), "").unwrap();
        }
        let list = list(directory.path());
        assert_eq!(list.files.len(), FILES);
        assert!(list.cut.is_some_and(|cut| cut.contains("more than 1000 files")));
    }
}
