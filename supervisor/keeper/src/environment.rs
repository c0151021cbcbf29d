//! `agentd-keeper dump-environment FD`: the last command of a login shell or a script, which says what they made of the
//! environment: `NAME=VALUE` and a NUL, byte for byte, to a descriptor that nothing else writes to.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{FromRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;

/// Writes this process's environment. An entry without `=` is no variable and is left out.
#[allow(unsafe_code, reason = "the descriptor is inherited, so there is nothing to own it but its number")]
pub fn dump(fd: RawFd) -> io::Result<()> {
    let mut bytes = Vec::new();
    for (name, value) in std::env::vars_os() {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(b'=');
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
    }
    // SAFETY: the caller was told this number to write to; nothing else in this process uses it. One that is not open fails
    // the write.
    let mut to = unsafe { File::from_raw_fd(fd) };
    to.write_all(&bytes)
}
