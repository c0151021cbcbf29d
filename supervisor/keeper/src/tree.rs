//! Ends a whole process tree, even if its processes resist.
//!
//! First all processes are stopped, again and again until no new process appears. A stopped process can neither fork
//! nor reap. The list is therefore complete, and none of its process ids can be reused. Then all processes are killed
//! and reaped.
//!
//! [`end`] first sends SIGTERM to all processes and gives them time to clean up.
//!
//! This module does not decide when to end a tree.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::os::{self, Family, Process};

/// Time limit for a killed process to disappear. A process that hangs in the kernel (a dead mount) disappears
/// later.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time after the kill at which the processes are listed again, because some may have been out of reach.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Maximum number of listings until no new process appears.
const PASSES: usize = 100;

/// Result of a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Killed {
    /// Number of processes that were killed, without the leader.
    pub(crate) others: u32,
}

/// Reaps every child that has exited. Reports whether children are left.
#[allow(unsafe_code, reason = "nix's waitpid fails on a process that a real-time signal ended")]
pub(crate) fn reap(mut ended: impl FnMut(i32, ExitStatus)) -> bool {
    loop {
        let mut status = 0;
        // SAFETY: the pointer is to a live i32.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            0 => return true,
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return false,
            pid => ended(pid, ExitStatus::from_raw(status)),
        }
    }
}

/// Reports whether any process of the tree is left.
pub(crate) fn remain(family: &mut Family, ended: impl FnMut(i32, ExitStatus)) -> bool {
    reap(ended) || (!os::ADOPTS && !living(family).is_empty())
}

/// Returns the number of living processes of the tree.
pub(crate) fn count(family: &mut Family) -> u32 {
    u32::try_from(living(family).len()).unwrap_or(u32::MAX)
}

/// Sends the signal to all processes of the tree.
pub(crate) fn signal(family: &mut Family, signal: Signal) {
    for process in living(family) {
        // A process that is gone or changed its user (a set-user-id program) needs no signal or cannot get one.
        let _ = os::signal(&process, signal);
    }
}

/// Kills all processes of the tree.
pub(crate) fn kill(leader: i32, family: &mut Family, mut ended: impl FnMut(i32, ExitStatus)) -> Killed {
    let give_up = Instant::now() + PATIENCE;
    let mut killed = BTreeSet::new();
    while remain(family, &mut ended) && Instant::now() < give_up {
        for process in freeze(family) {
            if os::signal(&process, Signal::SIGKILL).unwrap_or(false) && process.pid != leader {
                killed.insert((process.pid, process.start_time));
            }
        }
        // A killed process becomes a child of this process when its ancestors are gone. `remain` then reaps it.
        let look_again = Instant::now() + LOOK_AGAIN;
        let mut pause = Duration::from_micros(100);
        while remain(family, &mut ended) && Instant::now() < look_again {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }
    Killed { others: u32::try_from(killed.len()).unwrap_or(u32::MAX) }
}

/// Ends the tree: sends SIGTERM to the process group and to each process outside the group, waits up to `grace`, then
/// kills the rest. Counts all processes that existed at the start. Calls `meanwhile` repeatedly until all have
/// exited.
pub(crate) fn end(group: i32, family: &mut Family, grace: Duration, mut meanwhile: impl FnMut()) -> Killed {
    let there = living(family);
    let (inside, outside): (Vec<_>, Vec<_>) = there.iter().partition(|process| process.group == group);
    if !inside.is_empty() {
        // The group has a process, so its id is still in use by this group.
        let _ = killpg(Pid::from_raw(group), Signal::SIGTERM);
    }
    for process in outside {
        // A process that is gone or changed its user needs no signal or cannot get one.
        let _ = os::signal(process, Signal::SIGTERM);
    }
    let until = Instant::now() + grace;
    let mut pause = Duration::from_micros(100);
    while remain(family, |_, _| {}) && Instant::now() < until {
        meanwhile();
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
    let killed = kill(-1, family, |_, _| {});
    Killed { others: killed.others.max(u32::try_from(there.len()).unwrap_or(u32::MAX)) }
}

/// Stops all processes of the tree and returns them.
fn freeze(family: &mut Family) -> Vec<Process> {
    let mut seen = BTreeSet::new();
    for _ in 0..PASSES {
        let new: Vec<_> = living(family).into_iter().filter(|process| seen.insert(*process)).collect();
        if new.is_empty() {
            break;
        }
        for process in new {
            let _ = os::signal(&process, Signal::SIGSTOP);
        }
    }
    seen.into_iter().collect()
}

fn living(family: &mut Family) -> Vec<Process> {
    // If the processes cannot be listed (no free file descriptor, for example), the caller retries.
    family.descendants().unwrap_or_default().into_iter().filter(|process| !process.zombie).collect()
}
