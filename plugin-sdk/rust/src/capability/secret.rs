//! The capability `secret`: secrets that the configuration declares. Grant: `secret = [patterns]` of their
//! names.

use super::host;
use crate::Failure;

/// Returns a secret's value. To put the secret into a variable, use [`Change::secret`](crate::Change::secret)
/// instead, which does not reveal the value to the plugin.
pub fn read(name: &str) -> Result<Vec<u8>, Failure> {
    host::secret::read(name)
}
