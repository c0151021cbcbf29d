//! Ends a whole tree of processes, whatever its members do about it.
//!
//! Everybody is stopped first, again and again until nobody new is found: who is stopped can neither fork nor reap, so the
//! list is complete and none of its pids can pass to a stranger. Then all are killed and reaped.
//!
//! Where somebody should have a moment to clean up ([`end`]), everybody gets SIGTERM before.
//!
//! Not its job: when that should happen.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::os::{self, Family, Process};

/// How long a killed process may take to be gone. One that hangs in the kernel (a dead mount) is gone when that lets go.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long after the kill the list is taken again: somebody may have been out of reach.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How often at most the list is taken again until nobody new is on it.
const PASSES: usize = 100;

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Killed {
    /// How many had to be killed, the leader not counted.
    pub(crate) others: u32,
}

/// Takes note of every child that has ended; says whether there are children left.
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

/// Whether anybody is left of the tree.
pub(crate) fn remain(family: &mut Family, ended: impl FnMut(i32, ExitStatus)) -> bool {
    reap(ended) || (!os::ADOPTS && !living(family).is_empty())
}

/// How many there are.
pub(crate) fn count(family: &mut Family) -> u32 {
    u32::try_from(living(family).len()).unwrap_or(u32::MAX)
}

/// Sends the signal to everybody.
pub(crate) fn signal(family: &mut Family, signal: Signal) {
    for process in living(family) {
        // Who is gone or not ours any more (a set-user-id program) needs or takes none.
        let _ = os::signal(&process, signal);
    }
}

/// Kills everybody.
pub(crate) fn kill(leader: i32, family: &mut Family, mut ended: impl FnMut(i32, ExitStatus)) -> Killed {
    let give_up = Instant::now() + PATIENCE;
    let mut killed = BTreeSet::new();
    while remain(family, &mut ended) && Instant::now() < give_up {
        for process in freeze(family) {
            if os::signal(&process, Signal::SIGKILL).unwrap_or(false) && process.pid != leader {
                killed.insert((process.pid, process.start_time));
            }
        }
        // A killed process becomes a child of this one as those between them go, and is reaped by the question.
        let look_again = Instant::now() + LOOK_AGAIN;
        let mut pause = Duration::from_micros(100);
        while remain(family, &mut ended) && Instant::now() < look_again {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }
    Killed { others: u32::try_from(killed.len()).unwrap_or(u32::MAX) }
}

/// Ends everybody: SIGTERM to the process group and to each process outside of it, then up to `grace` for whatever they have to clean up,
/// then [`kill`]. All who were there are counted. `meanwhile` is called again and again until they have ended.
pub(crate) fn end(group: i32, family: &mut Family, grace: Duration, mut meanwhile: impl FnMut()) -> Killed {
    let there = living(family);
    let (inside, outside): (Vec<_>, Vec<_>) = there.iter().partition(|process| process.group == group);
    if !inside.is_empty() {
        // Somebody is in it, so the number is still this group's.
        let _ = killpg(Pid::from_raw(group), Signal::SIGTERM);
    }
    for process in outside {
        // Who is gone or not ours any more needs or takes none.
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

/// Stops everybody, and says who that is.
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
    // Where the processes cannot be read (no descriptor free, say) the caller asks again.
    family.descendants().unwrap_or_default().into_iter().filter(|process| !process.zombie).collect()
}
