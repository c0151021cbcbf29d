//! What differs between operating systems, and nothing else: the only place of this crate that names one.

#[cfg(target_os = "linux")]
mod guard;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod linux_peer;
#[cfg(target_os = "linux")]
mod linux_tty;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
mod macos_peer;
#[cfg(target_os = "linux")]
mod substitute;

#[cfg(target_os = "linux")]
pub(crate) use guard::{attempt, hide, own_program, scope};
#[cfg(target_os = "linux")]
pub(crate) use linux::{
    ADOPTS, Family, SOCKET_PATH_MAX, become_expendable, become_subreaper, close_inherited, device, die_with_parent,
    expendable, make_expendable, pin, proportional, refuse_tracing, reopen, resident, signal, start_time, widen,
};
#[cfg(target_os = "linux")]
pub(crate) use linux_tty::{LIMITS, reads_terminal};
#[cfg(target_os = "macos")]
pub(crate) use macos::{
    ADOPTS, Family, SOCKET_PATH_MAX, Substitution, attempt, become_expendable, become_subreaper, can_substitute,
    close_inherited, device, die_with_parent, expendable, hide, make_expendable, own_program, pin, proportional,
    refuse_tracing, reopen, resident, scope, seal, signal, start_time, trace_me, widen,
};
#[cfg(target_os = "linux")]
pub(crate) use substitute::{Substitution, can_substitute, seal, trace_me};

use std::os::fd::{OwnedFd, RawFd};
use std::process::ExitStatus;

/// Bytes that no process can change any more, as an open file.
#[derive(Debug)]
pub(crate) struct Sealed {
    /// The descriptor that the program inherits.
    pub(crate) number: RawFd,
    _file: OwnedFd,
}

/// How far a program is that shall be given a file's bytes.
#[derive(Debug)]
#[cfg_attr(target_os = "macos", allow(dead_code, reason = "nothing is traced there"))]
pub(crate) enum Step {
    /// It has not opened the file.
    Watching,
    /// It has opened the file, and goes on by itself.
    Done,
    /// It has ended before.
    Ended(ExitStatus),
}

#[cfg(target_os = "linux")]
pub(crate) use linux_peer::{Peer, cgroups, program, relative};
#[cfg(target_os = "macos")]
pub(crate) use macos_peer::{LIMITS, Peer, cgroups, program, reads_terminal, relative};

/// One process with its parent and what the kernel calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Relative {
    pub(crate) pid: i32,
    /// 0 where the process has no parent that can be seen from here.
    pub(crate) parent: i32,
    pub(crate) start_time: u64,
    /// The first 15 bytes of its program's name, unless the process gave itself another.
    pub(crate) name: Vec<u8>,
}

/// One process, named so that its successor under the same pid is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// From an unspecified epoch; see [`agentd_api::event::KeeperStarted`].
    pub(crate) start_time: u64,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    /// It has ended and waits for its parent to notice.
    pub(crate) zombie: bool,
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
