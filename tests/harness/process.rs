//! Processes as /proc shows them: to find what a test left behind, and to end it.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::until;

pub(crate) fn pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("a pid fits"))
}

/// A process by its pid and when it was started: a pid alone is given again before a long test is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// In clock ticks since boot, as journals have it.
    pub(crate) start_time: u64,
}

impl Identity {
    /// Of the process that has the pid now, if there is one.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Of the process whose `stat` line this is (proc(5)): fields 1 and 22. Field 2 is its name, in parentheses.
    pub(crate) fn parse(stat: &str) -> Option<Self> {
        let (before, after) = stat.rsplit_once(") ")?;
        let pid = before.split(' ').next()?.parse().ok()?;
        let start_time = after.split(' ').nth(19)?.parse().ok()?;
        Some(Self { pid, start_time })
    }
}

/// Whether the process runs; one that ended and was not waited for does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the name, which is in parentheses and may hold anything (proc(5)).
    !matches!(stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()), None | Some('Z' | 'X'))
}

/// KiB of memory that the process has.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    line.trim().strip_suffix(" kB").and_then(|number| number.parse().ok()).expect("it is a number of kB")
}

pub(crate) fn kill9(target: u32) {
    kill(pid(target), Signal::SIGKILL).expect("the process is there to be killed");
}

pub(crate) async fn gone(pids: &[u32]) {
    until(&format!("processes {pids:?} end"), || !pids.iter().any(|&pid| is_alive(pid))).await;
}

/// The processes that belong to `directory`: it stands in their arguments or environment, or is where they are.
pub(crate) fn of(directory: &Path) -> Vec<u32> {
    let needle = directory.as_os_str().as_encoded_bytes();
    let contains = |haystack: &[u8]| haystack.windows(needle.len()).any(|window| window == needle);
    let own = std::process::id();
    fs::read_dir("/proc")
        .expect("/proc is mounted")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid: &u32| pid != own && is_alive(pid))
        .filter(|pid| {
            let process = Path::new("/proc").join(pid.to_string());
            ["cmdline", "environ"].iter().any(|file| fs::read(process.join(file)).is_ok_and(|bytes| contains(&bytes)))
                || fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory))
        })
        .collect()
}

/// Fails unless the processes of `directory` are these; says what the others are.
pub(crate) fn assert_only(expected: &[u32], directory: &Path, what: &str) {
    let found = of(directory);
    let too_many: Vec<String> = found.iter().filter(|pid| !expected.contains(pid)).map(|&pid| described(pid)).collect();
    let missing: Vec<&u32> = expected.iter().filter(|pid| !found.contains(pid)).collect();
    assert!(too_many.is_empty() && missing.is_empty(), "{what}: left over {too_many:#?}, missing {missing:?}");
}

/// The processes of `directory` whose program has this file name and whose first argument is `argument`, where one is given.
pub(crate) fn running(directory: &Path, program: &str, argument: Option<&str>) -> Vec<u32> {
    let is_meant = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut arguments = arguments.split(|&byte| byte == 0).map(String::from_utf8_lossy);
        let named = arguments.next().is_some_and(|path| Path::new(path.as_ref()).file_name() == Some(program.as_ref()));
        named && argument.is_none_or(|argument| arguments.next().is_some_and(|first| first == argument))
    };
    of(directory).into_iter().filter(is_meant).collect()
}

/// A process for a reader: its pid, parent, state and arguments, as far as they are there still.
fn described(pid: u32) -> String {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let arguments = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
    let stat = String::from_utf8_lossy(&read("stat")).into_owned();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').take(2).collect::<Vec<_>>().join(" "));
    format!("{pid} (state, parent {}) {arguments}", state.unwrap_or_default())
}

/// Kills the processes of `directory` until there are none: one may start another while it is being killed.
pub(crate) fn kill_all_of(directory: &Path) {
    for _ in 0..1000 {
        let found = of(directory);
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

/// The scripted agent's pid file: `(role, pid)` in the order in which they were started.
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
