//! Thin wrappers of poll(2) and read(2): waits for file descriptors and a time, and reads the available bytes.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};

/// Returns when a file descriptor is ready or the time has come. The wait ends at most 1 ms after the time, and not
/// before it.
pub(crate) fn wait(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<()> {
    let timeout = match until {
        None => PollTimeout::NONE,
        Some(until) => {
            let left = until.saturating_duration_since(Instant::now());
            let millis = if left.is_zero() { 0 } else { left.as_millis() + 1 };
            // Waking early is harmless, because the caller checks its clock.
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        }
    };
    match poll(fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Reports whether poll(2) returned any event for this file descriptor.
pub(crate) fn ready(fd: &PollFd<'_>) -> bool {
    fd.revents().is_none_or(|events| !events.is_empty())
}

/// Result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    Some(usize),
    /// No bytes are available now.
    Nothing,
    End,
}

/// Reads once with read(2) from a file descriptor that does not block.
pub(crate) fn read(fd: impl AsFd, buffer: &mut [u8]) -> io::Result<Read> {
    loop {
        return match nix::unistd::read(&fd, buffer) {
            Ok(0) => Ok(Read::End),
            Ok(n) => Ok(Read::Some(n)),
            Err(Errno::EAGAIN) => Ok(Read::Nothing),
            Err(Errno::EINTR) => continue,
            Err(errno) => Err(errno.into()),
        };
    }
}
