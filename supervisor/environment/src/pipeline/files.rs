//! Writes the files that plugins give a session. The files exist before the agent starts, and are removed after it
//! has ended.
//!
//! Each write is atomic, and only the user can access the directory. The contents are stored nowhere else and count
//! as secrets.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use crate::merge::Environment;
use crate::secrets::assigned;
use agentd_config::secret;
use agentd_host::directories::make_private;
use agentd_host::files;

/// A file to write.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionFile {
    pub name: String,
    pub content: Vec<u8>,
}

/// Shows the size instead of the content.
impl std::fmt::Debug for SessionFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} bytes", self.name, self.content.len())
    }
}

impl SessionFile {
    /// Returns the files of the environment whose variables `wanted` selects.
    pub fn of(environment: &Environment, wanted: impl Fn(&str) -> bool) -> Vec<Self> {
        let files = environment.files().filter(|(variable, _, _)| wanted(variable));
        files.map(|(_, name, content)| Self { name: name.to_owned(), content: content.to_vec() }).collect()
    }
}

/// Maximum number of lines of a file that are hidden one by one. Hiding takes longer with each line, and longer
/// files, such as bundles of certificates, are seldom secret.
const LINES: usize = 1000;

/// Returns the values of a file's content to hide in the agent's output: the content and each of its lines, as CI
/// systems do. The keeper's mask splits a value of several lines. Passwords of URLs and values assigned to secret
/// names are added.
pub(crate) fn hidden(content: &[u8]) -> Vec<Vec<u8>> {
    let end = memchr::memchr_iter(b'\n', content).nth(LINES - 1).map_or(content.len(), |at| at + 1);
    let mut values = secret::parts_of(&content[..end]);
    values.extend(assigned(content).into_iter().flat_map(|one| secret::values_of(&one.name, &one.value)));
    values
}

/// Makes the directory hold exactly these files.
pub fn provide(directory: &Path, files: &[SessionFile]) -> io::Result<()> {
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

/// Writes each file at its path and replaces an earlier version.
pub fn write(directory: &Path, files: &[SessionFile]) -> io::Result<()> {
    files.iter().try_for_each(|file| files::write(&directory.join(&file.name), &file.content))
}

/// Removes the directory with all its files.
pub fn remove(directory: &Path) -> io::Result<()> {
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
    fn the_directory_holds_only_the_files_of_the_last_launch() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("session/files");
        provide(&directory, &[file("old", "x"), file("both", "x")]).unwrap();
        // An unfinished file of a daemon that was killed.
        std::fs::write(directory.join(format!("{}abc", files::UNFINISHED)), "half").unwrap();
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
    fn all_lines_of_a_file_and_its_assigned_values_are_hidden() {
        let content = b"registry=https://npm.corp/\nNPM_TOKEN=planted-token-1\nurl = https://me:hunter22@h/\n";
        let values = hidden(content);
        for value in [&content[..], b"planted-token-1", b"hunter22"] {
            assert!(values.iter().any(|hidden| hidden == value), "{}", String::from_utf8_lossy(value));
        }
        let long = "a line of it\n".repeat(LINES + 10);
        assert_eq!(hidden(long.as_bytes())[0].len(), "a line of it\n".len() * LINES);
    }
}
