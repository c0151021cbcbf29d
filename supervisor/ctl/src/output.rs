//! Outputs of commands: standard output whose reader may go, and text that is drawn later.
//!
//! Without [`Reader`], a program learns from its next write that the other end of the pipe is closed. A stream of
//! events may have no next write for hours. `agentctl events S | head -1` would stay as long.

use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use crate::error::Error;

/// Watches the other end of standard output.
#[derive(Debug)]
pub(crate) struct Reader {
    /// `None` if standard output cannot be watched. The next write then reports the error.
    gone: Option<oneshot::Receiver<()>>,
}

impl Reader {
    /// Starts to watch standard output, in a thread that the process does not wait for.
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

    /// Waits until the other end of standard output is closed. Returns the error that a write would return.
    /// Cancel-safe.
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

/// Waits until the other end is closed, and reports whether it is. poll(2) always reports `POLLERR` and
/// `POLLHUP`, but not for files, nor for devices on macOS.
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

/// Output of the renderer that is not drawn yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    /// Returns the output since the last call.
    pub(crate) fn take(&self) -> String {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
