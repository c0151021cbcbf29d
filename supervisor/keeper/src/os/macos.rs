//! Processes, signals and file descriptors on macOS, without a subreaper and without pidfds.
//!
//! A process whose parent exits becomes a child of launchd, so an agent's tree is followed from its start. The keeper
//! learns of each fork and exit in the tree from kqueue(2). At each report, the processes of the tree are listed and
//! remembered ([`family`]).
//!
//! A process is missed if it was never seen below the tree, shares no process group with it, and has no readable mark
//! ([`strings`]). An example is a system tool that becomes a daemon within milliseconds.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use agentd_darwin::family::{self, LAUNCHD};
use agentd_darwin::{process, strings};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::event::{EvFlags, EventFilter, FilterFlag, KEvent, Kqueue};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

use super::{Process, Sealed, Step};

/// Whether a process whose parent exits becomes a child of this process.
pub(crate) const ADOPTS: bool = false;

/// Maximum length of a socket's path in bytes (`sys/un.h`: 104 with the NUL).
pub(crate) const SOCKET_PATH_MAX: usize = 103;

/// Minimum time between two listings of the processes because of forks. A build forks thousands of times.
const REST: Duration = Duration::from_millis(20);

pub(crate) fn become_subreaper() -> io::Result<()> {
    Ok(())
}

/// Returns the path of this process's program.
pub(crate) fn own_program() -> io::Result<std::path::PathBuf> {
    std::env::current_exe()
}

/// Returns an error: macOS has no namespaces.
pub(crate) fn hide(_enclosure: &crate::protocol::Enclosure, _directory: &Path) -> Result<Option<String>, String> {
    Err(NO_GUARD.to_owned())
}

/// Returns an error: macOS has no Landlock.
pub(crate) fn scope() -> Result<(), String> {
    Err(NO_GUARD.to_owned())
}

/// Runs the function in this process, because it fails without side effects on macOS.
pub(crate) fn attempt<T>(what: impl FnOnce() -> Result<T, String>) -> Result<(), String> {
    what().map(drop)
}

const NO_GUARD: &str =
    "macOS has neither user namespaces nor Landlock; use the level \"none\" here, or a Linux machine";

/// Does nothing: macOS has no such request. An agent whose keeper was killed ends when it reads the end of its stdin.
pub(crate) fn die_with_parent(_parent: u32) -> io::Result<()> {
    Ok(())
}

/// Returns an empty value: macOS has no way to choose which process is killed first when memory runs out.
pub(crate) fn expendable() -> String {
    String::new()
}

pub(crate) fn become_expendable(_score: &str) {}

pub(crate) fn make_expendable(_pid: u32, _score: &str) {}

/// Does nothing: macOS requires an administrator's consent before a process may read another's memory
/// (`taskgated(8)`).
pub(crate) fn refuse_tracing() -> io::Result<()> {
    Ok(())
}

/// Returns false: macOS offers no way to change another process's system call.
pub(crate) fn can_substitute(_path: &[u8]) -> bool {
    false
}

pub(crate) fn seal(_content: &[u8]) -> io::Result<Sealed> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn trace_me() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Placeholder that is never constructed: see [`can_substitute`].
#[derive(Debug)]
pub(crate) struct Substitution;

impl Substitution {
    pub(crate) fn new(_pid: i32, _path: &[u8]) -> Self {
        Self
    }

    #[allow(clippy::unused_self, reason = "other systems use self here")]
    pub(crate) fn is_done(&self) -> bool {
        true
    }

    #[allow(clippy::unused_self, reason = "other systems use self here")]
    pub(crate) fn step(&mut self) -> Step {
        Step::Done
    }
}

/// Closes every file descriptor except stdin, stdout, stderr and `kept`.
#[allow(unsafe_code, reason = "a file descriptor without an owner can only be closed by its number")]
pub(crate) fn close_inherited(kept: Option<i32>) -> io::Result<()> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/dev/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()).filter(|fd| *fd > 2));
    }
    for fd in open.into_iter().filter(|fd| Some(*fd) != kept) {
        // SAFETY: the first call in main, when no code in this process owns a file descriptor above 2. The directory
        // that was read is already closed, and closing an unused number does nothing.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// Does nothing: a pipe grows by itself on macOS, up to 64 KiB.
pub(crate) fn widen(_pipe: impl AsFd, _bytes: i32) {}

/// Does nothing: agentd starts no keeper in standby here.
pub(crate) fn set_command_line<'a>(_arguments: impl Iterator<Item = &'a [u8]>) {}

pub(crate) fn start_time(pid: i32) -> io::Result<u64> {
    Ok(process::of(pid)?.start_time)
}

/// Does nothing: the allocator of this system releases memory by itself.
pub(crate) fn release_memory() {}

/// Returns the resident memory of a process in bytes, or 0 if it has exited.
pub(crate) fn resident(pid: i32) -> u64 {
    process::resident(pid).unwrap_or_default()
}

/// Returns the resident memory of a process, because macOS does not report which part is shared.
pub(crate) fn proportional(pid: i32) -> u64 {
    resident(pid)
}

/// Sends the signal if the process is still the intended one. Its id can be reused between the check and the signal.
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

