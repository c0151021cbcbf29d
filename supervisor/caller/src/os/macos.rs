//! On macOS, finds the peer process of a connection and its ancestors on macOS, from libproc(3).
//!
//! A process whose parent exits becomes a child of launchd on macOS, which has no process handles. A process that
//! forks twice cannot be found below its keeper here.

use std::io;
use std::os::fd::AsFd;

use agentd_darwin::process;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::LocalPeerPid;
use nix::unistd::getpeereid;

use super::Relative;

/// Process that connected, as the kernel recorded it at that moment.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// Process id; `None` if the process has exited.
    pub(crate) pid: Option<i32>,
    /// Always false, because macOS has no pid namespaces.
    pub(crate) is_outside: bool,
}

impl Peer {
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let uid = getpeereid(&socket)?.0.as_raw();
        let pid = getsockopt(&socket, LocalPeerPid).ok().filter(|pid| *pid > 0);
        Ok(Self { uid, pid, is_outside: false })
    }

    /// Reports whether the process still exists and so still has its process id.
    #[allow(clippy::unused_self, reason = "other systems use a process handle here")]
    pub(crate) fn is_still(&self, seen: &Relative) -> bool {
        relative(seen.pid).is_ok_and(|now| now.start_time == seen.start_time)
    }
}

/// Reads one process with its parent.
pub(crate) fn relative(pid: i32) -> io::Result<Relative> {
    match process::of(pid) {
        Ok(found) => Ok(Relative {
            pid,
            parent: found.parent,
            start_time: found.start_time,
            name: process::name(pid).unwrap_or_default(),
        }),
        // Another user's process, such as a login or launchd, only shows its name. Such a process is no keeper.
        Err(error) => match process::name(pid) {
            Ok(name) => Ok(Relative { pid, parent: 0, start_time: 0, name }),
            Err(_) => Err(error),
        },
    }
}

/// Returns no names, because macOS has no cgroups.
pub(crate) fn cgroups(_pid: i32) -> io::Result<Vec<String>> {
    Ok(Vec::new())
}

/// Returns the path of the process's program.
pub fn program(pid: i32) -> Option<String> {
    Some(process::program(pid).ok()?.to_string_lossy().into_owned())
}
