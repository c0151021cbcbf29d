//! Linux: a subreaper, so that no descendant is ever lost; proc(5) for who they are; pidfds, so that a signal reaches the
//! process that was meant and not its successor under the same pid.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::{Process, closure};

/// Whether a process whose parent ended becomes a child of this one.
pub(crate) const ADOPTS: bool = true;

/// The longest path of a socket, bytes (unix(7): 108 with the NUL).
pub(crate) const SOCKET_PATH_MAX: usize = 107;

/// From here on a descendant whose parent ends becomes a child of this process, so that "no children" is "no descendants".
pub(crate) fn become_subreaper() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// In a child before exec: to be killed when `parent` ends. Async-signal-safe.
pub(crate) fn die_with_parent(parent: u32) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // It may have ended before the call.
    if std::os::unix::process::parent_id() == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Closes every descriptor but the first three.
#[allow(unsafe_code, reason = "nix has no close_range")]
pub(crate) fn close_inherited() -> io::Result<()> {
    // SAFETY: called first thing in main, when nothing in this process owns a descriptor above 2.
    match unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn peer_uid(socket: impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(&socket, PeerCredentials)?.uid())
}

pub(crate) fn start_time(pid: i32) -> io::Result<u64> {
    Ok(read(pid)?.start_time)
}

/// Every descendant of `root`. `_groups` is for systems without a subreaper.
pub(crate) fn descendants(root: i32, _groups: &[i32]) -> io::Result<Vec<Process>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that ended since it was listed is no descendant any more.
        if let Ok(process) = read(pid) {
            all.push(process);
        }
    }
    Ok(closure(all, root, |_| false))
}

/// Sends the signal to this very process; says whether it was there to receive it.
pub(crate) fn signal(process: &Process, signal: Signal) -> io::Result<bool> {
    let handle = match open(process.pid) {
        Ok(handle) => handle,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
        Err(error) => return Err(error),
    };
    // The handle holds whoever has the pid now; that it is the one meant can be told only after that.
    if start_time(process.pid).ok() != Some(process.start_time) {
        return Ok(false);
    }
    match send(&handle, signal) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        Err(error) => Err(error),
    }
}

#[allow(unsafe_code, reason = "nix has no pidfd_open")]
fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointer.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0_u32) };
    match RawFd::try_from(fd) {
        // SAFETY: the kernel gave this descriptor just now, so nobody else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[allow(unsafe_code, reason = "nix has no pidfd_send_signal")]
fn send(handle: &OwnedFd, signal: Signal) -> io::Result<()> {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed and means that of kill(2); the descriptor is open for as long as `handle` is borrowed.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), signal as i32, info, 0_u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn read(pid: i32) -> io::Result<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    parse(pid, &stat)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat has another form")))
}

/// proc(5): the name stands in parentheses and may hold parentheses itself, so the fields are counted from the last one.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let end = memchr::memrchr(b')', stat)?;
    let mut fields = std::str::from_utf8(stat.get(end + 2..)?).ok()?.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    // Field 22; the group was field 5.
    let start_time = fields.nth(16)?.parse().ok()?;
    Some(Process { pid, start_time, parent, group, zombie: matches!(state, "Z" | "X") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let stat = b"42 (a) R 1 (b) Z 7 40 40 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 10\n";
        let process = parse(42, stat).unwrap();
        assert_eq!(process, Process { pid: 42, start_time: 98765, parent: 7, group: 40, zombie: true });
    }

    #[test]
    fn a_signal_for_a_predecessor_does_not_reach_the_process_that_has_its_pid_now() {
        let mut child = std::process::Command::new("/bin/sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let process = read(pid).unwrap();
        let predecessor = Process { start_time: process.start_time - 1, ..process };
        assert!(!signal(&predecessor, Signal::SIGKILL).unwrap());
        assert_eq!(child.try_wait().unwrap(), None);
        assert!(signal(&process, Signal::SIGKILL).unwrap());
        child.wait().unwrap();
    }
}
