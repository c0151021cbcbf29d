//! Processes, as libproc(3) and sysctl(3) show them, and launchd's side of socket activation.
//!
//! A process's mark is read from what it was started with. macOS shows that of the user's own processes, but not of the programs that come
//! with the system (see [`agentd_darwin::strings`]): those are known by who is above them, or in a process group with them. A tool that is such
//! a program, left its group, and whose parent ended is not found once its keeper is gone.

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
use crate::env::SESSION_VARIABLE;

/// Whether the process that made `listener` listen is the one that answers `connection`. macOS tells no process of a socket that listens,
/// so whoever answers is taken for it.
pub(crate) fn is_answered_by(_connection: &UnixStream, _listener: &UnixListener) -> bool {
    true
}

/// The longest path of a socket, bytes (`sys/un.h`: 104 with the NUL).
pub(crate) const SOCKET_PATH_MAX: usize = 103;

/// The key under `Sockets` in the job's property list, units/launchd.
const SOCKET: &std::ffi::CStr = c"control";

/// The socket that launchd listens on for us, launchd.plist(5) `Sockets`; `None` where it did not start us.
pub(crate) fn activated_socket() -> io::Result<Option<OwnedFd>> {
    Ok(launchd::sockets(SOCKET)?.into_iter().next())
}

/// When the process was started, in microseconds since 1970. With the pid it names one process.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    Some(process::of(i32::try_from(pid).ok()?).ok()?.start_time)
}

/// There are no units.
pub(crate) fn unit_of(_pid: u32, _prefix: &str) -> Option<String> {
    None
}

/// There is no systemd.
pub(crate) fn is_of_systemd() -> bool {
    false
}

/// The job that this process is: launchd names it in the environment of what it starts itself, and `0` elsewhere.
pub(crate) fn own_unit() -> Option<String> {
    std::env::var("XPC_SERVICE_NAME").ok().filter(|name| name.starts_with("dev.agentd."))
}

/// macOS does not show who holds a lock: the process that the lock's own record names is believed, if it is there.
pub(crate) fn lock_holder(_device: u64, _inode: u64, recorded: Option<u32>) -> Option<u32> {
    recorded.filter(|pid| name_of(*pid).is_some())
}

/// What the kernel calls the process: the first 15 bytes of its program's name.
pub(crate) fn name_of(pid: u32) -> Option<String> {
    String::from_utf8(process::name(i32::try_from(pid).ok()?).ok()?).ok()
}

/// The user whose process it is: one that may be signalled is this user's.
pub(crate) fn owner_of(pid: u32) -> Option<u32> {
    kill(Pid::from_raw(i32::try_from(pid).ok()?), None).ok().map(|()| nix::unistd::getuid().as_raw())
}

/// Whether the process runs; one that has ended and was not waited for does not.
pub(crate) fn is_running(pid: u32, start_time: u64) -> bool {
    let process = i32::try_from(pid).ok().and_then(|pid| process::of(pid).ok());
    process.is_some_and(|process| process.start_time == start_time && !process.zombie)
}

/// Not asked of macOS here: a keeper that is stopped is given its time like any other.
pub(crate) fn is_stopped(_pid: u32) -> bool {
    false
}

/// The keepers whose command line names this session directory, with their start times.
pub(crate) fn keepers_of(directory: &Path) -> Vec<(u32, u64)> {
    let directory = directory.as_os_str().as_encoded_bytes();
    let is_keeper = |pid: &i32| {
        let block = process::strings(*pid).unwrap_or_default();
        let mut strings = block.split(|&byte| byte == 0);
        strings.any(|string| string == b"hold") && strings.any(|string| string == directory)
    };
    let found = process::pids().unwrap_or_default().into_iter().filter(is_keeper);
    found.filter_map(|pid| Some((u32::try_from(pid).ok()?, process::of(pid).ok()?.start_time))).collect()
}

/// The arguments of a process, with what else it was started with.
pub(crate) fn arguments(pid: u32) -> Vec<Vec<u8>> {
    let block = i32::try_from(pid).ok().and_then(|pid| process::strings(pid).ok()).unwrap_or_default();
    block.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect()
}

/// Kills a keeper. Those below it carry the session's mark, and are for [`kill_remains`].
pub(crate) fn kill_tree(root: u32, started: u64) -> u32 {
    if is_running(root, started) {
        send(root, Signal::SIGKILL);
    }
    0
}

/// The sessions whose mark some process carries, as far as it can be read.
pub(crate) fn marked_sessions() -> BTreeSet<String> {
    process::pids().unwrap_or_default().into_iter().filter_map(mark).collect()
}

fn mark(pid: i32) -> Option<String> {
    let block = process::strings(pid).ok()?;
    String::from_utf8(strings::variable(&block, SESSION_VARIABLE)?.to_vec()).ok()
}

/// How often the processes are looked through; each time those found before are gone.
const ROUNDS: u32 = 50;

/// Kills every process that carries the session's mark, those below it, and those in a process group with one of them; how many there were.
/// For a session whose keeper is gone: whoever has the mark was started by that session's agent, and has nobody to answer to.
pub(crate) async fn kill_remains(session: &str) -> u32 {
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
        // Between the look and the signal its pid can pass to another, but not within so few microseconds.
        if kill(Pid::from_raw(process.pid), Signal::SIGKILL).is_ok() {
            killed += 1;
        }
    }
    killed
}
