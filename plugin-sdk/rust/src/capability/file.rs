//! Files, to read. Grant: `file = [patterns]` of paths.
//!
//! A path is absolute, or begins with `{config}`, `{cwd}` or `{session}`; links are resolved before it is matched.

use super::host;
use crate::Failure;

pub use crate::bindings::provider::agentd::plugin::file::{Kind, Metadata};

/// What a path is.
pub fn inspect(path: &str) -> Result<Metadata, Failure> {
    host::file::inspect(path)
}

/// A file's content, at most 1 MiB.
pub fn read(path: &str) -> Result<Vec<u8>, Failure> {
    host::file::read(path)
}

/// The content of a file that is UTF-8.
pub fn read_text(path: &str) -> Result<String, Failure> {
    let not_text = |_| Failure::failed(format!("{path} is not UTF-8"));
    String::from_utf8(read(path)?).map_err(not_text)
}

/// The names in a directory, sorted.
pub fn entries(path: &str) -> Result<Vec<String>, Failure> {
    host::file::entries(path)
}
