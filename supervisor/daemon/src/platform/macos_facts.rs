//! What macOS is not asked for: its tables of routes, mounts and processes come by calls that nothing here has a safe cover for. Who asks
//! is told that they cannot be had.

use std::io;

use agentd_plugins::{Mounted, Route};

pub(crate) fn routes() -> io::Result<Vec<Route>> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn mounts() -> io::Result<Vec<Mounted>> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn processes(_name: &str) -> io::Result<u32> {
    Err(io::ErrorKind::Unsupported.into())
}
