//! Where a directory's script is: in the directory, or in the nearest one above it that has it, as git and direnv look for theirs.
//!
//! The search goes up from the session's directory, with its links resolved. It ends at the home (which is looked at), at the border of a
//! file system, and at a directory that others can write or own: who can write there could give a script to every session below.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::trust::others;

/// A place that is looked at for a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) script: PathBuf,
    /// Where the script runs: where it lies, if that is above the session's directory.
    pub(crate) directory: PathBuf,
    /// Whether it lies above the session's directory.
    pub(crate) is_above: bool,
}

/// The places in which a script of this name is looked for, in order; the last has it, if one has.
pub(super) fn places(directory: &Path, name: &str, home: Option<&Path>) -> Vec<Place> {
    let own = Place { script: directory.join(name), directory: directory.to_owned(), is_above: false };
    let found = !is_absent(&own.script);
    let mut all = vec![own];
    if found || name.contains('/') {
        return all;
    }
    let Ok(directory) = directory.canonicalize() else { return all };
    let home = home.and_then(|home| home.canonicalize().ok());
    for (below, above) in directory.ancestors().zip(directory.ancestors().skip(1)) {
        if Some(below) == home.as_deref() || !leads_on(below, above) {
            break;
        }
        let script = above.join(name);
        let found = !is_absent(&script);
        all.push(Place { script, directory: above.to_owned(), is_above: true });
        if found {
            break;
        }
    }
    all
}

/// Whether the search goes on from one directory to the one above it.
fn leads_on(below: &Path, above: &Path) -> bool {
    let (Ok(here), Ok(there)) = (below.symlink_metadata(), above.symlink_metadata()) else { return false };
    let is_open = |path, metadata| others::stranger(metadata).is_some() || others::can_write(path, metadata);
    here.dev() == there.dev() && !is_open(below, &here) && !is_open(above, &there)
}

/// What cannot be looked at is there, for all that is known: it is refused by name, and not passed over.
pub(super) fn is_absent(file: &Path) -> bool {
    let kind = file.symlink_metadata().err().map(|error| error.kind());
    matches!(kind, Some(ErrorKind::NotFound | ErrorKind::NotADirectory))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// What is looked at from `a/b/c`, relative to the root of the tree, which others can write.
    fn looked_at(root: &Path, home: Option<&str>) -> Vec<String> {
        let home = home.map(|home| root.join(home));
        let places = places(&root.join("a/b/c"), "s", home.as_deref());
        let root = root.canonicalize().unwrap();
        let shown = |place: &Place| {
            let script = place.script.canonicalize().unwrap_or_else(|_| place.script.clone());
            assert_eq!(place.is_above, place.directory.file_name().unwrap() != "c", "{place:?}");
            assert_eq!(place.script.parent(), Some(place.directory.as_path()));
            script.strip_prefix(&root).map(|path| path.display().to_string()).unwrap_or_default()
        };
        places.iter().map(shown).collect()
    }

    #[test]
    fn the_nearest_wins_and_the_home_and_what_others_can_write_end_the_search() {
        let tree = tempfile::tempdir().unwrap();
        let root = tree.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        for directory in ["a/b/c", "a/b", "a"] {
            mode(&root.join(directory), 0o755);
        }
        mode(&root, 0o777);
        let at = |home| looked_at(&root, home);
        assert_eq!(at(None), ["a/b/c/s", "a/b/s", "a/s"], "others can write the root of the tree");
        assert_eq!(at(Some("a/b")), ["a/b/c/s", "a/b/s"]);
        assert_eq!(at(Some("a/b/c")), ["a/b/c/s"]);
        assert_eq!(at(Some("elsewhere")), ["a/b/c/s", "a/b/s", "a/s"]);
        fs::write(root.join("a/s"), "").unwrap();
        fs::write(root.join("a/b/s"), "").unwrap();
        assert_eq!(at(None), ["a/b/c/s", "a/b/s"], "the nearest");
        fs::write(root.join("a/b/c/s"), "").unwrap();
        assert_eq!(at(None), ["a/b/c/s"]);
        fs::remove_file(root.join("a/b/c/s")).unwrap();
        for (directory, bits, expected) in [
            ("a/b/c", 0o777, &["a/b/c/s"][..]),
            ("a/b/c", 0o755, &["a/b/c/s", "a/b/s"]),
            ("a/b", 0o1777, &["a/b/c/s"]),
            ("a/b", 0o755, &["a/b/c/s", "a/b/s"]),
        ] {
            mode(&root.join(directory), bits);
            assert_eq!(at(None), expected, "{directory} {bits:o}");
        }
        assert_eq!(places(&root.join("a/b/c"), "x/s", None).len(), 1, "only a name is looked for above");
    }
}
