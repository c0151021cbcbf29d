//! Finds a directory's script in the directory itself or in the nearest directory above that holds it. git and
//! direnv search in this way too.
//!
//! The search resolves links and goes up from the session's directory. It includes the home directory and ends
//! there. It also ends at the border of a file system.
//! It ends at a directory that another user owns or can write. Otherwise that user could place a script for every
//! session below.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::trust::others;

/// A place that is searched for a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptPlace {
    pub script: PathBuf,
    /// Working directory of the script: the script's own directory if that is above the session's directory.
    pub directory: PathBuf,
    /// Whether the script is above the session's directory.
    pub is_above: bool,
}

impl ScriptPlace {
    /// Returns the place of a script that is searched at this path alone, and runs in `directory`.
    pub fn beside(script: PathBuf, directory: &Path) -> Self {
        Self { script, directory: directory.to_owned(), is_above: false }
    }
}

/// Returns the places searched for a script of this name, in order. If the script exists, the last place holds it.
pub(super) fn places(directory: &Path, name: &str, home: Option<&Path>) -> Vec<ScriptPlace> {
    let own = ScriptPlace { script: directory.join(name), directory: directory.to_owned(), is_above: false };
    let found = !is_absent(&own.script);
    let mut all = vec![own];
    if found || name.contains('/') {
        return all;
    }
    let Ok(directory) = directory.canonicalize() else { return all };
    let home = home.and_then(|home| home.canonicalize().ok());
    for (below, above) in directory.ancestors().zip(directory.ancestors().skip(1)) {
        if Some(below) == home.as_deref() || !search_continues(below, above) {
            break;
        }
        let script = above.join(name);
        let found = !is_absent(&script);
        all.push(ScriptPlace { script, directory: above.to_owned(), is_above: true });
        if found {
            break;
        }
    }
    all
}

/// Reports whether the search continues from `below` to `above`.
fn search_continues(below: &Path, above: &Path) -> bool {
    let (Ok(here), Ok(there)) = (below.symlink_metadata(), above.symlink_metadata()) else { return false };
    let is_open = |path, metadata| others::foreign_owner(metadata).is_some() || others::can_write(path, metadata);
    here.dev() == there.dev() && !is_open(below, &here) && !is_open(above, &there)
}

/// Reports whether the file is missing. A file that cannot be examined counts as present, so it is refused by name
/// instead of being skipped.
pub(crate) fn is_absent(file: &Path) -> bool {
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

    /// Returns the places searched from `a/b/c`, relative to the root of the tree. Other users can write the root.
    fn looked_at(root: &Path, home: Option<&str>) -> Vec<String> {
        let home = home.map(|home| root.join(home));
        let places = places(&root.join("a/b/c"), "s", home.as_deref());
        let root = root.canonicalize().unwrap();
        let shown = |place: &ScriptPlace| {
            let script = place.script.canonicalize().unwrap_or_else(|_| place.script.clone());
            assert_eq!(place.is_above, place.directory.file_name().unwrap() != "c", "{place:?}");
            assert_eq!(place.script.parent(), Some(place.directory.as_path()));
            script.strip_prefix(&root).map(|path| path.display().to_string()).unwrap_or_default()
        };
        places.iter().map(shown).collect()
    }

    #[test]
    fn the_nearest_script_wins_and_the_home_or_a_directory_writable_by_others_ends_the_search() {
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
