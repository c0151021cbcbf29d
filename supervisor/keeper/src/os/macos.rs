//! macOS: there is no subreaper and no pidfd. A process whose parent ended belongs to launchd then; what is found of an agent's
//! tree is what descends from this process still, and whoever is in one of the agent's process groups. A tool that left both
//! is not found: that is what this system offers without privileges.

use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, getpeereid};

use super::{Process, closure};

/// Whether a process whose parent ended becomes a child of this one.
pub(crate) const ADOPTS: bool = false;

/// The longest path of a socket, bytes (`sys/un.h`: 104 with the NUL).
pub(crate) const SOCKET_PATH_MAX: usize = 103;

pub(crate) fn become_subreaper() -> io::Result<()> {
    Ok(())
}

/// There is no such request here: an agent whose keeper was killed ends when it reads the end of its stdin.
pub(crate) fn die_with_parent(_parent: u32) -> io::Result<()> {
    Ok(())
}

/// Nobody can be asked here to kill one process before another.
pub(crate) fn expendable() -> String {
    String::new()
}

pub(crate) fn become_expendable(_score: &str) {}

/// Closes every descriptor but the first three.
#[allow(unsafe_code, reason = "a descriptor that nobody in this process owns can only be closed by its number")]
pub(crate) fn close_inherited() -> io::Result<()> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/dev/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()).filter(|fd| *fd > 2));
    }
    for fd in open {
        // SAFETY: called first thing in main, when nothing in this process owns a descriptor above 2; the directory that was
        // read is closed already, and closing a number that is not open does nothing.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// A pipe grows by itself there, up to 64 KiB.
pub(crate) fn widen(_pipe: impl AsFd, _bytes: i32) {}

pub(crate) fn peer_uid(socket: impl AsFd) -> io::Result<u32> {
    Ok(getpeereid(socket)?.0.as_raw())
}

pub(crate) fn start_time(pid: i32) -> io::Result<u64> {
    Ok(read(pid)?.start_time)
}

/// Every descendant of `root` that can be found, and everybody in these process groups.
pub(crate) fn descendants(root: i32, groups: &[i32]) -> io::Result<Vec<Process>> {
    let all = pids()?.into_iter().filter_map(|pid| read(pid).ok()).collect();
    Ok(closure(all, root, |process| groups.contains(&process.group)))
}

/// The pids of [`descendants`] that have not ended.
pub(crate) fn tree(root: i32, groups: &[i32]) -> io::Result<Vec<i32>> {
    let all = descendants(root, groups)?;
    Ok(all.into_iter().filter(|process| !process.zombie).map(|process| process.pid).collect())
}

/// How much memory the process has resident, bytes; 0 for one that has ended.
#[allow(unsafe_code, reason = "libproc has no safe binding here")]
pub(crate) fn resident(pid: i32) -> u64 {
    let Ok(size) = i32::try_from(mem::size_of::<libc::proc_taskinfo>()) else { return 0 };
    // SAFETY: all-zero is a value of this struct of numbers.
    let mut info: libc::proc_taskinfo = unsafe { mem::zeroed() };
    // SAFETY: the buffer is of that size.
    let got = unsafe { libc::proc_pidinfo(pid, libc::PROC_PIDTASKINFO, 0, (&raw mut info).cast(), size) };
    if got == size { info.pti_resident_size } else { 0 }
}

/// This system does not tell what of it is shared.
pub(crate) fn proportional(pid: i32) -> u64 {
    resident(pid)
}

/// Sends the signal if the process is still the one meant; between the look and the signal another could take its pid.
pub(crate) fn signal(process: &Process, signal: Signal) -> io::Result<bool> {
    if start_time(process.pid).ok() != Some(process.start_time) {
        return Ok(false);
    }
    match kill(Pid::from_raw(process.pid), signal) {
        Ok(()) => Ok(true),
        Err(Errno::ESRCH) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// What a path names, opened, if there is no symbolic link in it. There is no handle here that does not open it.
pub(crate) fn pin(path: &Path) -> io::Result<OwnedFd> {
    let no_links = OFlag::from_bits_retain(libc::O_NOFOLLOW_ANY);
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | no_links;
    Ok(nix::fcntl::open(path, flags, Mode::empty())?)
}

/// The same file once more.
pub(crate) fn reopen(pinned: &OwnedFd) -> io::Result<OwnedFd> {
    pinned.try_clone()
}

/// Major and minor number (`sys/types.h`).
pub(crate) fn device(number: u64) -> (u64, u64) {
    ((number >> 24) & 0xff, number & 0x00ff_ffff)
}

#[allow(unsafe_code, reason = "libproc has no safe binding here")]
fn pids() -> io::Result<Vec<i32>> {
    // SAFETY: a null buffer asks for the number of processes.
    let count = unsafe { libc::proc_listallpids(std::ptr::null_mut(), 0) };
    // Some may start in between.
    let mut pids = vec![0_i32; usize::try_from(count).map_err(|_| io::Error::last_os_error())? + 64];
    let bytes = i32::try_from(pids.len() * mem::size_of::<i32>()).map_err(io::Error::other)?;
    // SAFETY: the buffer is of that many bytes.
    let count = unsafe { libc::proc_listallpids(pids.as_mut_ptr().cast(), bytes) };
    pids.truncate(usize::try_from(count).map_err(|_| io::Error::last_os_error())?);
    Ok(pids)
}

#[allow(unsafe_code, reason = "libproc has no safe binding here")]
fn read(pid: i32) -> io::Result<Process> {
    let size = i32::try_from(mem::size_of::<libc::proc_bsdinfo>()).map_err(io::Error::other)?;
    // SAFETY: all-zero is a value of this struct of numbers.
    let mut info: libc::proc_bsdinfo = unsafe { mem::zeroed() };
    // SAFETY: the buffer is of that size.
    let got = unsafe { libc::proc_pidinfo(pid, libc::PROC_PIDTBSDINFO, 0, (&raw mut info).cast(), size) };
    if got != size {
        return Err(io::Error::last_os_error());
    }
    let id = |id: u32| i32::try_from(id).map_err(io::Error::other);
    Ok(Process {
        pid,
        start_time: info.pbi_start_tvsec * 1_000_000 + info.pbi_start_tvusec,
        parent: id(info.pbi_ppid)?,
        group: id(info.pbi_pgid)?,
        zombie: info.pbi_status == libc::SZOMB,
    })
}
