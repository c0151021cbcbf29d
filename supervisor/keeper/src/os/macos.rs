//! macOS: there is no subreaper and no pidfd. A process whose parent ended belongs to launchd then, so an agent's tree is followed from its
//! start: kqueue(2) tells when one of it forks or ends, and at each such time those who belong are found and remembered ([`family`]).
//! What neither was seen below one of them, nor is in a process group with one, nor carries a mark that can be read ([`strings`]) is not found:
//! a tool that comes with the system and makes a daemon of itself within milliseconds.

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

/// Whether a process whose parent ended becomes a child of this one.
pub(crate) const ADOPTS: bool = false;

/// The longest path of a socket, bytes (`sys/un.h`: 104 with the NUL).
pub(crate) const SOCKET_PATH_MAX: usize = 103;

/// How long it is waited after a look at the processes until the next fork of one of them has another made: a build forks thousands of times.
const REST: Duration = Duration::from_millis(20);

pub(crate) fn become_subreaper() -> io::Result<()> {
    Ok(())
}

/// The program that this process runs.
pub(crate) fn own_program() -> io::Result<std::path::PathBuf> {
    std::env::current_exe()
}

/// There are no namespaces here.
pub(crate) fn hide(_enclosure: &crate::protocol::Enclosure, _directory: &Path) -> Result<Option<String>, String> {
    Err(NO_GUARD.to_owned())
}

/// There is no Landlock here.
pub(crate) fn scope() -> Result<(), String> {
    Err(NO_GUARD.to_owned())
}

/// What cannot be had here can be tried in this process.
pub(crate) fn attempt<T>(what: impl FnOnce() -> Result<T, String>) -> Result<(), String> {
    what().map(drop)
}

const NO_GUARD: &str =
    "macOS has neither user namespaces nor Landlock; use the level \"none\" here, or a Linux machine";

/// There is no such request here: an agent whose keeper was killed ends when it reads the end of its stdin.
pub(crate) fn die_with_parent(_parent: u32) -> io::Result<()> {
    Ok(())
}

/// Nobody can be asked here to kill one process before another.
pub(crate) fn expendable() -> String {
    String::new()
}

pub(crate) fn become_expendable(_score: &str) {}

pub(crate) fn make_expendable(_pid: u32, _score: &str) {}

/// The system lets a process look into another only with the consent of an administrator (`taskgated(8)`), so nothing is done here.
pub(crate) fn refuse_tracing() -> io::Result<()> {
    Ok(())
}

/// No system call of another process can be changed here.
pub(crate) fn can_substitute(_path: &[u8]) -> bool {
    false
}

pub(crate) fn seal(_content: &[u8]) -> io::Result<Sealed> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn trace_me() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Never made: see [`can_substitute`].
#[derive(Debug)]
pub(crate) struct Substitution;

impl Substitution {
    pub(crate) fn new(_pid: i32, _path: &[u8]) -> Self {
        Self
    }

    #[allow(clippy::unused_self, reason = "another system has something here")]
    pub(crate) fn is_done(&self) -> bool {
        true
    }

    #[allow(clippy::unused_self, reason = "another system has something here")]
    pub(crate) fn step(&mut self) -> Step {
        Step::Done
    }
}

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

pub(crate) fn start_time(pid: i32) -> io::Result<u64> {
    Ok(process::of(pid)?.start_time)
}

/// How much memory the process has resident, bytes; 0 for one that has ended.
pub(crate) fn resident(pid: i32) -> u64 {
    process::resident(pid).unwrap_or_default()
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

/// The processes below one, followed.
#[derive(Debug)]
pub(crate) struct Family {
    family: family::Family,
    /// The variable of the environment, and its value, that says of an orphan that it is one of them.
    mark: Option<(String, Vec<u8>)>,
    /// `None` where there was no descriptor left for it: then it is looked once a second.
    queue: Option<Kqueue>,
    followed: BTreeSet<i32>,
    /// No look before that.
    rests_until: Option<Instant>,
}

impl Family {
    /// Everybody below `root`.
    pub(crate) fn below(root: i32) -> Self {
        Self {
            family: family::Family::below(root),
            mark: None,
            queue: Kqueue::new().ok(),
            followed: BTreeSet::new(),
            rests_until: None,
        }
    }

    /// Everybody below this process, for a tree that begins with `leader`, which was just started and leads a process group; also those who
    /// were given the `mark`, the name and value of a variable.
    pub(crate) fn led_by(leader: i32, mark: Option<(&str, &[u8])>) -> Self {
        let mut family = Self::below(i32::try_from(std::process::id()).unwrap_or(i32::MAX));
        family.family = family.family.with_group(leader);
        family.mark = mark.map(|(name, value)| (name.to_owned(), value.to_vec()));
        // From here on it is followed, unless it ended at once.
        let _ = family.descendants();
        family
    }

    /// Every one that can be found.
    pub(crate) fn descendants(&mut self) -> io::Result<Vec<Process>> {
        let (all, mark) = (process::all()?, &self.mark);
        let found = self.family.look(&all, |process| {
            // Everybody else was seen with a parent.
            let mark = mark.as_ref().filter(|_| process.parent == LAUNCHD);
            mark.is_some_and(|(name, value)| {
                process::strings(process.pid).is_ok_and(|block| strings::variable(&block, name) == Some(value))
            })
        });
        self.follow();
        Ok(found.into_iter().map(Process::from).collect())
    }

    /// The pids of those that have not ended.
    pub(crate) fn tree(&mut self) -> io::Result<Vec<i32>> {
        let all = self.descendants()?;
        Ok(all.into_iter().filter(|process| !process.zombie).map(|process| process.pid).collect())
    }

    /// Asks to be told of the new ones' forks and ends.
    fn follow(&mut self) {
        let members: BTreeSet<i32> = self.family.members().collect();
        let Some(queue) = &self.queue else { return };
        for pid in members.difference(&self.followed) {
            let what = FilterFlag::NOTE_EXIT | FilterFlag::NOTE_FORK;
            let flags = EvFlags::EV_ADD | EvFlags::EV_CLEAR;
            let change = KEvent::new(pid.unsigned_abs() as usize, EventFilter::EVFILT_PROC, flags, what, 0, 0);
            // One that has ended meanwhile is not followed: the next look does not find it.
            let _ = queue.kevent(&[change], &mut [], Some(AT_ONCE));
        }
        self.followed = members;
    }

    /// What is readable where one of them forked or ended; else when it is to be looked at again.
    pub(crate) fn due(&self, now: Instant) -> Result<Option<BorrowedFd<'_>>, Instant> {
        match self.rests_until.filter(|until| now < *until) {
            Some(until) => Err(until),
            None => Ok(self.queue.as_ref().map(AsFd::as_fd)),
        }
    }

    /// Whether one of them forked or ended since the last call. Then those they forked are found before their parents end.
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
