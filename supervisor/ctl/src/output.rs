//! The reader of standard output, and whether it has gone away.
//!
//! A program that rarely writes learns only from its next write that the other end of the pipe was closed. A stream of events may have no next
//! write for hours, and `agentctl events S | head -1` would stay as long.

use std::io;
use std::os::fd::AsFd as _;
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use crate::error::Error;

/// Watches the other end of standard output.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Nothing where it cannot be watched. A write says it in the end.
    gone: Option<oneshot::Receiver<()>>,
}

impl Reader {
    /// Watches from now on, in a thread that the process does not wait for.
    pub(crate) fn of_stdout() -> Result<Self, Error> {
        let (sender, gone) = oneshot::channel();
        let watch = move || {
            if is_closed() {
                let _ = sender.send(());
            }
        };
        thread::Builder::new().name("output".into()).spawn(watch).map_err(Error::Setup)?;
        Ok(Self { gone: Some(gone) })
    }

    /// Waits until the other end of standard output is closed; the error is the one that a write would give. Safe to drop before it is
    /// ready.
    pub(crate) async fn gone(&mut self) -> Error {
        if let Some(gone) = &mut self.gone {
            if gone.await.is_ok() {
                return Error::Output(io::ErrorKind::BrokenPipe.into());
            }
            self.gone = None;
        }
        std::future::pending().await
    }
}

/// Waits for the end of the other side: poll(2) reports it without being asked. It is reported neither of a file nor, on macOS, of a device.
fn is_closed() -> bool {
    let stdout = io::stdout();
    loop {
        let mut output = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        match poll(&mut output, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            Err(_) => return false,
            Ok(_) => {
                let found = output[0].revents().unwrap_or(PollFlags::empty());
                return found.intersects(PollFlags::POLLERR | PollFlags::POLLHUP);
            }
        }
    }
}
