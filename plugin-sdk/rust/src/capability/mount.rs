//! The capability `mount`: file systems. Grant: `mount = [patterns]` of mount points.

use std::time::Duration;

use super::{host, milliseconds};
use crate::Failure;

pub use crate::bindings::provider::agentd::plugin::mount::{Liveness, Mounted};

/// Returns the entries of the mount table that match the grant, in the table's order.
pub fn mounts() -> Result<Vec<Mounted>, Failure> {
    host::mount::mounts()
}

/// Checks whether a path responds. A dead server delays the call for at most `time`.
pub fn probe(path: &str, time: Duration) -> Result<Liveness, Failure> {
    host::mount::probe(path, milliseconds(time))
}
