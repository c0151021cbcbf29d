//! Memory and processor time of sessions, from cgroups(7) or proc(5).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{SysconfVar, sysconf};

use super::linux::pids;
use super::load::{OwnLoad, TreeLoad, trees};

/// Returns the load of each root and its descendants. A root in a cgroup below a unit with this prefix has the load of
/// that cgroup.
pub fn loads(roots: &[u32], unit_prefix: &str) -> BTreeMap<u32, TreeLoad> {
    let mut loads: BTreeMap<u32, TreeLoad> =
        roots.iter().filter_map(|&root| Some((root, of_cgroup(&cgroup(root, unit_prefix)?)?))).collect();
    let others: Vec<u32> = roots.iter().copied().filter(|root| !loads.contains_key(root)).collect();
    if !others.is_empty() {
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|ticks| u32::try_from(ticks).ok());
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|page| u64::try_from(page).ok());
        let (ticks, page) = (ticks.filter(|ticks| *ticks > 0).unwrap_or(100), page.unwrap_or(4096));
        let all = pids().filter_map(|pid| Some((pid, own(pid, ticks, page)?))).collect();
        loads.extend(trees(&all, &others));
    }
    loads
}

/// Reads fields 4, 14 to 17 and 24 of proc(5) `stat`. The time of children that were waited for is included.
fn own(pid: u32, ticks: u32, page: u64) -> Option<OwnLoad> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let time = (11..=14).map(number).sum::<Option<u64>>()?;
    let millis = time.saturating_mul(1000) / u64::from(ticks);
    Some(OwnLoad {
        parent: u32::try_from(number(1)?).ok()?,
        memory: number(21)?.saturating_mul(page),
        time: Some(Duration::from_millis(millis)),
    })
}

/// Returns the directory of a process's cgroup (version 2), if a part of its path begins with the prefix.
fn cgroup(pid: u32, unit_prefix: &str) -> Option<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut parts = path.split('/').scan(PathBuf::from("/sys/fs/cgroup"), |directory, part| {
        directory.push(part);
        Some((part.starts_with(unit_prefix), directory.clone()))
    });
    parts.find_map(|(is_unit, directory)| is_unit.then_some(directory))
}

fn of_cgroup(directory: &Path) -> Option<TreeLoad> {
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
    let time = read("cpu.stat")?.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()?;
    let processes = read("pids.current")?.trim().parse().ok()?;
    let memory = read("memory.current")?.trim().parse().ok()?;
    Some(TreeLoad { memory, time: Some(Duration::from_micros(time)), processes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_a_missing_process_has_no_load() {
        let own = std::process::id();
        let loads = loads(&[own, u32::MAX], "agentd-no-such-unit-");
        assert_eq!(loads.len(), 1);
        assert!(loads[&own].memory > 100_000 && loads[&own].processes >= 1 && loads[&own].time.is_some());
    }

    #[test]
    fn a_cgroup_has_its_memory_time_and_number_of_tasks() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [("memory.current", "4096\n"), ("cpu.stat", "usage_usec 1500\nuser_usec 1\n")] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        assert_eq!(of_cgroup(directory.path()), None, "a controller is missing");
        std::fs::write(directory.path().join("pids.current"), "3\n").unwrap();
        let load = TreeLoad { memory: 4096, time: Some(Duration::from_micros(1500)), processes: 3 };
        assert_eq!(of_cgroup(directory.path()), Some(load));
    }
}
