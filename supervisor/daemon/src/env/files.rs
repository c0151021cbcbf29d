//! The files that plugins give a session: its agent reads them, so they are there before it starts, and gone when it has ended.
//!
//! Each is whole or not there, however often it is written anew; the directory is the user's alone. What stands in them is kept
//! nowhere else, and counts as a secret.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::merge::Environment;
use super::secret;
use super::secrets::assigned;
use crate::directories::make_private;
use crate::store;

/// A file that is to be written.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SessionFile {
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
}

/// Never the content.
impl std::fmt::Debug for SessionFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} bytes", self.name, self.content.len())
    }
}

impl SessionFile {
    /// Those of an environment whose variables are wanted.
    pub(crate) fn of(environment: &Environment, wanted: impl Fn(&str) -> bool) -> Vec<Self> {
        let files = environment.files().filter(|(variable, _, _)| wanted(variable));
        files.map(|(_, name, content)| Self { name: name.to_owned(), content: content.to_vec() }).collect()
    }
}

/// Of a file so many lines are hidden each by itself: the time that hiding takes grows with them, and what has more (a bundle of
/// certificates) is seldom secret.
const LINES: usize = 1000;

/// What is hidden of a file's content in what the agent prints: all of it and each of its lines, as CI systems do it (the keeper's mask takes
/// a value of several lines apart); the passwords of its URLs, and what it assigns to the name of a secret.
pub(super) fn hidden(content: &[u8]) -> Vec<Vec<u8>> {
    let end = memchr::memchr_iter(b'\n', content).nth(LINES - 1).map_or(content.len(), |at| at + 1);
    let mut values = secret::parts_of(&content[..end]);
    values.extend(assigned(content).into_iter().flat_map(|one| secret::values_of(&one.name, &one.value)));
    values
}

/// Makes the directory hold these files and no others.
pub(crate) fn provide(directory: &Path, files: &[SessionFile]) -> io::Result<()> {
    if files.is_empty() {
        return remove(directory);
    }
    make_private(directory).map_err(io::Error::other)?;
    let names: BTreeSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(|name| names.contains(name)) {
            std::fs::remove_file(entry.path())?;
        }
    }
    write(directory, files)
}

/// Writes files anew, each in its place.
pub(crate) fn write(directory: &Path, files: &[SessionFile]) -> io::Result<()> {
    files.iter().try_for_each(|file| store::write(&directory.join(&file.name), &file.content))
}

/// Removes the directory with all that is in it.
pub(crate) fn remove(directory: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn file(name: &str, content: &str) -> SessionFile {
        SessionFile { name: name.to_owned(), content: content.as_bytes().to_vec() }
    }

    #[test]
    fn the_directory_holds_what_a_launch_gave_and_nothing_of_the_one_before() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("session/files");
        provide(&directory, &[file("old", "x"), file("both", "x")]).unwrap();
        // What a daemon was writing when it was killed.
        std::fs::write(directory.join(format!("{}abc", store::UNFINISHED)), "half").unwrap();
        provide(&directory, &[file("both", "y"), file("new", "z")]).unwrap();
        let mut names: Vec<_> =
            std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["both", "new"]);
        assert_eq!(std::fs::read_to_string(directory.join("both")).unwrap(), "y");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&directory), mode(&directory.join("new"))), (0o700, 0o600));
        provide(&directory, &[]).unwrap();
        assert!(!directory.exists());
        remove(&directory).unwrap();
    }

    #[test]
    fn all_of_a_file_is_hidden_and_what_it_assigns_by_itself_too() {
        let content = b"registry=https://npm.corp/\nNPM_TOKEN=planted-token-1\nurl = https://me:hunter22@h/\n";
        let values = hidden(content);
        for value in [&content[..], b"planted-token-1", b"hunter22"] {
            assert!(values.iter().any(|hidden| hidden == value), "{}", String::from_utf8_lossy(value));
        }
        let long = "a line of it\n".repeat(LINES + 10);
        assert_eq!(hidden(long.as_bytes())[0].len(), "a line of it\n".len() * LINES);
    }
}
