//! Files that are whole or not there: temp file, fsync, rename, fsync of the directory.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use agentd_fault::Point;
use serde::Serialize;

/// What the name of a file begins with that is not whole yet.
pub(crate) const UNFINISHED: &str = ".new-";

/// Writes bytes to `path`, mode 0600. After an error the file is as it was before.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or_else(|| io::Error::other("the path has no directory"))?;
    let mut file = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(0o600))
        .prefix(UNFINISHED)
        .tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    agentd_fault::at(Point::DaemonFileBeforeRename)?;
    file.persist(path).map_err(|error| error.error)?;
    agentd_fault::at(Point::DaemonFileAfterRename)?;
    File::open(directory)?.sync_all()
}

/// Writes a document as JSON that people can read.
pub(crate) fn write_json<T: Serialize>(path: &Path, document: &T) -> io::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(document)?;
    bytes.push(b'\n');
    write(path, &bytes)
}
