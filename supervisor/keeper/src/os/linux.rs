//! Linux: processes, signals and file descriptors. The keeper is a subreaper, so no descendant is ever lost. The
//! files of proc(5) identify processes. Pidfds ensure that a signal reaches the intended process and not another
//! process with a reused process id.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, SFlag, fstat};

use super::Process;

/// Whether a process whose parent exits becomes a child of this process.
pub(crate) const ADOPTS: bool = true;

/// Maximum length of a socket's path in bytes (unix(7): 108 with the NUL).
pub(crate) const SOCKET_PATH_MAX: usize = 107;

/// Makes this process the parent of descendants whose parent exits. "No children" then means "no descendants".
pub(crate) fn become_subreaper() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// Arranges in a child before its exec that it is killed when `parent` exits. Async-signal-safe.
pub(crate) fn die_with_parent(parent: u32) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have exited before the call.
    if std::os::unix::process::parent_id() == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Returns the `oom_score_adj` value with which the kernel kills a child before this process when memory runs out.
pub(crate) fn expendable() -> String {
    let own = fs::read_to_string(OOM_SCORE).ok().and_then(|own| own.trim().parse::<i32>().ok()).unwrap_or(0);
    own.saturating_add(EXPENDABLE).min(1000).to_string()
}

/// Applies the value of [`expendable`] in a child before its exec. Async-signal-safe. On an error, the agent runs
/// without it.
pub(crate) fn become_expendable(score: &str) {
    if let Ok(file) = nix::fcntl::open(OOM_SCORE, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty()) {
        let _ = nix::unistd::write(file, score.as_bytes());
    }
}

/// Applies the value to a child after its exec. Before that, the file of a process that refuses tracing belongs to
/// root.
pub(crate) fn make_expendable(pid: u32, score: &str) {
    let file = format!("/proc/{pid}/oom_score_adj");
    if fs::read_to_string(&file).is_ok_and(|now| now.trim() != score) {
        let _ = fs::write(&file, score);
    }
}

/// Protects this process's memory: from now on only root can read it, and the process leaves no core file.
pub(crate) fn refuse_tracing() -> io::Result<()> {
    Ok(prctl::set_dumpable(false)?)
}

/// File of this process's score, see `proc_pid_oom_score_adj(5)`.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";
/// Score for a child, in thousandths of the available memory. A keeper that uses less than half of its session's
/// limit is killed last.
const EXPENDABLE: i32 = 500;

/// Closes every file descriptor except stdin, stdout, stderr and `kept`.
#[allow(unsafe_code, reason = "nix has no close_range")]
pub(crate) fn close_inherited(kept: Option<RawFd>) -> io::Result<()> {
    let kept = kept.and_then(|kept| u32::try_from(kept).ok()).filter(|kept| *kept > 2);
    let ranges = match kept {
        Some(kept) => [(3, kept - 1), (kept + 1, u32::MAX)],
        None => [(3, u32::MAX), (1, 0)],
    };
    for (first, last) in ranges.into_iter().filter(|(first, last)| first <= last) {
        // SAFETY: the first call in main, when no code in this process owns a file descriptor above 2.
        if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0_u32) } != 0 {
            // Linux before 5.9, or a system call filter that is older than the call.
            return close_listed(kept);
        }
    }
    Ok(())
}

