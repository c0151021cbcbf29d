//! Processes, as proc(5) shows them, and systemd's side of socket activation.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::env::SESSION_VARIABLE;

/// The longest path of a socket, bytes (unix(7): 108 with the NUL).
pub(crate) const SOCKET_PATH_MAX: usize = 107;

/// When the process was started, in clock ticks since boot: field 22 of proc(5) `stat`. With the pid it names one process.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets, and may hold anything, brackets and spaces too.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The unit whose name begins so that the process runs in, by its cgroups.
pub(crate) fn unit_of(pid: u32, prefix: &str) -> Option<String> {
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    cgroups.lines().flat_map(|line| line.split('/')).find(|part| part.starts_with(prefix)).map(str::to_owned)
}

/// The unit that this process is the main process of, as `sd_notify(3)` tells it. A process that a service merely started is none.
pub(crate) fn own_unit() -> Option<String> {
    std::env::var_os("NOTIFY_SOCKET")?;
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut services =
        cgroups.lines().filter_map(|line| line.rsplit('/').next().filter(|name| name.ends_with(".service")));
    Some(services.next_back().unwrap_or("a service").to_owned())
}

/// The process that holds an exclusive lock (flock(2)) on the file, by `/proc/locks`.
pub(crate) fn lock_holder(device: u64, inode: u64, recorded: Option<u32>) -> Option<u32> {
    agentd_api::lock::holder(&std::fs::read_to_string("/proc/locks").ok()?, device, inode, recorded)
}

/// What the kernel calls the process: the first 15 bytes of its program's name.
pub(crate) fn name_of(pid: u32) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// The user whose process it is.
pub(crate) fn owner_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

/// SIGTERM.
pub(crate) fn terminate(pid: u32) {
    if let Ok(pid) = i32::try_from(pid) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
}

/// SIGKILL.
pub(crate) fn kill_now(pid: u32) {
    if let Ok(pid) = i32::try_from(pid) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// The sessions whose mark some process carries.
pub(crate) fn marked_sessions() -> BTreeSet<String> {
    let mark = format!("{SESSION_VARIABLE}=");
    let mut sessions = BTreeSet::new();
    each_environment(|_, environment| {
        let found = environment.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(mark.as_bytes()));
        sessions.extend(found.and_then(|session| String::from_utf8(session.to_vec()).ok()));
    });
    sessions
}

/// The session whose mark the process carries.
pub(crate) fn session_of(pid: u32) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mark = format!("{SESSION_VARIABLE}=");
    let session = environment.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(mark.as_bytes()))?;
    String::from_utf8(session.to_vec()).ok()
}

/// Every process whose environment can be read: not another user's, and not a zombie's, which is empty.
fn each_environment(mut look: impl FnMut(u32, &[u8])) {
    let Ok(processes) = std::fs::read_dir("/proc") else { return };
    for pid in processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok()) {
        if let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) {
            look(pid, &environment);
        }
    }
}

/// How often the processes are looked through; each time those found before are gone.
const ROUNDS: u32 = 50;

/// The socket that systemd listens on for us, `sd_listen_fds(3)`; `None` where there is none.
pub(crate) fn activated_socket() -> io::Result<Option<OwnedFd>> {
    let first = sd_notify::listen_fds()?.next();
    // SAFETY: the descriptors from 3 on are ours alone; the variables name this process, and nobody else in it asks for them.
    #[allow(unsafe_code, reason = "a descriptor that was handed over is a number until it is owned")]
    let owned = first.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
    Ok(owned)
}

/// Kills every process that carries the session's mark in its environment; how many there were. For a session whose keeper is gone:
/// whoever has the mark was started by that session's agent, and has nobody to answer to.
pub(crate) async fn kill_remains(session: &str) -> u32 {
    let mark = format!("{SESSION_VARIABLE}={session}");
    let mut killed = 0;
    for _ in 0..ROUNDS {
        let mark = mark.clone();
        let round = tokio::task::spawn_blocking(move || kill_once(&mark)).await.unwrap_or(0);
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
