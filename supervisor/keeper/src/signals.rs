//! Signals as file descriptors for poll(2).
//!
//! SIGCHLD and SIGTERM become readable sockets. SIGHUP, SIGINT, SIGPIPE and SIGXFSZ are ignored: the failing system
//! call reports the error, and none of these signals may end a keeper.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, Signal};
use signal_hook::low_level::pipe;

/// Sockets that become readable when a signal arrives.
#[derive(Debug)]
pub(crate) struct Signals {
    children: UnixStream,
    terminate: UnixStream,
}

impl Signals {
    /// Installs the dispositions and the signal mask, regardless of the inherited ones.
    pub(crate) fn install() -> io::Result<Self> {
        Self::install_with(&[Signal::SIGTERM])
    }

    /// Installs them for a process that an engine signals: SIGHUP and SIGINT are like SIGTERM, and announcements are
    /// ignored.
    pub(crate) fn install_for_engine() -> io::Result<Self> {
        ignore(&[Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGQUIT, Signal::SIGXCPU])?;
        Self::install_with(&[Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT])
    }

    /// Blocks these signals until they are installed.
    pub(crate) fn block() -> io::Result<()> {
        let signals = [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT];
        Ok(SigSet::from_iter(signals).thread_block()?)
    }

    fn install_with(ending: &[Signal]) -> io::Result<Self> {
        ignore(&[Signal::SIGHUP, Signal::SIGINT, Signal::SIGPIPE, Signal::SIGXFSZ])?;
        let signals = Self { children: receiver(&[Signal::SIGCHLD])?, terminate: receiver(ending)? };
        SigSet::empty().thread_set_mask()?;
        Ok(signals)
    }

    pub(crate) fn children(&self) -> BorrowedFd<'_> {
        self.children.as_fd()
    }

    pub(crate) fn terminate(&self) -> BorrowedFd<'_> {
        self.terminate.as_fd()
    }

    /// Reports whether a child exited since the last call. Call this before reaping children.
    pub(crate) fn take_children(&self) -> bool {
        take(&self.children)
    }

    /// Reports whether SIGTERM arrived since the last call.
    pub(crate) fn take_terminate(&self) -> bool {
        take(&self.terminate)
    }
}

#[allow(unsafe_code, reason = "nix cannot know that ignoring a signal installs no handler")]
fn ignore(signals: &[Signal]) -> io::Result<()> {
    for signal in signals {
        // SAFETY: to ignore a signal installs no handler.
        unsafe { nix::sys::signal::signal(*signal, SigHandler::SigIgn) }?;
    }
    Ok(())
}

/// Ends this process by the signal, if the signal ends processes.
#[allow(unsafe_code, reason = "nix does not know real-time signals")]
pub(crate) fn die_by(number: i32) {
    let _ = SigSet::empty().thread_set_mask();
    // SAFETY: SIG_DFL is a valid disposition, and kill(2) takes no pointer.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::kill(libc::getpid(), number);
    }
}

fn receiver(signals: &[Signal]) -> io::Result<UnixStream> {
    let (ours, handlers) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    for signal in signals {
        pipe::register(*signal as i32, handlers.try_clone()?)?;
    }
    Ok(ours)
}

fn take(mut socket: &UnixStream) -> bool {
    let (mut came, mut bytes) = (false, [0; 64]);
    while socket.read(&mut bytes).is_ok_and(|n| n > 0) {
        came = true;
    }
    came
}