#[allow(unsafe_code, reason = "a file descriptor without an owner can only be closed by its number")]
fn close_listed(kept: Option<u32>) -> io::Result<()> {
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()).filter(|fd| *fd > 2));
    }
    for fd in open.into_iter().filter(|fd| u32::try_from(*fd).ok() != kept) {
        // SAFETY: as above. The directory that was read is already closed, and closing an unused number does nothing.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// Sets a pipe's capacity in bytes, if the user's limit allows it (`pipe(7)`, "Pipe capacity").
pub(crate) fn widen(pipe: impl AsFd, bytes: i32) {
    let _ = nix::fcntl::fcntl(pipe, nix::fcntl::FcntlArg::F_SETPIPE_SZ(bytes));
}

pub(crate) fn start_time(pid: i32) -> io::Result<u64> {
    Ok(read(pid)?.start_time)
}

/// Process tree below one process. A descendant of a subreaper always stays its descendant, so the tree needs no
/// state.
#[derive(Debug)]
pub(crate) struct Family {
    root: i32,
}

impl Family {
    /// Returns the tree below `root`.
    pub(crate) fn below(root: i32) -> Self {
        Self { root }
    }

    /// Returns the tree below this process. The leader and the mark are for systems without a subreaper.
    pub(crate) fn led_by(_leader: i32, _mark: Option<(&str, &[u8])>) -> Self {
        Self::below(i32::try_from(std::process::id()).unwrap_or(i32::MAX))
    }

    /// Returns all descendants.
    pub(crate) fn descendants(&mut self) -> io::Result<Vec<Process>> {
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            // A process that exited since the listing is no longer a descendant.
            if let Ok(process) = read(pid) {
                all.push(process);
            }
        }
        Ok(closure(all, self.root))
    }

    /// Returns the process ids of all descendants that have not exited. The function reads only the tree's own files
    /// in /proc, so it is cheap. It may miss a process that is being forked.
    pub(crate) fn tree(&mut self) -> io::Result<Vec<i32>> {
        let (mut all, mut at) = (children(self.root)?, 0);
        if all.is_empty() {
            // The kernel may be built without these lists (CONFIG_PROC_CHILDREN).
            let all = self.descendants()?;
            return Ok(all.into_iter().filter(|process| !process.zombie).map(|process| process.pid).collect());
        }
        while let Some(pid) = all.get(at) {
            // A process that exited meanwhile has no list.
            let below = children(*pid).unwrap_or_default();
            all.extend(below);
            at += 1;
        }
        all.retain(|pid| read(*pid).is_ok_and(|process| !process.zombie));
        Ok(all)
    }

    /// Returns no file descriptor: an orphan becomes a child of this process, and SIGCHLD reports its exit.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "other systems use self and can fail here")]
    pub(crate) fn due(&self, _now: Instant) -> Result<Option<BorrowedFd<'_>>, Instant> {
        Ok(None)
    }

    /// Returns false, because this system reports all changes through SIGCHLD.
    #[allow(clippy::unused_self, reason = "other systems use self here")]
    pub(crate) fn take_changes(&mut self, _now: Instant) -> bool {
        false
    }
}

/// Returns the processes of `all` that descend from `root`.
fn closure(all: Vec<Process>, root: i32) -> Vec<Process> {
    let (mut inside, mut outside) = (Vec::new(), all);
    let mut parents = std::collections::BTreeSet::from([root]);
    loop {
        let (found, rest): (Vec<_>, Vec<_>) =
            outside.into_iter().partition(|process| parents.contains(&process.parent));
        if found.is_empty() {
            return inside;
        }
        parents = found.iter().map(|process| process.pid).collect();
        inside.extend(found.into_iter().filter(|process| process.pid != root));
        outside = rest;
    }
}

/// Returns the children of all threads of a process.
fn children(pid: i32) -> io::Result<Vec<i32>> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let list = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        children.extend(list.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Ok(children)
}

/// Returns freed memory to the system. glibc keeps such memory for the process, which has little use for it.
#[allow(unsafe_code, reason = "nix has no malloc_trim")]
pub(crate) fn release_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) changes free memory only.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Returns the resident memory of a process in bytes, or 0 if it has exited.
pub(crate) fn resident(pid: i32) -> u64 {
    field(&format!("/proc/{pid}/status"), "VmRSS:").unwrap_or(0)
}

/// Returns the resident memory of a process with its share of shared memory, in bytes. Counts a process that may not
/// be examined (a set-user-id program) in full.
pub(crate) fn proportional(pid: i32) -> u64 {
    field(&format!("/proc/{pid}/smaps_rollup"), "Pss:").unwrap_or_else(|| resident(pid))
}

