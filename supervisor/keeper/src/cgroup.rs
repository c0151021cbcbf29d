//! Memory limit and out-of-memory kills of the keeper's own cgroup, for both cgroup versions.
//!
//! The kernel's kill counter has no timestamps. The keeper reads it on each wake-up, at most once a second. An end
//! caused by a kill can then be distinguished from an earlier kill that the agent survived. A keeper that shares its
//! cgroup with unrelated processes does not use this module.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Minimum interval between two reads of the counter.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum time between a kill in the tree and an end of the agent that it caused.
const CONSEQUENCE: Duration = Duration::from_secs(10);
/// A limit above this value means unlimited: cgroup v1 uses a large number for that.
const NONE: u64 = 1 << 62;

#[derive(Debug)]
pub(crate) struct Memory {
    files: Files,
    seen: u64,
    /// Time at which the counter was last found higher.
    rose: Option<Instant>,
    next: Instant,
    /// Whether a read was skipped because the interval was not over.
    asked: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    kills: PathBuf,
    limit: PathBuf,
}

impl Memory {
    /// Opens the counters of this process's cgroup. Returns `None` if the kernel does not count here.
    pub(crate) fn of_own_cgroup(now: Instant) -> Option<Self> {
        let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let files = files(&cgroups, &mounts).into_iter().find(|files| files.kills.exists())?;
        let seen = count(&files.kills)?;
        Some(Self { files, seen, rose: None, next: now, asked: false })
    }

    /// Returns when [`Memory::look`] is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.asked.then_some(self.next)
    }

    /// Returns the number of new kills, if there are any and the interval is over.
    pub(crate) fn look(&mut self, now: Instant) -> Option<u64> {
        self.asked = now < self.next;
        if self.asked { None } else { self.look_at_once(now) }
    }

    /// Reports whether an end at this moment may be caused by a kill.
    pub(crate) fn ran_out(&mut self, now: Instant) -> bool {
        self.look_at_once(now);
        self.rose.is_some_and(|rose| now.duration_since(rose) < CONSEQUENCE)
    }

    /// Returns the memory limit in bytes, or `None` without a limit.
    pub(crate) fn limit(&self) -> Option<u64> {
        let limit = fs::read_to_string(&self.files.limit).ok()?.trim().parse().ok()?;
        (limit < NONE).then_some(limit)
    }

    fn look_at_once(&mut self, now: Instant) -> Option<u64> {
        self.next = now + EVERY;
        let new = count(&self.files.kills)?.checked_sub(self.seen).filter(|new| *new > 0)?;
        self.seen += new;
        self.rose = Some(now);
        Some(new)
    }
}

/// Finds candidate files from `/proc/self/cgroup` and `/proc/self/mountinfo`. The path of a cgroup is relative to the
/// root of its mount.
fn files(cgroups: &str, mounts: &str) -> Vec<Files> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (before, after): (Vec<&str>, Vec<&str>) = (before.split(' ').collect(), after.split(' ').collect());
        let (Some(root), Some(at), Some(kind)) = (before.get(3), before.get(4), after.first()) else { continue };
        let names = match (*kind, after.get(2)) {
            ("cgroup", Some(options)) if options.split(',').any(|option| option == "memory") => {
                ["memory.oom_control", "memory.limit_in_bytes"]
            }
            ("cgroup2", _) => ["memory.events", "memory.max"],
            _ => continue,
        };
        let of = |line: &&str| {
            let controllers = line.split(':').nth(1).unwrap_or_default();
            if *kind == "cgroup2" {
                controllers.is_empty()
            } else {
                controllers.split(',').any(|name| name == "memory")
            }
        };
        let path = cgroups.lines().find(of).and_then(|line| line.splitn(3, ':').nth(2));
        let Some(below) = path.and_then(|path| Path::new(path).strip_prefix(root).ok()) else { continue };
        let group = Path::new(at).join(below);
        let [kills, limit] = names.map(|name| group.join(name));
        found.push(Files { kills, limit });
    }
    found
}

/// Reads the kill counter. The file has a line `oom_kill N` in both versions.
fn count(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
25 1 0:22 / / rw - overlay lab rw
30 25 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory
31 25 0:27 / /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids
32 25 0:28 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw
";

    #[test]
    fn the_files_are_found_in_each_layout() {
        let hybrid = files("4:memory:/a/b.service\n8:pids:/a\n0::/u/b.service\n", HYBRID);
        assert_eq!(hybrid[0].kills, Path::new("/sys/fs/cgroup/memory/a/b.service/memory.oom_control"));
        assert_eq!(hybrid[0].limit, Path::new("/sys/fs/cgroup/memory/a/b.service/memory.limit_in_bytes"));
        assert_eq!(hybrid[1].kills, Path::new("/sys/fs/cgroup/unified/u/b.service/memory.events"));
        let unified = files("0::/u.slice/b:c.service\n", "30 25 0:26 /u.slice /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
        assert_eq!(unified.len(), 1);
        assert_eq!(unified[0].limit, Path::new("/sys/fs/cgroup/b:c.service/memory.max"));
        assert_eq!(files("0::/elsewhere\n", "30 25 0:26 /u.slice /sys/fs/cgroup rw - cgroup2 cgroup rw\n"), []);
    }

    #[test]
    fn a_kill_is_reported_once_and_explains_an_end_for_ten_seconds() {
        let directory = tempfile::tempdir().unwrap();
        let [kills, limit] = ["events", "max"].map(|name| directory.path().join(name));
        let write = |n: u64| fs::write(&kills, format!("low 0\noom 9\noom_kill {n}\noom_group_kill 7\n")).unwrap();
        let begun = Instant::now();
        write(3);
        fs::write(&limit, "67108864\n").unwrap();
        let files = Files { kills: kills.clone(), limit: limit.clone() };
        let mut memory = Memory { seen: count(&kills).unwrap(), files, rose: None, next: begun, asked: false };
        assert_eq!((memory.limit(), memory.look(begun), memory.due()), (Some(64 << 20), None, None));
        write(5);
        assert_eq!(memory.look(begun), None, "too soon");
        let then = memory.due().unwrap();
        assert_eq!((memory.look(then), memory.due()), (Some(2), None));
        assert_eq!(memory.look(then + EVERY), None);
        assert!(memory.ran_out(then + CONSEQUENCE / 2) && !memory.ran_out(then + CONSEQUENCE));
        write(6);
        assert!(memory.ran_out(then + CONSEQUENCE), "a kill that was not read yet counts");
        for none in ["max\n", "9223372036854771712\n"] {
            fs::write(&limit, none).unwrap();
            assert_eq!(memory.limit(), None);
        }
    }
}
