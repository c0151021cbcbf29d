//! Operating system interface: the only module of this crate with code for a particular system.

#[cfg(target_os = "linux")]
mod guard;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod linux_tty;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
mod macos_tty;
#[cfg(target_os = "linux")]
mod substitute;

#[cfg(target_os = "linux")]
pub(crate) use guard::{attempt, hide, own_program, scope};
#[cfg(target_os = "linux")]
pub(crate) use linux::{
    ADOPTS, Family, SOCKET_PATH_MAX, become_expendable, become_subreaper, close_inherited, device, die_with_parent,
    expendable, make_expendable, pin, proportional, refuse_tracing, release_memory, reopen, resident, set_command_line,
    signal, start_time, widen,
};
#[cfg(target_os = "linux")]
pub(crate) use linux_tty::{LIMITS, reads_terminal};
#[cfg(target_os = "macos")]
pub(crate) use macos::{
    ADOPTS, Family, SOCKET_PATH_MAX, Substitution, attempt, become_expendable, become_subreaper, can_substitute,
    close_inherited, device, die_with_parent, expendable, hide, make_expendable, own_program, pin, proportional,
    refuse_tracing, release_memory, reopen, resident, scope, seal, set_command_line, signal, start_time, trace_me,
    widen,
};
#[cfg(target_os = "macos")]
pub(crate) use macos_tty::{LIMITS, reads_terminal};
#[cfg(target_os = "linux")]
pub(crate) use substitute::{Substitution, can_substitute, seal, trace_me};

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::process::ExitStatus;

use nix::unistd::ForkResult;

/// Open file with bytes that no process can change.
#[derive(Debug)]
pub(crate) struct Sealed {
    /// Number of the file descriptor that the program inherits.
    pub(crate) number: RawFd,
    _file: OwnedFd,
}

/// Progress of a program that is given a file's bytes.
#[derive(Debug)]
#[cfg_attr(target_os = "macos", allow(dead_code, reason = "macOS traces no program"))]
pub(crate) enum Step {
    /// The program has not opened the file yet.
    Watching,
    /// The program has opened the file and continues untraced.
    Done,
    /// The program exited before it opened the file.
    Ended(ExitStatus),
}

/// Process, identified so that another process with a reused id is different.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Start time from an unspecified epoch; see [`agentd_api::event::KeeperStarted`].
    pub(crate) start_time: u64,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    /// Whether the process has exited and was not reaped yet.
    pub(crate) zombie: bool,
}

/// Forks this process. Returns the process id of the child, or `None` in the child. The process must have a single
/// thread.
#[allow(unsafe_code, reason = "a child of a process with several threads may call few functions")]
pub(crate) fn fork() -> io::Result<Option<i32>> {
    // SAFETY: this process has one thread, so the child may do whatever the parent may.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Some(child.as_raw())),
        ForkResult::Child => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_its_members_and_their_memory() {
        let mut shell = std::process::Command::new("/bin/sh").args(["-c", "sleep 600 & wait"]).spawn().unwrap();
        let (own, pid) = (i32::try_from(std::process::id()).unwrap(), i32::try_from(shell.id()).unwrap());
        let below = loop {
            let below = Family::below(pid).tree().unwrap();
            if !below.is_empty() {
                break below;
            }
        };
        assert_eq!(below.len(), 1);
        let all = Family::below(own).tree().unwrap();
        assert!(all.contains(&pid) && all.contains(&below[0]) && !all.contains(&own), "{all:?}");
        assert!(resident(own) > 100_000 && (1..=resident(own)).contains(&proportional(own)));
        for process in Family::below(pid).descendants().unwrap() {
            assert!(signal(&process, nix::sys::signal::Signal::SIGKILL).unwrap());
        }
        shell.wait().unwrap();
        assert_eq!((resident(pid), Family::below(pid).tree().unwrap_or_default()), (0, Vec::new()));
    }

    #[test]
    fn this_process_has_a_start_time_that_stays() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let first = start_time(pid).unwrap();
        assert_eq!(start_time(pid).unwrap(), first);
        assert!(first > 0);
    }
}
