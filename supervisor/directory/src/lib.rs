//! Creates directories that only their user can enter.
//!
//! [`create`] creates the missing directories of a path. [`make_private`] also checks the owner of an existing
//! directory and tightens its mode. Neither tries again after another process removed a directory meanwhile: the
//! callers wait in their own ways.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// Whether the path may be a symbolic link to the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// A link of the user to a directory is accepted. The owner and the mode of its target are not examined.
    Accept,
    Refuse,
}

/// Reason why a directory is not private.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    #[error("cannot create or examine the directory")]
    Io(#[from] io::Error),
    #[error("the directory belongs to user {owner}, not to user {uid}")]
    Owner { owner: u32, uid: u32 },
}

/// Creates the directory and the missing directories above it, with mode 0700. An existing directory is unchanged.
pub fn create(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates the directory or tightens its mode to 0700. Fails if it belongs to another user, who may have created it
/// first.
pub fn make_private(path: &Path, link: Link) -> Result<(), PrivateError> {
    create(path)?;
    let metadata = fs::symlink_metadata(path)?;
    if link == Link::Refuse && !metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "not a directory").into());
    }
    let uid = nix::unistd::geteuid().as_raw();
    if metadata.uid() != uid {
        return Err(PrivateError::Owner { owner: metadata.uid(), uid });
    }
    if metadata.mode() & 0o077 != 0 && metadata.is_dir() {
        fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn missing_directories_are_private_and_an_existing_one_is_tightened_only_on_request() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        create(&inner).unwrap();
        assert_eq!((mode(inner.parent().unwrap()), mode(&inner)), (0o700, 0o700));
        fs::set_permissions(&inner, Permissions::from_mode(0o755)).unwrap();
        create(&inner).unwrap();
        assert_eq!(mode(&inner), 0o755);
        make_private(&inner, Link::Refuse).unwrap();
        assert_eq!(mode(&inner), 0o700);
    }

    #[test]
    fn a_link_is_refused_or_accepted_as_it_is_and_a_file_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let (target, link, file) = (root.path().join("target"), root.path().join("link"), root.path().join("file"));
        fs::create_dir(&target).unwrap();
        fs::set_permissions(&target, Permissions::from_mode(0o755)).unwrap();
        symlink(&target, &link).unwrap();
        make_private(&link, Link::Accept).unwrap();
        assert_eq!(mode(&target), 0o755);
        let refused = make_private(&link, Link::Refuse).unwrap_err();
        assert!(matches!(refused, PrivateError::Io(error) if error.kind() == io::ErrorKind::NotADirectory));
        fs::write(&file, "").unwrap();
        assert!(make_private(&file, Link::Accept).is_err());
    }
}
