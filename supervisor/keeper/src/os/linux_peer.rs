//! Who is at the other end of a unix socket, and whose child that process is, as proc(5) shows it.
//!
//! Only files are read that the kernel fills without the memory map of the process: `cmdline` and `environ` can hang
//! on a process
//! that wants them to.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};

use super::Relative;

/// The process that connected, as the kernel noted it at that moment.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// `None` where the process has ended.
    pub(crate) pid: Option<i32>,
    /// Whether it is outside of this process's pid namespace, and so below no process in it.
    pub(crate) is_outside: bool,
    /// Linux before 6.5 gives none.
    handle: Option<OwnedFd>,
}

impl Peer {
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(&socket, PeerCredentials)?;
        // The pid in this namespace, also of one that has ended; 0 is in another.
        let noted = Some(credentials.pid()).filter(|pid| *pid > 0);
        let (pid, handle) = match getsockopt(&socket, PeerPidfd) {
            Ok(handle) => (pid_of(&handle)?, Some(handle)),
            Err(Errno::ENOPROTOOPT) => (noted, None),
            // It has ended, and was waited for.
            Err(Errno::ESRCH | Errno::EINVAL | Errno::ENODATA) => (None, None),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { uid: credentials.uid(), pid, is_outside: noted.is_none(), handle })
    }

    /// Whether the process is still there, and so still has its pid. Without a handle the start time says so.
    pub(crate) fn is_still(&self, seen: &Relative) -> bool {
        match &self.handle {
            Some(handle) => pid_of(handle).is_ok_and(|pid| pid == Some(seen.pid)),
            None => relative(seen.pid).is_ok_and(|now| now.start_time == seen.start_time),
        }
    }
}

/// The pid in this process's namespace, by the handle's file in proc(5).
fn pid_of(handle: &OwnedFd) -> io::Result<Option<i32>> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd()))?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse::<i32>().ok());
    Ok(pid.filter(|pid| *pid > 0))
}

/// One process with its parent.
pub(crate) fn relative(pid: i32) -> io::Result<Relative> {
    let mut block = [0; 1024];
    let read = File::open(format!("/proc/{pid}/stat"))?.read(&mut block)?;
    parse(pid, &block[..read])
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat has another form")))
}

/// The name stands in parentheses and may hold parentheses itself, so it ends at the last one.
fn parse(pid: i32, stat: &[u8]) -> Option<Relative> {
    let (begin, end) = (memchr::memchr(b'(', stat)?, memchr::memrchr(b')', stat)?);
    let mut fields = std::str::from_utf8(stat.get(end + 2..)?).ok()?.split(' ');
    let parent = fields.nth(1)?.parse().ok()?;
    // Field 22; the parent was field 4.
    let start_time = fields.nth(17)?.parse().ok()?;
    Some(Relative { pid, parent, start_time, name: stat.get(begin + 1..end)?.to_vec() })
}

/// The names of the cgroups that the process is in, in every hierarchy.
pub(crate) fn cgroups(pid: i32) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    Ok(paths.flat_map(|path| path.split('/')).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// The program that the process runs; nothing where that may not be looked at.
pub(crate) fn program(pid: i32) -> Option<String> {
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
        assert_eq!(own.start_time, super::super::start_time(own.pid).unwrap());
        assert_eq!(program(own.pid), std::env::current_exe().ok().map(|path| path.display().to_string()));
    }
}
