//! Who belongs together, on a system that has no subreaper: a process whose parent ended is a child of launchd there, and nothing says whose it
//! was. So those that belong are remembered, and every look at the system's processes adds those that belong to them.
//!
//! A process belongs if it did before, or its parent belongs, or it is in a process group of somebody who belongs, or it carries a mark. What is
//! not found: a process that left its group and whose parent ended between two looks, without a mark that can be read.

use std::collections::{BTreeMap, BTreeSet};

/// What is known of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// Microseconds since 1970; with the pid it names one process.
    pub start_time: u64,
    pub parent: i32,
    /// The process group; 0 where that is not known.
    pub group: i32,
    /// It has ended and waits for its parent to notice.
    pub zombie: bool,
}

/// The parent of those whose parent ended.
pub const LAUNCHD: i32 = 1;

/// Those that belong together.
#[derive(Debug, Clone, Default)]
pub struct Family {
    root: i32,
    /// By pid, with its start time.
    members: BTreeMap<i32, u64>,
    groups: BTreeSet<i32>,
}

impl Family {
    /// Everybody below `root`, who is not one of them.
    pub fn below(root: i32) -> Self {
        Self { root, ..Self::default() }
    }

    /// The same, with everybody in the process group `group`, for as long as there is anybody.
    #[must_use]
    pub fn with_group(mut self, group: i32) -> Self {
        self.groups.insert(group);
        self
    }

    /// Says who of all processes, as they are now, belongs; and remembers it. Whether one is marked is asked at most once, and only of those
    /// of whom nothing else says so.
    pub fn look(&mut self, all: &[Process], mut is_marked: impl FnMut(&Process) -> bool) -> Vec<Process> {
        // A group that nobody is in any more may be anybody's next. That of the root has strangers in it.
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

    /// The pids of those who were found last.
    pub fn members(&self) -> impl Iterator<Item = i32> {
        self.members.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPER: i32 = 10;
    const AGENT: i32 = 20;

    /// `(pid, parent, group)`; each started at the time of its pid.
    fn processes(list: &[(i32, i32, i32)]) -> Vec<Process> {
        let process = |&(pid, parent, group): &(i32, i32, i32)| Process {
            pid,
            start_time: u64::from(pid.unsigned_abs()),
            parent,
            group,
            zombie: false,
        };
        // launchd, a stranger of it, and the keeper in a group with the daemon that started it.
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
        // In a session of its own, now of launchd, and with a child since.
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
        // The group of that number was its predecessor's; nobody was left in it.
        family.look(&processes(&[]), unmarked);
        assert_eq!(pids(&family.look(&later, unmarked)), [0; 0]);
    }

    #[test]
    fn who_is_in_the_process_group_of_one_belongs_to_it() {
        let mut family = Family::below(KEEPER).with_group(AGENT);
        // The agent has ended, and so has whoever started 25; 26 left the group, its parent did not.
        let all = processes(&[(25, 1, AGENT), (26, 25, 26), (27, 1, 26), (40, 1, 40)]);
        assert_eq!(pids(&family.look(&all, unmarked)), [25, 26, 27]);
    }

    #[test]
    fn the_keepers_own_group_has_the_daemon_in_it() {
        // Between its fork and its setsid a child is in its parent's group.
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
