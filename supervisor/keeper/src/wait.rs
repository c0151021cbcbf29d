//! Waiting for descriptors and for a time, and reading what is there: the thin cover over poll(2) and read(2).

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};

/// Returns when one of the descriptors is ready, or the time has come; no sooner than the time, and at most 1 ms after.
pub(crate) fn wait(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<()> {
    let timeout = match until {
        None => PollTimeout::NONE,
        Some(until) => {
            let left = until.saturating_duration_since(Instant::now());
            let millis = if left.is_zero() { 0 } else { left.as_millis() + 1 };
            // Waking early is harmless: the caller looks at its clock.
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        }
    };
    match poll(fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether poll(2) said anything of this descriptor.
pub(crate) fn ready(fd: &PollFd<'_>) -> bool {
    fd.revents().is_none_or(|events| !events.is_empty())
}

/// What a read gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    Some(usize),
    /// Nothing now.
    Nothing,
    End,
}

/// One read(2) of a descriptor that does not block.
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
