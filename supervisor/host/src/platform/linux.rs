//! Processes, as shown by proc(5), and socket activation by systemd.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;

use super::send;
use agentd_keeper::protocol::SESSION_VARIABLE;

/// Program that shows a notification, with its first arguments. Linux has a service on the session bus instead.
pub const NOTIFIER: Option<&[&str]> = None;

/// Maximum length of a socket's path in bytes (unix(7): 108 with the NUL).
pub const SOCKET_PATH_MAX: usize = 107;

/// Reports whether the process that made `listener` listen answers `connection` (unix(7), `SO_PEERCRED`).
pub fn is_answered_by(connection: &UnixStream, listener: &UnixListener) -> bool {
    let peer = |pid: nix::Result<UnixCredentials>| pid.ok().map(|peer| peer.pid());
    let there = peer(getsockopt(connection, PeerCredentials));
    there.is_some() && there == peer(getsockopt(listener, PeerCredentials))
}

/// Returns the start time of the process in clock ticks since boot: field 22 of proc(5) `stat`. Pid and start time
/// identify one process.
pub fn start_time(pid: u32) -> Option<u64> {
    stat(pid).map(|stat| stat.start_time)
}

/// Returns the unit of the process whose name begins with the prefix, according to its cgroups.
pub fn unit_of(pid: u32, prefix: &str) -> Option<String> {
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    cgroups.lines().flat_map(|line| line.split('/')).find(|part| part.starts_with(prefix)).map(str::to_owned)
}

/// Reports whether systemd started this process as a service: `SYSTEMD_EXEC_PID` is the pid of the started process
/// (systemd.exec(5), since 248).
pub fn is_of_systemd() -> bool {
    std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|pid| pid == std::process::id().to_string())
}

/// Returns the unit whose main process this process is. A process that a service started has no unit, although it
/// inherits the service's environment.
pub fn own_unit() -> Option<String> {
    if !is_of_systemd() {
        return None;
    }
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut services =
        cgroups.lines().filter_map(|line| line.rsplit('/').next().filter(|name| name.ends_with(".service")));
    Some(services.next_back().unwrap_or("a service").to_owned())
}

/// Returns the process that holds an exclusive lock (flock(2)) on the file, according to `/proc/locks`.
pub fn lock_holder(device: u64, inode: u64, recorded: Option<u32>) -> Option<u32> {
    agentd_api::lock::holder(&std::fs::read_to_string("/proc/locks").ok()?, device, inode, recorded)
}

/// Returns the kernel's name of the process: the first 15 bytes of its program's name.
pub fn name_of(pid: u32) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// Returns the user id of the process.
pub fn owner_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

/// Reports whether the process runs. A zombie does not run.
pub fn is_running(pid: u32, start_time: u64) -> bool {
    stat(pid).is_some_and(|stat| stat.start_time == start_time && !matches!(stat.state, 'Z' | 'X'))
}

/// Reports whether a signal or a debugger has stopped the process. Only SIGKILL ends a stopped process.
pub fn is_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| matches!(stat.state, 'T' | 't'))
}

/// Returns the keepers whose command line contains this session directory, with their start times.
pub fn keepers_of(directory: &Path) -> Vec<(u32, u64)> {
    let directory = directory.as_os_str().as_encoded_bytes();
    let is_keeper = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut arguments = line.split(|&byte| byte == 0).skip(1);
        arguments.next() == Some(b"hold") && arguments.any(|argument| argument == directory)
    };
    pids().filter(is_keeper).filter_map(|pid| Some((pid, start_time(pid)?))).collect()
}

/// Returns the arguments of a process.
pub fn arguments(pid: u32) -> Vec<Vec<u8>> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect()
}

/// Maximum number of searches for new processes in a tree.
const PASSES: u32 = 100;

/// Returns the descendants of `root`, according to each process's parent. This process and its descendants are left
/// out, because agentd may have been started in a session whose tree it ends.
fn descendants(parents: &BTreeMap<u32, u32>, root: u32, own: u32) -> impl Iterator<Item = u32> {
    parents.keys().copied().filter(move |&pid| {
        let above = std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).take(parents.len() + 1);
        pid != root && above.take_while(|&parent| parent != own).any(|parent| parent == root)
    })
}

