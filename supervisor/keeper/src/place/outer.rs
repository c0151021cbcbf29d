//! The outer process of the far side. The program that the client starts forks at once. The outer process is the parent
//! and waits; the inner process does the work.
//!
//! ```text
//!   client ── outer process ── inner process ── the program and its tree
//! ```
//!
//! Each of both ends the tree if the other is killed. The inner process learns it from the end of a pipe. To the outer
//! process, the kernel gives all processes of the tree (`PR_SET_CHILD_SUBREAPER`), including daemons.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Instant;

use nix::poll::PollFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{PlaceError, Waits, let_go_of_standard_fds, setup};
use crate::os::{self, Family};
use crate::signals::Signals;
use crate::tree;

/// Runs a function in the inner process. Returns its exit status there, and here the exit status of the inner process.
/// `inner` gets a pipe that ends when the outer process does.
pub(super) fn surround(inner: impl FnOnce(OwnedFd) -> Result<u8, PlaceError>) -> Result<u8, PlaceError> {
    let (outer_ends, outer_lives) = io::pipe().map_err(setup("open a pipe"))?;
    // A signal waits until the process has its own handlers.
    Signals::block().map_err(setup("receive signals"))?;
    match os::fork().map_err(setup("start the inner process"))? {
        None => {
            drop(outer_lives);
            inner(outer_ends.into())
        }
        Some(pid) => {
            drop(outer_ends);
            let status = stand_by(pid).map_err(setup("wait for the inner process"));
            drop(outer_lives);
            status
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Children,
    Terminate,
    Tree,
}

/// Waits for the inner process, passes SIGTERM, SIGINT and SIGHUP on, and kills the processes that it leaves.
fn stand_by(inner: i32) -> io::Result<u8> {
    os::become_subreaper()?;
    // The line must end with the inner process.
    let_go_of_standard_fds()?;
    let signals = Signals::install_for_engine()?;
    let (mut family, mut exit) = (Family::led_by(inner, None), None);
    while exit.is_none() {
        let mut waits = Waits::new();
        waits.add(Name::Children, Some(signals.children()), PollFlags::POLLIN);
        waits.add(Name::Terminate, Some(signals.terminate()), PollFlags::POLLIN);
        match family.due(Instant::now()) {
            Ok(changes) => waits.add(Name::Tree, changes, PollFlags::POLLIN),
            Err(not_before) => waits.until(Some(not_before)),
        }
        waits.wait()?;
        family.take_changes(Instant::now());
        signals.take_children();
        tree::reap(|pid, status| {
            if pid == inner {
                exit = Some(status);
            }
        });
        if signals.take_terminate() && exit.is_none() {
            // The inner process is not reaped yet.
            let _ = kill(Pid::from_raw(inner), Signal::SIGTERM);
        }
    }
    tree::kill(inner, &mut family, |_, _| {});
    Ok(exit.map_or(u8::MAX, code))
}

/// Returns the exit status of a shell for the end of a process.
pub(super) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