/// Reads a kB value from a file of proc(5) and returns it in bytes.
fn field(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Sends the signal to exactly this process. Reports whether the process still existed.
pub(crate) fn signal(process: &Process, signal: Signal) -> io::Result<bool> {
    let handle = match open(process.pid) {
        Ok(handle) => Some(handle),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
        Err(error) if is_unknown(&error) => None,
        Err(error) => return Err(error),
    };
    // The handle refers to the current owner of the process id. Only now can its identity be checked.
    if start_time(process.pid).ok() != Some(process.start_time) {
        return Ok(false);
    }
    let sent = match &handle {
        Some(handle) => send(handle, signal),
        None => by_pid(process.pid, signal),
    };
    match sent {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sends a signal without a pidfd, for Linux before 5.3 or an older system call filter. An unreaped child keeps its
/// process id. For other descendants, the id can be reused between check and signal, which cannot be prevented.
fn by_pid(pid: i32, signal: Signal) -> io::Result<()> {
    Ok(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal)?)
}

/// Returns a handle on the file at a path that has no symbolic link. The file is not opened, so a device or a FIFO is
/// not affected.
pub(crate) fn pin(path: &Path) -> io::Result<OwnedFd> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(AT_FDCWD, path, how) {
        // Linux before 5.6, or a system call filter that is older than the call.
        Err(Errno::ENOSYS | Errno::EPERM) => pin_by_steps(path),
        pinned => Ok(pinned?),
    }
}

fn pin_by_steps(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut at = nix::fcntl::open("/", flags, Mode::empty())?;
    for name in path.components().skip(1) {
        // For a link, this is the link itself, and nothing can be opened below it.
        at = nix::fcntl::openat(&at, name.as_os_str(), flags, Mode::empty())?;
    }
    if SFlag::from_bits_truncate(fstat(&at)?.st_mode) & SFlag::S_IFMT == SFlag::S_IFLNK {
        return Err(Errno::ELOOP.into());
    }
    Ok(at)
}

/// Opens exactly the file that [`pin`] found for reading.
pub(crate) fn reopen(pinned: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(format!("/proc/self/fd/{}", pinned.as_raw_fd()).as_str(), flags, Mode::empty())?)
}

/// Returns the major and minor number of a device.
pub(crate) fn device(number: u64) -> (u64, u64) {
    (nix::sys::stat::major(number), nix::sys::stat::minor(number))
}

/// Reports whether the error means that a system call is unavailable.
fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
}

