//! Listening socket of the keeper, which is created again when its file is removed.
//!
//! A cleaned runtime directory must not make a session unreachable. A connected daemon stays connected meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::hold::{self, identity};

/// Duration of the pause after a failed accept(2). If no file descriptor is free, a retry at once would spin.
const ACCEPT_AGAIN: Duration = Duration::from_millis(500);
/// Interval at which the keeper checks that the socket's file still exists.
const LOOK: Duration = Duration::from_secs(2);

/// Listening socket and its file.
#[derive(Debug)]
pub(crate) struct Door<'a> {
    path: &'a Path,
    listener: UnixListener,
    /// Device and inode of the socket's file; `None` if they could not be read.
    file: Option<(u64, u64)>,
    look_at: Instant,
    accept_at: Option<Instant>,
}

impl<'a> Door<'a> {
    /// Takes over a listener at this path.
    pub(crate) fn new(path: &'a Path, listener: UnixListener) -> Self {
        Self { path, listener, file: identity(path), look_at: Instant::now() + LOOK, accept_at: None }
    }

    /// Returns the file descriptor to poll while connections may be accepted.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.accept_at.is_none().then(|| self.listener.as_fd())
    }

    /// Returns when the keeper has to act without a connection.
    pub(crate) fn due(&self) -> Instant {
        self.accept_at.map_or(self.look_at, |at| at.min(self.look_at))
    }

    /// Creates the socket again if its file is gone or belongs to another socket.
    pub(crate) fn look(&mut self) {
        let now = Instant::now();
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK;
        if self.file.is_some() && identity(self.path) == self.file {
            return;
        }
        // A failure is retried, because the directory above may be created later.
        if let Ok(listener) = hold::listen(self.path) {
            (self.listener, self.file) = (listener, identity(self.path));
        }
    }

    /// Accepts the next waiting connection.
    pub(crate) fn accept(&mut self) -> Option<UnixStream> {
        if self.accept_at.is_some_and(|at| Instant::now() < at) {
            return None;
        }
        self.accept_at = None;
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => return Some(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.accept_at = Some(Instant::now() + ACCEPT_AGAIN);
                    return None;
                }
            }
        }
    }
}
