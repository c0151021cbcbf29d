//! Who is at the other end of a unix socket, and whose child that process is, as libproc(3) shows it.
//!
//! macOS gives a process whose parent ended to launchd, and has no handle on a process: a process that forks twice cannot be
//! placed below its
//! keeper here.

use nix::sys::resource::Resource;
use std::io;
use std::os::fd::AsFd;

use agentd_darwin::process;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::LocalPeerPid;
use nix::unistd::getpeereid;

use super::Relative;

/// The resource limits that a login passes on, by their names in `limits.conf(5)`.
pub(crate) const LIMITS: &[(&str, Resource)] = &[
    ("core", Resource::RLIMIT_CORE),
    ("cpu", Resource::RLIMIT_CPU),
    ("data", Resource::RLIMIT_DATA),
    ("fsize", Resource::RLIMIT_FSIZE),
    ("nofile", Resource::RLIMIT_NOFILE),
    ("stack", Resource::RLIMIT_STACK),
    ("as", Resource::RLIMIT_AS),
];

/// The process that connected, as the kernel noted it at that moment.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// `None` where the process has ended.
    pub(crate) pid: Option<i32>,
    /// There are no pid namespaces.
    pub(crate) is_outside: bool,
}

impl Peer {
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let uid = getpeereid(&socket)?.0.as_raw();
        let pid = getsockopt(&socket, LocalPeerPid).ok().filter(|pid| *pid > 0);
        Ok(Self { uid, pid, is_outside: false })
    }

    /// Whether the process is still there, and so still has its pid.
    #[allow(clippy::unused_self, reason = "another system has a handle")]
    pub(crate) fn is_still(&self, seen: &Relative) -> bool {
        relative(seen.pid).is_ok_and(|now| now.start_time == seen.start_time)
    }
}

/// One process with its parent.
pub(crate) fn relative(pid: i32) -> io::Result<Relative> {
    match process::of(pid) {
        Ok(found) => Ok(Relative {
            pid,
            parent: found.parent,
            start_time: found.start_time,
            name: process::name(pid).unwrap_or_default(),
        }),
        // Another user's process tells its name and nothing else: a login, a launchd. It is no keeper here.
        Err(error) => match process::name(pid) {
            Ok(name) => Ok(Relative { pid, parent: 0, start_time: 0, name }),
            Err(_) => Err(error),
        },
    }
}

/// There are no cgroups.
pub(crate) fn cgroups(_pid: i32) -> io::Result<Vec<String>> {
    Ok(Vec::new())
}

/// The program that the process runs.
pub(crate) fn program(pid: i32) -> Option<String> {
    Some(process::program(pid).ok()?.to_string_lossy().into_owned())
}

/// The kernel does not say what a process waits for.
pub(crate) fn reads_terminal(_pid: i32) -> Option<bool> {
    None
}
