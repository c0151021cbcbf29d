//! File systems. Grant: `mount = [patterns]` of the paths where they are mounted.

use std::time::Duration;

use super::{host, milliseconds};
use crate::Failure;

pub use crate::bindings::provider::agentd::plugin::mount::{Liveness, Mounted};

/// Those in the mount table that match the grant, in its order.
pub fn mounts() -> Result<Vec<Mounted>, Failure> {
    host::mount::mounts()
}

/// Whether a path can be looked at. A dead server costs no more than `time`.
pub fn probe(path: &str, time: Duration) -> Result<Liveness, Failure> {
    host::mount::probe(path, milliseconds(time))
}
