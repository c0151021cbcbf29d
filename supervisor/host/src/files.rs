//! Atomic writes of files: temporary file, fsync, rename, fsync of the directory.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt};
use std::path::Path;

use agentd_fault::Point;
use serde::Serialize;

/// Prefix of the names of temporary files.
pub const UNFINISHED: &str = ".new-";

/// Replaces the content of `path` atomically, with mode 0600. After an error the file is unchanged, unless only the
/// last fsync failed.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = directory_of(path)?;
    replace_after(path, bytes, File::sync_all)?;
    File::open(directory)?.sync_all()
}

fn directory_of(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| io::Error::other("the path has no directory"))
}

/// Writes a temporary file, and renames it to `path` when `finish` has succeeded on it.
fn replace_after(path: &Path, bytes: &[u8], finish: fn(&File) -> io::Result<()>) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(0o600))
        .prefix(UNFINISHED)
        .tempfile_in(directory_of(path)?)?;
    file.write_all(bytes)?;
    finish(file.as_file())?;
    agentd_fault::at(Point::DaemonFileBeforeRename)?;
    file.persist(path).map_err(|error| error.error)?;
    agentd_fault::at(Point::DaemonFileAfterRename)
}

/// Writes a document as indented JSON.
pub fn write_json<T: Serialize>(path: &Path, document: &T) -> io::Result<()> {
    write(path, &json(document)?)
}

/// Returns a document as indented JSON.
pub fn json<T: Serialize>(document: &T) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(document)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Writes a file that does not exist, with mode 0600 and without a sync. After an error the file may be incomplete.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Replaces the content of `path` with mode 0600, and lets the system choose when it is on the disk. After a power cut,
/// the file can be empty or have its former content.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_after(path, bytes, |_| Ok(()))
}

/// Syncs a file and its directory to the disk.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Opens a log file for appending and makes it if it is missing, with access for its owner alone.
///
/// # Errors
///
/// As of open(2).
pub fn open_private_log(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}
