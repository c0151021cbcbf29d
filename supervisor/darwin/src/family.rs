//! Tracks a tree of processes on a system without subreapers.
//!
//! On macOS, launchd becomes the parent of a process whose parent ended, and nothing tells where the process
//! came from. So a [`Family`] remembers its members, and each look at the process table adds processes that
//! belong to a member.
//!
//! A process belongs to the family in any of these cases:
//!
//! - The process was a member at the last look.
//! - The parent is a member.
//! - The process group contains a member.
//! - The process carries a mark.
//!
//! One case is missed: a process that left its group and whose parent ended between two looks, without a
//! readable mark.

use std::collections::{BTreeMap, BTreeSet};

/// Facts about a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// Start time in microseconds since 1970. Together with the pid it identifies one process.
    pub start_time: u64,
    /// Process id of the parent.
    pub parent: i32,
    /// Process group id. 0 if unknown.
    pub group: i32,
    /// Whether the process has ended and its parent has not waited for it.
    pub zombie: bool,
}

/// Process id of launchd, the parent of processes whose parent ended.
pub const LAUNCHD: i32 = 1;

/// A set of processes that belong together.
#[derive(Debug, Clone, Default)]
pub struct Family {
    root: i32,
    /// Start time of each member by pid.
    members: BTreeMap<i32, u64>,
    groups: BTreeSet<i32>,
}

impl Family {
    /// Makes the family of all descendants of `root`. `root` itself is not a member.
    pub fn below(root: i32) -> Self {
        Self { root, ..Self::default() }
    }

    /// Adds all processes in the process group `group`, as long as the group exists.
    #[must_use]
    pub fn with_group(mut self, group: i32) -> Self {
        self.groups.insert(group);
        self
    }

    /// Finds the members among all current processes, and remembers them.
    ///
    /// `is_marked` is called at most once for each process, and only if nothing else shows that the process
    /// belongs.
    pub fn look(&mut self, all: &[Process], mut is_marked: impl FnMut(&Process) -> bool) -> Vec<Process> {
        // The kernel may reuse the number of an empty group. The root's own group contains processes outside of
        // the family.
        let own = all.iter().find(|process| process.pid == self.root).map(|process| process.group);
        self.groups.retain(|group| Some(*group) != own && all.iter().any(|process| process.group == *group));
        let mut marked = BTreeMap::new();
        let mut found: BTreeMap<i32, Process> = BTreeMap::new();
        loop {
            let before = found.len();
            for process in all.iter().filter(|process| process.pid != self.root && process.pid > LAUNCHD) {
                let belongs = found.contains_key(&process.pid)
                    || self.members.get(&process.pid) == Some(&process.start_time)
                    || process.parent == self.root
                    || found.contains_key(&process.parent)
                    || self.groups.contains(&process.group)
                    || *marked.entry(process.pid).or_insert_with(|| is_marked(process));
                if belongs
                    && found.insert(process.pid, *process).is_none()
                    && process.group > 0
                    && Some(process.group) != own
                {
                    self.groups.insert(process.group);
                }
            }
            if found.len() == before {
                break;
            }
        }
        self.members = found.values().map(|process| (process.pid, process.start_time)).collect();
        found.into_values().collect()
    }

    /// Returns the pids of the members at the last look.
    pub fn members(&self) -> impl Iterator<Item = i32> {
        self.members.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPER: i32 = 10;
    const AGENT: i32 = 20;

    /// Makes processes from `(pid, parent, group)`. Each starts at the time of its pid.
    fn processes(list: &[(i32, i32, i32)]) -> Vec<Process> {
        let process = |&(pid, parent, group): &(i32, i32, i32)| Process {
            pid,
            start_time: u64::from(pid.unsigned_abs()),
            parent,
            group,
            zombie: false,
        };
        // launchd, an unrelated child of launchd, and the keeper in a group with the daemon that started it.
        [(1, 0, 1), (5, 1, 5), (9, 1, 9), (KEEPER, 9, 9)].iter().chain(list).map(process).collect()
    }

    fn pids(found: &[Process]) -> Vec<i32> {
        found.iter().map(|process| process.pid).collect()
    }

    fn unmarked(_: &Process) -> bool {
        false
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_in_any_order() {
        let all = processes(&[(23, 22, 22), (22, AGENT, 22), (AGENT, KEEPER, AGENT), (40, 5, 40)]);
        assert_eq!(pids(&Family::below(KEEPER).look(&all, unmarked)), [20, 22, 23]);
    }

    #[test]
    fn who_was_seen_once_stays_though_its_parent_ended() {
        let mut family = Family::below(KEEPER);
        family.look(&processes(&[(AGENT, KEEPER, AGENT), (22, AGENT, 22)]), unmarked);
        // The process is in its own session, has launchd as its parent, and has a new child.
        let later = processes(&[(22, 1, 22), (30, 22, 30)]);
        assert_eq!(pids(&family.look(&later, unmarked)), [22, 30]);
        assert_eq!(pids(&Family::below(KEEPER).look(&later, unmarked)), [0; 0], "nothing else says so");
    }

    #[test]
    fn another_process_under_the_same_pid_is_a_stranger() {
        let mut family = Family::below(KEEPER);
        family.look(&processes(&[(AGENT, KEEPER, AGENT), (22, AGENT, 22)]), unmarked);
        let mut later = processes(&[(22, 1, 22)]);
        later.last_mut().unwrap().start_time += 1;
        // The number was the group of the former process, and the group is empty.
        family.look(&processes(&[]), unmarked);
        assert_eq!(pids(&family.look(&later, unmarked)), [0; 0]);
    }

    #[test]
    fn who_is_in_the_process_group_of_one_belongs_to_it() {
        let mut family = Family::below(KEEPER).with_group(AGENT);
        // The agent has ended, and so has the parent of 25. Process 26 left the group, its parent did not.
        let all = processes(&[(25, 1, AGENT), (26, 25, 26), (27, 1, 26), (40, 1, 40)]);
        assert_eq!(pids(&family.look(&all, unmarked)), [25, 26, 27]);
    }

    #[test]
    fn the_keepers_own_group_has_the_daemon_in_it() {
        // Between fork and setsid a child is in its parent's group.
        let all = processes(&[(AGENT, KEEPER, 9)]);
        let mut family = Family::below(KEEPER);
        assert_eq!(pids(&family.look(&all, unmarked)), [AGENT]);
        assert_eq!(pids(&family.look(&all, unmarked)), [AGENT]);
    }

    #[test]
    fn a_mark_makes_one_of_them_and_is_asked_for_once() {
        let all = processes(&[(AGENT, KEEPER, AGENT), (50, 1, 50), (51, 50, 51), (60, 5, 60)]);
        let mut asked = Vec::new();
        let found = Family::below(KEEPER).look(&all, |process| {
            asked.push(process.pid);
            process.pid == 50
        });
        assert_eq!(pids(&found), [AGENT, 50, 51]);
        assert_eq!(asked, [5, 9, 50, 60], "not of those who are known anyway");
    }
}
