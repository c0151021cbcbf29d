//! Secrets that the configuration names. Grant: `secret = [patterns]` of their names.

use super::host;
use crate::Failure;

/// The value. To put it in a variable, give [`Change::secret`](crate::Change::secret) instead, and never see it.
pub fn read(name: &str) -> Result<Vec<u8>, Failure> {
    host::secret::read(name)
}
