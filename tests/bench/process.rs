//! Processes in proc(5): their memory, and the end of all processes of a directory.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Returns the proportional set size in KiB: each shared page is divided by the number of processes that share it.
pub(crate) fn pss(pid: u32) -> Result<u64> {
    of_rollup(pid, "Pss:")
}

/// Returns the part of the proportional set size in KiB that is in no file: heaps, stacks and changed pages of files.
pub(crate) fn pss_anon(pid: u32) -> Result<u64> {
    of_rollup(pid, "Pss_Anon:")
}

fn of_rollup(pid: u32, key: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let rollup = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix(key));
    let number =
        line.and_then(|line| line.trim().strip_suffix(" kB")).with_context(|| format!("{path} has no {key}"))?;
    Ok(number.trim().parse()?)
}

/// Returns the resident set size in KiB.
pub(crate) fn rss(pid: u32) -> Result<u64> {
    of_rollup(pid, "Rss:")
}

/// Number of ticks of proc(5) in a second, the same for all architectures of Linux that agentd is built for.
const TICKS: u32 = 100;

/// Returns the processor time that a process has used, with that of its ended threads. It is a multiple of 10 ms.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let ticks: u64 = stat(pid)?.get(11..13).context("stat has no times")?.iter().sum();
    Ok(Duration::from_secs(1) * u32::try_from(ticks)? / TICKS)
}

/// Returns the parent of a process.
pub(crate) fn parent(pid: u32) -> Result<u32> {
    Ok(u32::try_from(*stat(pid)?.get(1).context("stat has no parent")?)?)
}

/// Returns the numbers of `stat` after the program's name. Words and negative numbers are 0.
fn stat(pid: u32) -> Result<Vec<u64>> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let (_, fields) = stat.rsplit_once(')').with_context(|| format!("{path} has no name"))?;
    Ok(fields.split_whitespace().map(|field| field.parse().unwrap_or_default()).collect())
}

/// Returns the sum of the PSS of these processes.
pub(crate) fn pss_of(pids: &[u32]) -> Result<u64> {
    pids.iter().map(|&pid| pss(pid)).sum()
}

/// Kills all processes whose arguments or working directory name `directory`, and repeats until no such process exists.
pub(crate) fn kill_all_of(directory: &Path) {
    loop {
        let found = of(directory);
        if found.is_empty() {
            return;
        }
        for pid in found {
            // The process may already have ended.
            let _ = kill(pid, Signal::SIGKILL);
        }
        std::thread::yield_now();
    }
}

fn of(directory: &Path) -> Vec<Pid> {
    let needle = directory.as_os_str().as_encoded_bytes();
    let own = Pid::this();
    let belongs = |pid: Pid| {
        let process = Path::new("/proc").join(pid.to_string());
        // The file is empty for a process that has ended and was not waited for.
        fs::read(process.join("cmdline")).is_ok_and(|args| args.windows(needle.len()).any(|window| window == needle))
            || fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory))
    };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).map(Pid::from_raw);
    pids.filter(|&pid| pid != own && belongs(pid)).collect()
}
