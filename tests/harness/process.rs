//! Reads processes from /proc: finds the processes that a test left behind, and ends them.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::until;

pub(crate) fn pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("a pid fits"))
}

/// A process, identified by its pid and its start time: a pid is reused before a long test is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// Start time in clock ticks since boot, as in journals.
    pub(crate) start_time: u64,
}

impl Identity {
    /// Returns the process that has this pid now, if any.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses a process's `stat` line (proc(5)): fields 1 and 22. Field 2 is the name, in parentheses.
    pub(crate) fn parse(stat: &str) -> Option<Self> {
        let (before, after) = stat.rsplit_once(") ")?;
        let pid = before.split(' ').next()?.parse().ok()?;
        let start_time = after.split(' ').nth(19)?.parse().ok()?;
        Some(Self { pid, start_time })
    }
}

/// Returns the fields of a process's `stat` line from the third, its state, on (proc(5)). The name before them is in
/// parentheses and may contain any character.
fn fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

/// Returns the parent of a process.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    fields(pid)?.get(1)?.parse().ok()
}

/// Returns the processes that a process has started with its first thread, or adopted, and has not waited for.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns all living processes but this one.
pub(crate) fn all() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    fs::read_dir("/proc")
        .expect("/proc is mounted")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(move |&pid: &u32| pid != own && is_alive(pid))
}

/// Returns the name of a process's program, as the kernel has it: at most 15 bytes.
pub(crate) fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Returns the arguments of a process, each ended by a null byte. They are empty for a zombie and without a process.
fn arguments(pid: u32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// Reports whether the process runs. A zombie does not run.
pub(crate) fn is_alive(pid: u32) -> bool {
    fields(pid).is_some_and(|fields| !fields[0].starts_with(['Z', 'X']))
}

/// Returns the process's resident memory in KiB.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    line.trim().strip_suffix(" kB").and_then(|number| number.parse().ok()).expect("it is a number of kB")
}

/// Returns the largest resident memory of the process in KiB since [`forget_peak`].
pub(crate) fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it has a peak");
    line.trim().strip_suffix(" kB").and_then(|number| number.parse().ok()).expect("it is a number of kB")
}

/// Sets the peak of the process's memory to its present memory (proc(5), `clear_refs`).
pub(crate) fn forget_peak(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("the process is this user's");
}

pub(crate) fn kill9(target: u32) {
    kill(pid(target), Signal::SIGKILL).expect("the process is there to be killed");
}

/// Sends a signal to each process. A process may have ended in the meantime, or end with another.
pub(crate) fn signal_each(targets: &[u32], signal: Signal) {
    for &target in targets {
        let _ = kill(pid(target), signal);
    }
}

pub(crate) async fn gone(pids: &[u32]) {
    until(&format!("processes {pids:?} end"), || !pids.iter().any(|&pid| is_alive(pid))).await;
}

/// Time within which a started process executes its program, and a helper ends, on a loaded machine. A helper has 2 s
/// to read the facts of a repository.
const START_TIME: Duration = Duration::from_secs(5);
/// Variable of the processes with which agentd reads the facts of a repository, a moment after a turn.
const READER: &str = "GIT_NO_LAZY_FETCH=1";

/// Returns the processes of `directory`: their arguments, environment or working directory contain its path. Processes
/// that read the facts of a repository are left out: see [`readers`].
pub(crate) fn of(directory: &Path) -> Vec<u32> {
    let mut found = all_of(directory);
    // A reader may have ended in the meantime.
    found.retain(|pid| !is_reader(*pid) && is_alive(*pid));
    found
}

/// Returns the processes that read the facts of a repository in `directory`.
pub(crate) fn readers(directory: &Path) -> Vec<u32> {
    let mut found = all_of(directory);
    found.retain(|pid| is_reader(*pid));
    found
}

fn is_reader(pid: u32) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|entry| entry == READER.as_bytes())
}

