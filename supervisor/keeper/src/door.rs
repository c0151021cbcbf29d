//! Where daemons come in: the keeper's socket, which is made anew when its file is taken away.
//!
//! Whoever clears a runtime directory away must not make a session unreachable. A daemon that is connected stays so meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::hold::{self, identity};

/// How long no connection is accepted after one could not be: no descriptor was free, and trying at once would spin.
const ACCEPT_AGAIN: Duration = Duration::from_millis(500);
/// How often it is looked whether the socket's file is there still.
const LOOK: Duration = Duration::from_secs(2);

/// The socket.
#[derive(Debug)]
pub(crate) struct Door<'a> {
    path: &'a Path,
    listener: UnixListener,
    /// The socket's file, by device and inode; nothing where it could not be looked at.
    file: Option<(u64, u64)>,
    look_at: Instant,
    accept_at: Option<Instant>,
}

impl<'a> Door<'a> {
    /// That of a listener at this path.
    pub(crate) fn new(path: &'a Path, listener: UnixListener) -> Self {
        Self { path, listener, file: identity(path), look_at: Instant::now() + LOOK, accept_at: None }
    }

    /// What to wait for, where a connection may be accepted.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.accept_at.is_none().then(|| self.listener.as_fd())
    }

    /// When there is something to do though nobody comes.
    pub(crate) fn due(&self) -> Instant {
        self.accept_at.map_or(self.look_at, |at| at.min(self.look_at))
    }

    /// Listens anew where the socket's file is gone, or leads to another socket.
    pub(crate) fn look(&mut self) {
        let now = Instant::now();
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK;
        if self.file.is_some() && identity(self.path) == self.file {
            return;
        }
        // Where that fails it is tried again: the directory above may be made later.
        if let Ok(listener) = hold::listen(self.path) {
            (self.listener, self.file) = (listener, identity(self.path));
        }
    }

    /// The next connection that waits.
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
