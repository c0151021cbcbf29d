//! Processes, as shown by libproc(3) and sysctl(3), and socket activation by launchd.
//!
//! A process's mark is read from its initial environment. macOS shows the environment of the user's own processes,
//! but not of programs of the system (see [`agentd_darwin::strings`]). Such processes are recognised by their
//! ancestors or by their process group. A system program that left its group and whose parent has exited is not found
//! once its keeper is gone.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use agentd_darwin::family::Family;
use agentd_darwin::{launchd, process, strings};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::send;
use agentd_keeper::protocol::SESSION_VARIABLE;

/// Reports whether the process that made `listener` listen answers `connection`. macOS does not report the process of
/// a listening socket, so the result is always `true`.
pub fn is_answered_by(_connection: &UnixStream, _listener: &UnixListener) -> bool {
    true
}

/// Program that shows a notification, with its first arguments: osascript(1). The title and the text follow.
pub const NOTIFIER: Option<&[&str]> = Some(&[
    "/usr/bin/osascript",
    "-e",
    "on run arguments",
    "-e",
    "display notification (item 2 of arguments) with title (item 1 of arguments)",
    "-e",
    "end run",
]);

/// Maximum length of a socket's path in bytes (`sys/un.h`: 104 with the NUL).
pub const SOCKET_PATH_MAX: usize = 103;

/// Key under `Sockets` in the job's property list, units/launchd.
const SOCKET: &std::ffi::CStr = c"control";

/// Sockets that the service manager listens on for this process.
#[derive(Debug, Default)]
pub struct ActivatedSockets {
    /// The control socket.
    pub control: Option<OwnedFd>,
    /// The read-only socket, which the launchd job does not declare.
    pub read_only: Option<OwnedFd>,
}

/// Takes the socket that launchd listens on for this process, launchd.plist(5) `Sockets`.
pub fn activated_sockets() -> io::Result<ActivatedSockets> {
    Ok(ActivatedSockets { control: launchd::sockets(SOCKET)?.into_iter().next(), read_only: None })
}

/// Returns the start time of the process in microseconds since 1970. Pid and start time identify one process.
pub fn start_time(pid: u32) -> Option<u64> {
    Some(process::of(i32::try_from(pid).ok()?).ok()?.start_time)
}

/// Returns `None`, because macOS has no systemd units.
pub fn unit_of(_pid: u32, _prefix: &str) -> Option<String> {
    None
}

/// Returns `false`, because macOS has no systemd.
pub fn is_of_systemd() -> bool {
    false
}

/// Returns the launchd job of this process. launchd sets the variable to the job's name for its own children, and to
/// `0` otherwise.
pub fn own_unit() -> Option<String> {
    std::env::var("XPC_SERVICE_NAME").ok().filter(|name| name.starts_with("dev.agentd."))
}

/// Returns the process that the lock's record names, if it exists. macOS does not report the holder of a lock.
pub fn lock_holder(_device: u64, _inode: u64, recorded: Option<u32>) -> Option<u32> {
    recorded.filter(|pid| name_of(*pid).is_some())
}

/// Returns the kernel's name of the process: the first 15 bytes of its program's name.
pub fn name_of(pid: u32) -> Option<String> {
    String::from_utf8(process::name(i32::try_from(pid).ok()?).ok()?).ok()
}

/// Returns this user's id if the process may be signalled, and thus belongs to this user.
pub fn owner_of(pid: u32) -> Option<u32> {
    kill(Pid::from_raw(i32::try_from(pid).ok()?), None).ok().map(|()| nix::unistd::getuid().as_raw())
}

/// Reports whether the process runs. A zombie does not run.
pub fn is_running(pid: u32, start_time: u64) -> bool {
    let process = i32::try_from(pid).ok().and_then(|pid| process::of(pid).ok());
    process.is_some_and(|process| process.start_time == start_time && !process.zombie)
}

/// Returns `false`: this state is not queried on macOS, and a stopped keeper has the time limit of any other.
pub fn is_stopped(_pid: u32) -> bool {
    false
}

/// Returns the keepers whose command line contains this session directory, with their start times.
pub fn keepers_of(directory: &Path) -> Vec<(u32, u64)> {
    let directory = directory.as_os_str().as_encoded_bytes();
    let is_keeper = |pid: &i32| {
        let block = process::strings(*pid).unwrap_or_default();
        let mut strings = block.split(|&byte| byte == 0);
        strings.any(|string| string == b"hold") && strings.any(|string| string == directory)
    };
    let found = process::pids().unwrap_or_default().into_iter().filter(is_keeper);
    found.filter_map(|pid| Some((u32::try_from(pid).ok()?, process::of(pid).ok()?.start_time))).collect()
}

/// Returns the arguments of a process, followed by its initial environment.
pub fn arguments(pid: u32) -> Vec<Vec<u8>> {
    let block = i32::try_from(pid).ok().and_then(|pid| process::strings(pid).ok()).unwrap_or_default();
    block.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect()
}

/// Kills a keeper. Its descendants carry the session's mark, and [`kill_remains`] kills them.
pub fn kill_tree(root: u32, started: u64) -> u32 {
    if is_running(root, started) {
        send(root, Signal::SIGKILL);
    }
    0
}

/// Returns the sessions whose mark is in the readable environment of a process.
pub fn marked_sessions() -> BTreeSet<String> {
    process::pids().unwrap_or_default().into_iter().filter_map(mark).collect()
}

fn mark(pid: i32) -> Option<String> {
    let block = process::strings(pid).ok()?;
    String::from_utf8(strings::variable(&block, SESSION_VARIABLE)?.to_vec()).ok()
}

/// Maximum number of rounds in which marked processes are killed.
const ROUNDS: u32 = 50;

/// Kills every process with the session's mark, its descendants, and the members of their process groups, and returns
/// their number. It is used for a session without a keeper: a marked process is a descendant of the session's agent.
pub async fn kill_remains(session: &str) -> u32 {
    let mut killed = 0;
    let mut remains = Family::default();
    for _ in 0..ROUNDS {
        let session = session.to_owned();
        let round = tokio::task::spawn_blocking(move || {
            let round = kill_once(&mut remains, &session);
            (round, remains)
        });
        let Ok((round, same)) = round.await else { break };
        remains = same;
        if round == 0 {
            break;
        }
        killed += round;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    killed
}

fn kill_once(remains: &mut Family, session: &str) -> u32 {
    let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    let all = process::all().unwrap_or_default();
    let found = remains.look(&all, |process| mark(process.pid).as_deref() == Some(session));
    let mut killed = 0;
    for process in found.into_iter().filter(|process| !process.zombie && process.pid != own) {
        // The pid could be reused between the search and the signal, but not within a few microseconds.
        if kill(Pid::from_raw(process.pid), Signal::SIGKILL).is_ok() {
            killed += 1;
        }
    }
    killed
}