fn all_of(directory: &Path) -> Vec<u32> {
    let needle = directory.as_os_str().as_encoded_bytes();
    let contains = |haystack: &[u8]| haystack.windows(needle.len()).any(|window| window == needle);
    all()
        .filter(|pid| {
            let process = Path::new("/proc").join(pid.to_string());
            ["cmdline", "environ"].iter().any(|file| fs::read(process.join(file)).is_ok_and(|bytes| contains(&bytes)))
                || fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory))
        })
        .collect()
}

/// Reports whether the process is a copy of its parent that has not executed its own program yet (fork(2)).
fn is_copy(pid: u32) -> bool {
    let own = arguments(pid);
    !own.is_empty() && parent(pid).is_some_and(|parent| own == arguments(parent))
}

/// Reports whether the process is a helper that the daemon starts for one command or one look at a file, and that ends
/// by itself.
fn is_helper(pid: u32) -> bool {
    let arguments = arguments(pid);
    let mut arguments = arguments.split(|&byte| byte == 0);
    arguments.next().is_some_and(|program| program.ends_with(b"/agentd-keeper"))
        && arguments.next().is_some_and(|role| role == b"run" || role == b"look")
}

/// Fails unless the processes of `directory` are exactly these. Describes the other processes. A process that a
/// program is just starting is judged once it has executed its own program: only then it shows whether it is a reader.
/// A helper of the daemon is left over only if it stays.
pub(crate) fn assert_only(expected: &[u32], directory: &Path, what: &str) {
    let mut found = of(directory);
    let begun = Instant::now();
    let is_left = |pid: u32| {
        while (is_copy(pid) || is_helper(pid)) && begun.elapsed() < START_TIME {
            std::thread::yield_now();
        }
        !is_reader(pid) && is_alive(pid)
    };
    found.retain(|pid| expected.contains(pid) || is_left(*pid));
    let too_many: Vec<String> = found.iter().filter(|pid| !expected.contains(pid)).map(|&pid| described(pid)).collect();
    let missing: Vec<&u32> = expected.iter().filter(|pid| !found.contains(pid)).collect();
    assert!(too_many.is_empty() && missing.is_empty(), "{what}: left over {too_many:#?}, missing {missing:?}");
}

/// Returns the processes of `directory` with this program name, and with `argument` as the first argument if given.
pub(crate) fn running(directory: &Path, program: &str, argument: Option<&str>) -> Vec<u32> {
    let is_meant = |pid: &u32| {
        let arguments = arguments(*pid);
        let mut arguments = arguments.split(|&byte| byte == 0).map(String::from_utf8_lossy);
        let named = arguments.next().is_some_and(|path| Path::new(path.as_ref()).file_name() == Some(program.as_ref()));
        named && argument.is_none_or(|argument| arguments.next().is_some_and(|first| first == argument))
    };
    of(directory).into_iter().filter(is_meant).collect()
}

/// Describes a process: its pid, parent, state and arguments, if still readable.
pub(crate) fn described(pid: u32) -> String {
    let arguments = String::from_utf8_lossy(&arguments(pid)).replace('\0', " ");
    let state = fields(pid).map(|fields| fields[..2].join(" "));
    format!("{pid} (state, parent {}) {arguments}", state.unwrap_or_default())
}

/// Kills the processes of `directory` repeatedly until no process is left: one may start another in the meantime.
pub(crate) fn kill_all_of(directory: &Path) {
    for _ in 0..1000 {
        let found = all_of(directory);
        if found.is_empty() {
            return;
        }
        for target in found {
            kill(pid(target), Signal::SIGKILL).ok();
        }
        std::thread::yield_now();
    }
    eprintln!("processes of {} could not be killed: {:?}", directory.display(), of(directory));
}

/// Reads the scripted agent's pid file: `(role, pid)` in the order of their start.
pub(crate) fn pid_file(path: &Path) -> Vec<(String, u32)> {
    fs::read_to_string(path)
        .unwrap_or_default()
        .lines()
        .map(|line| {
            let (role, pid) = line.split_once(' ').expect("a role and a pid");
            (role.to_owned(), pid.parse().expect("a pid"))
        })
        .collect()
}
