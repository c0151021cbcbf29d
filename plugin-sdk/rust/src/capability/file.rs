//! The capability `file`: reads files. Grant: `file = [patterns]` of paths.
//!
//! A path is absolute, or begins with `{config}`, `{cwd}` or `{session}`. Symbolic links are resolved before
//! the path is matched.

use super::host;
use crate::Failure;

pub use crate::bindings::provider::agentd::plugin::file::{Kind, Metadata};

/// Returns the metadata of a path.
pub fn inspect(path: &str) -> Result<Metadata, Failure> {
    host::file::inspect(path)
}

/// Reads a file of at most 1 MiB.
pub fn read(path: &str) -> Result<Vec<u8>, Failure> {
    host::file::read(path)
}

/// Reads a UTF-8 file of at most 1 MiB.
pub fn read_text(path: &str) -> Result<String, Failure> {
    let not_text = |_| Failure::failed(format!("{path} is not UTF-8"));
    String::from_utf8(read(path)?).map_err(not_text)
}

/// Returns the names in a directory, sorted.
pub fn entries(path: &str) -> Result<Vec<String>, Failure> {
    host::file::entries(path)
}
