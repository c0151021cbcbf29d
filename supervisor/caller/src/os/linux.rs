//! Linux: the peer process of a connection and its ancestors, from proc(5).
//!
//! This module reads only files that the kernel fills without the process's memory map. Reads of `cmdline` and
//! `environ` can hang if the process causes it.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};

use super::Relative;

/// Process that connected, as the kernel recorded it at that moment.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// Process id; `None` if the process has exited.
    pub(crate) pid: Option<i32>,
    /// Whether the process is outside this process's pid namespace, and so below no process in it.
    pub(crate) is_outside: bool,
    /// Pidfd of the process; absent before Linux 6.5.
    handle: Option<OwnedFd>,
}

impl Peer {
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(&socket, PeerCredentials)?;
        // The process id in this namespace, also after an exit. 0 means another namespace.
        let noted = Some(credentials.pid()).filter(|pid| *pid > 0);
        let (pid, handle) = match getsockopt(&socket, PeerPidfd) {
            Ok(handle) => (pid_of(&handle)?, Some(handle)),
            Err(Errno::ENOPROTOOPT) => (noted, None),
            // The process has exited and was reaped.
            Err(Errno::ESRCH | Errno::EINVAL | Errno::ENODATA) => (None, None),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { uid: credentials.uid(), pid, is_outside: noted.is_none(), handle })
    }

    /// Reports whether the process still exists and so still has its process id. Without a pidfd, compares the start
    /// time.
    pub(crate) fn is_still(&self, seen: &Relative) -> bool {
        match &self.handle {
            Some(handle) => pid_of(handle).is_ok_and(|pid| pid == Some(seen.pid)),
            None => relative(seen.pid).is_ok_and(|now| now.start_time == seen.start_time),
        }
    }
}

/// Returns the process id in this process's namespace, from the pidfd's file in proc(5).
fn pid_of(handle: &OwnedFd) -> io::Result<Option<i32>> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd()))?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse::<i32>().ok());
    Ok(pid.filter(|pid| *pid > 0))
}

/// Reads one process with its parent.
pub(crate) fn relative(pid: i32) -> io::Result<Relative> {
    let mut block = [0; 1024];
    let read = File::open(format!("/proc/{pid}/stat"))?.read(&mut block)?;
    parse(pid, &block[..read])
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat has another form")))
}

/// Parses `/proc/PID/stat`. The name is in parentheses and may contain some, so it ends at the last one.
fn parse(pid: i32, stat: &[u8]) -> Option<Relative> {
    let (begin, end) = (memchr::memchr(b'(', stat)?, memchr::memrchr(b')', stat)?);
    let mut fields = std::str::from_utf8(stat.get(end + 2..)?).ok()?.split(' ');
    let parent = fields.nth(1)?.parse().ok()?;
    // The start time is field 22, and the parent was field 4.
    let start_time = fields.nth(17)?.parse().ok()?;
    Some(Relative { pid, parent, start_time, name: stat.get(begin + 1..end)?.to_vec() })
}

/// Returns the names of the process's cgroups in every hierarchy.
pub(crate) fn cgroups(pid: i32) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    Ok(paths.flat_map(|path| path.split('/')).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// Returns the path of the process's program, or `None` if it is not readable.
pub fn program(pid: i32) -> Option<String> {
    Some(fs::read_link(format!("/proc/{pid}/exe")).ok()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_the_rest_of_the_line() {
        let stat = b"12 (a) R 1 (b) S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 99 100\n";
        let expected = Relative { pid: 12, parent: 7, start_time: 4242, name: b"a) R 1 (b".to_vec() };
        assert_eq!(parse(12, stat), Some(expected));
        assert_eq!(parse(12, b"12 (a"), None);
    }

    #[test]
    fn a_process_is_seen_as_it_sees_itself() {
        let own = relative(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert_eq!(own.parent, i32::try_from(std::os::unix::process::parent_id()).unwrap());
        assert!(own.start_time > 0);
        assert_eq!(own, relative(own.pid).unwrap());
        assert_eq!(program(own.pid), std::env::current_exe().ok().map(|path| path.display().to_string()));
    }
}
