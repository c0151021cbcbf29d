//! Signals as something that can be polled.
//!
//! SIGCHLD and SIGTERM are messages; SIGHUP, SIGINT, SIGPIPE and SIGXFSZ are ignored: what they tell, the failing call tells
//! too, and none of them may end who holds an agent.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::sys::signal::{SigHandler, SigSet, Signal};
use signal_hook::low_level::pipe;

/// Readable where a signal came.
#[derive(Debug)]
pub(crate) struct Signals {
    children: UnixStream,
    terminate: UnixStream,
}

impl Signals {
    /// Whatever dispositions and mask were inherited, these are as said above afterwards.
    #[allow(unsafe_code, reason = "nix cannot know that a disposition installs no handler")]
    pub(crate) fn install() -> io::Result<Self> {
        for ignored in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGPIPE, Signal::SIGXFSZ] {
            // SAFETY: to ignore a signal installs no handler.
            unsafe { nix::sys::signal::signal(ignored, SigHandler::SigIgn) }?;
        }
        let signals = Self { children: receiver(Signal::SIGCHLD)?, terminate: receiver(Signal::SIGTERM)? };
        SigSet::empty().thread_set_mask()?;
        Ok(signals)
    }

    pub(crate) fn children(&self) -> BorrowedFd<'_> {
        self.children.as_fd()
    }

    pub(crate) fn terminate(&self) -> BorrowedFd<'_> {
        self.terminate.as_fd()
    }

    /// Whether a child ended since the last call; call it before looking which.
    pub(crate) fn take_children(&self) -> bool {
        take(&self.children)
    }

    /// Whether SIGTERM came since the last call.
    pub(crate) fn take_terminate(&self) -> bool {
        take(&self.terminate)
    }
}

fn receiver(signal: Signal) -> io::Result<UnixStream> {
    let (ours, handlers) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    pipe::register(signal as i32, handlers)?;
    Ok(ours)
}

fn take(mut socket: &UnixStream) -> bool {
    let (mut came, mut bytes) = (false, [0; 64]);
    while socket.read(&mut bytes).is_ok_and(|n| n > 0) {
        came = true;
    }
    came
}
