//! A program that runs on a place: another machine, a job of a cluster or a container.
//!
//! ```text
//!   agentd-keeper place ── client (ssh, srun, podman) ──► agentd-keeper enter ── the program and its tree
//!   near side                  the line                   far side
//! ```
//!
//! The near side ([`near`]) is a process in place of the program: it has the program's stdin, stdout and stderr, and it
//! ends like the program. The far side ([`far`]) is the program's parent. It ends the whole tree when the program exits
//! and when the line is lost. The modules `frames`, `wire`, `line` and `flow` are common to both sides.
//!
//! Nothing of the program is on a command line or in an environment of the way: it is the first frame to the far side.
//!
//! This module starts no jobs of an engine and follows no queue. The command line of the client comes from the daemon.

pub(crate) mod agent;
pub mod attach;
mod client;
pub mod digest;
pub mod far;
mod flow;
mod frames;
pub(crate) mod host;
mod line;
pub mod near;
mod outer;
mod program;
mod room;
pub mod stay;
mod store;
mod wire;

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags};

use crate::frame::FrameError;
use crate::wait;

/// Error of the roles `place` and `enter` before or without a program.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("cannot read the request: stdin ended before it")]
    NoRequest,
    #[error("cannot read the request from stdin")]
    Request(#[source] FrameError),
    #[error("the connection ended before it named a program")]
    NoBegin,
    #[error("the connection named no program within {0} s")]
    Silent(u64),
    #[error("the connection is damaged: {0}")]
    Damaged(String),
    #[error("{0:?} is not the name of an agent on a place")]
    Name(String),
    #[error("{0:?} runs here already")]
    Held(String),
    #[error("the agent {0:?} runs on host {1:?}, and this is another machine")]
    Elsewhere(String, String),
    #[error("the parent of the agent {0:?} has not ended within {1} s")]
    Stuck(String, u64),
    #[error("the user has no home directory on this place, and XDG_STATE_HOME is not set")]
    NoHome,
    #[error("cannot use {0:?}: the path is too long for a socket; set XDG_STATE_HOME to a shorter one")]
    LongPath(PathBuf),
    #[error("cannot {action}")]
    Setup { action: &'static str, source: io::Error },
}

fn setup(action: &'static str) -> impl Fn(io::Error) -> PlaceError {
    move |source| PlaceError::Setup { action, source }
}

/// File descriptors to wait for, each with a name, and the time at which the wait ends.
struct Waits<'a, T> {
    names: Vec<T>,
    fds: Vec<PollFd<'a>>,
    until: Option<Instant>,
}

impl<'a, T: Copy + PartialEq> Waits<'a, T> {
    fn new() -> Self {
        Self { names: Vec::new(), fds: Vec::new(), until: None }
    }

    /// Adds a file descriptor, if there is one.
    fn add(&mut self, name: T, fd: Option<BorrowedFd<'a>>, flags: PollFlags) {
        self.fds.extend(fd.map(|fd| PollFd::new(fd, flags)));
        self.names.extend(fd.map(|_| name));
    }

    /// Adds a file descriptor with its flags, if there is one.
    fn add_poll(&mut self, name: T, fd: Option<PollFd<'a>>) {
        self.names.extend(fd.as_ref().map(|_| name));
        self.fds.extend(fd);
    }

    /// Ends the wait at this time, if it comes first.
    fn until(&mut self, at: Option<Instant>) {
        self.until = self.until.into_iter().chain(at).min();
    }

    /// Waits. Returns the events of the file descriptors that have any.
    fn wait(mut self) -> io::Result<Events<T>> {
        wait::wait(&mut self.fds, self.until)?;
        let events = self.fds.iter().map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        Ok(Events(self.names.iter().copied().zip(events).filter(|(_, events)| !events.is_empty()).collect()))
    }
}

/// Events of file descriptors by their names.
struct Events<T>(Vec<(T, PollFlags)>);

impl<T: Copy + PartialEq> Events<T> {
    /// Reports whether there is any event.
    fn has(&self, name: T) -> bool {
        self.0.iter().any(|(other, _)| *other == name)
    }

    /// Reports whether the other side has closed the file descriptor, or it failed.
    fn is_broken(&self, name: T) -> bool {
        let broken = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
        self.0.iter().any(|(other, events)| *other == name && events.intersects(broken))
    }
}

/// Points stdin and stdout at `/dev/null`, so that this process no longer holds them.
fn let_go_of_standard_fds() -> io::Result<()> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(null.as_fd())?;
    Ok(nix::unistd::dup2_stdout(null.as_fd())?)
}
