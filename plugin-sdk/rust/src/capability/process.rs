//! Processes. Grant: `process = [patterns]` of names.

use super::host;
use crate::Failure;

/// How many processes run whose program has this name.
pub fn running(name: &str) -> Result<u32, Failure> {
    host::process::running(name)
}