/// Kills a process and all its descendants, and returns the number of descendants. All processes are stopped first,
/// until no new one is found. A stopped process can neither fork nor reap its children, so no process escapes and no
/// pid is reused.
pub fn kill_tree(root: u32, started: u64) -> u32 {
    if !is_running(root, started) {
        return 0;
    }
    let mut tree = BTreeSet::from([root]);
    send(root, Signal::SIGSTOP);
    for _ in 0..PASSES {
        let parents: BTreeMap<u32, u32> = pids().filter_map(|pid| Some((pid, stat(pid)?.parent))).collect();
        let found: Vec<u32> =
            descendants(&parents, root, std::process::id()).filter(|pid| !tree.contains(pid)).collect();
        if found.is_empty() {
            break;
        }
        for pid in found {
            send(pid, Signal::SIGSTOP);
            tree.insert(pid);
        }
    }
    let is_zombie = |pid: u32| stat(pid).is_none_or(|stat| matches!(stat.state, 'Z' | 'X'));
    let others: Vec<u32> = tree.iter().copied().filter(|&pid| pid != root && !is_zombie(pid)).collect();
    // The root is killed last: while it exists, it is the parent of its orphans, and they can be found.
    for pid in others.iter().copied().chain([root]) {
        send(pid, Signal::SIGKILL);
    }
    u32::try_from(others.len()).unwrap_or(u32::MAX)
}

/// The used fields of proc(5) `stat`.
struct Stat {
    state: char,
    parent: u32,
    /// Start time in clock ticks since boot.
    start_time: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may contain parentheses and spaces.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let state = fields.first()?.chars().next()?;
    Some(Stat { state, parent: fields.get(1)?.parse().ok()?, start_time: fields.get(19)?.parse().ok()? })
}

pub(super) fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns the sessions whose mark is in the environment of a process.
pub fn marked_sessions() -> BTreeSet<String> {
    let mark = format!("{SESSION_VARIABLE}=");
    let mut sessions = BTreeSet::new();
    each_environment(|_, environment| {
        let found = environment.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(mark.as_bytes()));
        sessions.extend(found.and_then(|session| String::from_utf8(session.to_vec()).ok()));
    });
    sessions
}

/// Calls `look` for every process with a readable environment. Processes of other users are not readable, and a
/// zombie's environment is empty.
fn each_environment(mut look: impl FnMut(u32, &[u8])) {
    for pid in pids() {
        if let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) {
            look(pid, &environment);
        }
    }
}

/// Maximum number of rounds in which marked processes are killed.
const ROUNDS: u32 = 50;

/// Sockets that the service manager listens on for this process.
#[derive(Debug, Default)]
pub struct ActivatedSockets {
    /// The control socket: the first one with another name than the read-only socket.
    pub control: Option<OwnedFd>,
    /// The socket with the name `read-only`.
    pub read_only: Option<OwnedFd>,
}

/// Name of the read-only socket (`FileDescriptorName=` of systemd.socket(5)).
const READ_ONLY: &str = "read-only";

/// Takes the sockets that systemd listens on for this process, `sd_listen_fds_with_names(3)`. Their order depends on
/// that of the units, so their names decide. Further sockets are left alone.
pub fn activated_sockets() -> io::Result<ActivatedSockets> {
    let mut sockets = ActivatedSockets::default();
    for (descriptor, name) in sd_notify::listen_fds_with_names()? {
        let place = if name == READ_ONLY { &mut sockets.read_only } else { &mut sockets.control };
        if place.is_none() {
            // SAFETY: the descriptors from 3 on belong to this process, because the variables name it, and no other
            // code takes them.
            #[allow(unsafe_code, reason = "a descriptor that was handed over is a number until it is owned")]
            let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
            *place = Some(owned);
        }
    }
    Ok(sockets)
}

/// Kills every process whose environment contains the session's mark, and returns their number. It is used for a
/// session without a keeper: a marked process is a descendant of the session's agent.
#[boxed]
pub async fn kill_remains(session: &str) -> u32 {
    let mark = format!("{SESSION_VARIABLE}={session}");
    let mut killed = 0;
    for _ in 0..ROUNDS {
        let mark = mark.clone();
        let round = crate::work::blocking(move || kill_once(&mark)).await.unwrap_or(0);
        if round == 0 {
            break;
        }
        killed += round;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    killed
}

fn kill_once(mark: &str) -> u32 {
    let own = std::process::id();
    let mut killed = 0;
    each_environment(|pid, environment| {
        let marked = environment.split(|&byte| byte == 0).any(|entry| entry == mark.as_bytes());
        let Some(pid) = i32::try_from(pid).ok().filter(|_| marked && pid != own) else { return };
        if kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok() {
            killed += 1;
        }
    });
    killed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_this_process_is_in_ends_above_it() {
        // 2 is the root, 4 is this process, and 5 and 6 are its descendants.
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 3), (8, 1)]);
        assert_eq!(descendants(&parents, 2, 4).collect::<Vec<_>>(), [3, 7]);
        assert_eq!(descendants(&parents, 2, 9).collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
        assert_eq!(descendants(&parents, 4, 4).count(), 0);
        // Data that is read while processes start and exit may form a cycle.
        assert_eq!(descendants(&BTreeMap::from([(3, 4), (4, 3)]), 2, 9).count(), 0);
    }
}