#[allow(unsafe_code, reason = "nix has no pidfd_open")]
fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointer.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0_u32) };
    match RawFd::try_from(fd) {
        // SAFETY: the kernel just returned this file descriptor, so no other code owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[allow(unsafe_code, reason = "nix has no pidfd_send_signal")]
fn send(handle: &OwnedFd, signal: Signal) -> io::Result<()> {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo means the siginfo of kill(2); the file descriptor is open while `handle` is borrowed.
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

/// Replaces the command line that other processes see (`/proc/PID/cmdline`), if the new one fits into the old one. Does
/// nothing otherwise. A process must call this function while it has a single thread.
#[allow(unsafe_code, reason = "the kernel shows the memory where it put the arguments")]
pub(crate) fn set_command_line<'a>(arguments: impl Iterator<Item = &'a [u8]>) {
    let Some((start, end)) = fs::read("/proc/self/stat").ok().and_then(|stat| command_line_area(&stat)) else { return };
    let room = end - start;
    let program = std::env::args_os().next().unwrap_or_default();
    let mut line = Vec::with_capacity(room);
    line.extend_from_slice(program.as_encoded_bytes());
    line.push(0);
    for argument in arguments {
        line.extend_from_slice(argument);
        line.push(0);
    }
    if line.len() > room {
        return;
    }
    line.resize(room, 0);
    // SAFETY: the kernel reports these addresses as the ends of the argument strings, which belong to this process and
    // are writable. No other thread exists, and no code reads the arguments later.
    unsafe { std::ptr::copy_nonoverlapping(line.as_ptr(), std::ptr::with_exposed_provenance_mut::<u8>(start), room) };
}

/// Returns the addresses of the first byte of the command line and of the byte behind it: the fields 48 and 49 of
/// `/proc/PID/stat` (proc(5)).
fn command_line_area(stat: &[u8]) -> Option<(usize, usize)> {
    let end = memchr::memrchr(b')', stat)?;
    // Field 3 is the first one behind the name.
    let mut fields = std::str::from_utf8(stat.get(end + 2..)?).ok()?.split(' ').skip(45);
    let (first, behind) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    // The kernel shows 0 to a process without permission.
    (first > 0 && behind > first).then_some((first, behind))
}

/// Parses `/proc/PID/stat` (proc(5)). The name is in parentheses and may contain some, so fields are counted from the
/// last one.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let end = memchr::memrchr(b')', stat)?;
    let mut fields = std::str::from_utf8(stat.get(end + 2..)?).ok()?.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    // The start time is field 22, and the process group was field 5.
    let start_time = fields.nth(16)?.parse().ok()?;
    Some(Process { pid, start_time, parent, group, zombie: matches!(state, "Z" | "X") })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    /// Environment variable that `a_kernel_without_close_range_gets_its_descriptors_closed_too` sets for the process
    /// it starts.
    const INHERITED: &str = "AGENTD_KEEPER_TEST_INHERITED";

    #[test]
    fn a_kernel_without_close_range_gets_its_descriptors_closed_too() {
        let open = |fd: RawFd| fs::read_link(format!("/proc/self/fd/{fd}")).is_ok();
        if std::env::var_os(INHERITED).is_some() {
            assert!(open(17) && open(23));
            close_listed(Some(23)).unwrap();
            assert!(!open(17) && open(23) && open(1));
            close_listed(None).unwrap();
            assert!(!open(23) && open(1));
            return;
        }
        let name = "os::linux::tests::a_kernel_without_close_range_gets_its_descriptors_closed_too";
        let script = "exec 17</dev/null 23</dev/null; exec \"$0\" \"$@\"";
        let status = std::process::Command::new("/bin/bash")
            .args(["-c", script])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads=1"])
            .env(INHERITED, "1")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
    }

    #[test]
    fn a_path_with_a_link_in_it_or_at_its_end_is_not_pinned() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().canonicalize().unwrap().join(name);
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/f"), "content").unwrap();
        std::os::unix::fs::symlink(at("d"), at("to-d")).unwrap();
        std::os::unix::fs::symlink(at("d/f"), at("to-f")).unwrap();
        for pin in [pin, pin_by_steps] {
            let mut text = String::new();
            let file = reopen(&pin(&at("d/f")).unwrap()).unwrap();
            io::Read::read_to_string(&mut fs::File::from(file), &mut text).unwrap();
            assert_eq!(text, "content");
            for link in ["to-d/f", "to-d", "to-f"] {
                let error = pin(&at(link)).unwrap_err();
                assert!(matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR)), "{link}: {error}");
            }
            assert_eq!(pin(&at("d/g")).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn a_kernel_without_pidfds_gets_the_signal_by_number() {
        assert!(is_unknown(&io::Error::from_raw_os_error(libc::ENOSYS)));
        assert!(!is_unknown(&io::Error::from_raw_os_error(libc::EMFILE)));
        let mut child = std::process::Command::new("/bin/sleep").arg("600").spawn().unwrap();
        by_pid(i32::try_from(child.id()).unwrap(), Signal::SIGTERM).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_in_any_order() {
        let process = |pid, parent| Process { pid, parent, start_time: 0, group: 0, zombie: false };
        let all = vec![process(9, 4), process(4, 7), process(7, 2), process(5, 1), process(2, 1), process(3, 5)];
        let mut found: Vec<_> = closure(all, 2).iter().map(|process| process.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [4, 7, 9]);
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let stat = b"42 (a) R 1 (b) Z 7 40 40 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 10\n";
        let process = parse(42, stat).unwrap();
        assert_eq!(process, Process { pid: 42, start_time: 98765, parent: 7, group: 40, zombie: true });
    }

    #[test]
    fn a_signal_does_not_reach_a_process_with_a_reused_pid() {
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
