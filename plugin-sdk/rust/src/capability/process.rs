//! The capability `process`. Grant: `process = [patterns]` of names.

use super::host;
use crate::Failure;

/// Returns the number of running processes whose program has this name.
pub fn running(name: &str) -> Result<u32, Failure> {
    host::process::running(name)
}
