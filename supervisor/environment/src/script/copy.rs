//! Makes a private copy of a script, for a shell that cannot read the script's bytes under its own name
//! (`agentd-keeper run`, `os/substitute.rs`). csh and tcsh close every descriptor, nushell may open the script in
//! any thread, and some systems do not support or permit tracing.
//!
//! The copy holds the approved content, in a read-only directory that only the user can enter. The other files of
//! the script's directory are linked there, so that the script finds them. Results name the script's own directory
//! instead of the copy's. Known limit: a path with `..` leads to another directory.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::trust::Script;

/// Maximum number of linked files. A larger directory does not belong to one script.
const MOST: usize = 4096;
/// Suffix of zsh's compiled form of a script, which zsh would run instead of the script.
const COMPILED: &str = ".zwc";

/// A private copy. It is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Copy {
    directory: tempfile::TempDir,
    path: PathBuf,
    original: PathBuf,
}

impl Copy {
    pub(super) fn make(script: &Script) -> io::Result<Self> {
        let (Some(beside), Some(name)) = (script.path.parent(), script.path.file_name()) else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        // The mode is 0700 (tempfile's default). The random name is too long to appear in a script's text by
        // accident.
        let directory = tempfile::Builder::new().prefix("agentd-script-").rand_bytes(16).tempdir_in("/tmp")?;
        let path = directory.path().join(name);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o400).open(&path)?;
        file.write_all(&script.content)?;
        let compiled = [name, OsStr::new(COMPILED)].map(OsStr::as_bytes).concat();
        for entry in std::fs::read_dir(beside).into_iter().flatten().flatten().take(MOST) {
            let other = entry.file_name();
            if other != name && other.as_bytes() != compiled {
                symlink(entry.path(), directory.path().join(&other))?;
            }
        }
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o500))?;
        Ok(Self { directory, path, original: beside.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the text with the copy's directory replaced by the script's directory.
    pub(super) fn named(&self, text: &[u8]) -> Vec<u8> {
        let (from, to) = (self.directory.path().as_os_str().as_bytes(), self.original.as_os_str().as_bytes());
        let (mut named, mut at) = (Vec::with_capacity(text.len()), 0);
        for found in memchr::memmem::find_iter(text, from) {
            named.extend_from_slice(&text[at..found]);
            named.extend_from_slice(to);
            at = found + from.len();
        }
        named.extend_from_slice(&text[at..]);
        named
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // The directory must be writable before its files can be removed.
        let _ = std::fs::set_permissions(self.directory.path(), Permissions::from_mode(0o700));
    }
}

#[cfg(test)]
mod tests {
    use agentd_api::scripts::ScriptState;

    use super::*;

    #[test]
    fn a_copy_has_the_approved_content_and_links_to_the_scripts_neighbours() {
        let yard = tempfile::tempdir().unwrap();
        let at = |name: &str| yard.path().join(name);
        for (name, text) in [("s.zsh", "swapped"), ("s.zsh.zwc", "compiled"), ("lib.sh", "beside")] {
            std::fs::write(at(name), text).unwrap();
        }
        let script = Script {
            named: at("s.zsh"),
            path: at("s.zsh"),
            digest: String::new(),
            content: b"approved".to_vec(),
            state: ScriptState::Approved,
            decided: None,
        };
        let copy = Copy::make(&script).unwrap();
        let beside = |name: &str| std::fs::read_to_string(copy.path().with_file_name(name));
        assert_eq!(beside("s.zsh").unwrap(), "approved");
        assert_eq!(beside("lib.sh").unwrap(), "beside");
        assert!(beside("s.zsh.zwc").is_err());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(copy.path()), mode(copy.directory.path())), (0o400, 0o500));
        let text = format!("{}/bin:/bin:{}", copy.directory.path().display(), copy.path().display());
        let expected = format!("{}:/bin:{}", at("bin").display(), at("s.zsh").display());
        assert_eq!(copy.named(text.as_bytes()), expected.as_bytes());
        let directory = copy.directory.path().to_owned();
        drop(copy);
        assert!(!directory.exists());
    }
}