/// Opens the file at a path that has no symbolic link. macOS has no handle that does not open the file.
pub(crate) fn pin(path: &Path) -> io::Result<OwnedFd> {
    let no_links = OFlag::from_bits_retain(libc::O_NOFOLLOW_ANY);
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | no_links;
    Ok(nix::fcntl::open(path, flags, Mode::empty())?)
}

/// Opens the same file again.
pub(crate) fn reopen(pinned: &OwnedFd) -> io::Result<OwnedFd> {
    pinned.try_clone()
}

/// Returns the major and minor number of a device (`sys/types.h`).
pub(crate) fn device(number: u64) -> (u64, u64) {
    ((number >> 24) & 0xff, number & 0x00ff_ffff)
}

/// Process tree below one process, followed through kqueue(2).
#[derive(Debug)]
pub(crate) struct Family {
    family: family::Family,
    /// Environment variable and its value that identify an orphan as part of the tree.
    mark: Option<(String, Vec<u8>)>,
    /// kqueue of the tree; `None` if no file descriptor was free. The tree is then listed once a second.
    queue: Option<Kqueue>,
    followed: BTreeSet<i32>,
    /// Time before which the processes are not listed again.
    rests_until: Option<Instant>,
}

impl Family {
    /// Returns the tree below `root`.
    pub(crate) fn below(root: i32) -> Self {
        Self {
            family: family::Family::below(root),
            mark: None,
            queue: Kqueue::new().ok(),
            followed: BTreeSet::new(),
            rests_until: None,
        }
    }

    /// Returns the tree of `leader`, which was just started and leads a process group. The tree includes processes
    /// with the `mark`, the name and value of an environment variable.
    pub(crate) fn led_by(leader: i32, mark: Option<(&str, &[u8])>) -> Self {
        let mut family = Self::below(i32::try_from(std::process::id()).unwrap_or(i32::MAX));
        family.family = family.family.with_group(leader);
        family.mark = mark.map(|(name, value)| (name.to_owned(), value.to_vec()));
        // From now on the leader is followed, unless it has already exited.
        let _ = family.descendants();
        family
    }

    /// Returns all descendants that can be found.
    pub(crate) fn descendants(&mut self) -> io::Result<Vec<Process>> {
        let (all, mark) = (process::all()?, &self.mark);
        let found = self.family.look(&all, |process| {
            // All other processes were seen with a parent.
            let mark = mark.as_ref().filter(|_| process.parent == LAUNCHD);
            mark.is_some_and(|(name, value)| {
                process::strings(process.pid).is_ok_and(|block| strings::variable(&block, name) == Some(value))
            })
        });
        self.follow();
        Ok(found.into_iter().map(Process::from).collect())
    }

    /// Returns the process ids of the descendants that have not exited.
    pub(crate) fn tree(&mut self) -> io::Result<Vec<i32>> {
        let all = self.descendants()?;
        Ok(all.into_iter().filter(|process| !process.zombie).map(|process| process.pid).collect())
    }

    /// Subscribes to the forks and exits of new processes.
    fn follow(&mut self) {
        let members: BTreeSet<i32> = self.family.members().collect();
        let Some(queue) = &self.queue else { return };
        for pid in members.difference(&self.followed) {
            let what = FilterFlag::NOTE_EXIT | FilterFlag::NOTE_FORK;
            let flags = EvFlags::EV_ADD | EvFlags::EV_CLEAR;
            let change = KEvent::new(pid.unsigned_abs() as usize, EventFilter::EVFILT_PROC, flags, what, 0, 0);
            // A process that exited meanwhile is not followed, because the next listing does not find it.
            let _ = queue.kevent(&[change], &mut [], Some(AT_ONCE));
        }
        self.followed = members;
    }

    /// Returns the file descriptor that is readable after a fork or an exit, or else the time of the next listing.
    pub(crate) fn due(&self, now: Instant) -> Result<Option<BorrowedFd<'_>>, Instant> {
        match self.rests_until.filter(|until| now < *until) {
            Some(until) => Err(until),
            None => Ok(self.queue.as_ref().map(AsFd::as_fd)),
        }
    }

    /// Reports whether a process of the tree forked or exited since the last call. If so, lists the processes, so
    /// that new children are found before their parents exit.
    pub(crate) fn take_changes(&mut self, now: Instant) -> bool {
        let Ok(Some(_)) = self.due(now) else { return false };
        let none = KEvent::new(0, EventFilter::EVFILT_PROC, EvFlags::empty(), FilterFlag::empty(), 0, 0);
        let (mut events, mut came) = ([none; 64], false);
        while let Some(queue) = &self.queue {
            match queue.kevent(&[], &mut events, Some(AT_ONCE)) {
                Ok(0) | Err(_) => break,
                Ok(_) => came = true,
            }
        }
        if came {
            self.rests_until = Some(now + REST);
            let _ = self.descendants();
        }
        came
    }
}

const AT_ONCE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };

impl From<family::Process> for Process {
    fn from(process: family::Process) -> Self {
        let family::Process { pid, start_time, parent, group, zombie } = process;
        Self { pid, start_time, parent, group, zombie }
    }
}
