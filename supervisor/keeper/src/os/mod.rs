//! What differs between operating systems, and nothing else: the only place of this crate that names one.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
pub(crate) use linux::{
    ADOPTS, SOCKET_PATH_MAX, become_expendable, become_subreaper, close_inherited, descendants, device,
    die_with_parent, expendable, peer_uid, pin, proportional, reopen, resident, signal, start_time, tree, widen,
};
#[cfg(target_os = "macos")]
pub(crate) use macos::{
    ADOPTS, SOCKET_PATH_MAX, become_expendable, become_subreaper, close_inherited, descendants, device,
    die_with_parent, expendable, peer_uid, pin, proportional, reopen, resident, signal, start_time, tree, widen,
};

/// One process, named so that its successor under the same pid is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// From an unspecified epoch; see [`agentd_api::event::KeeperStarted`].
    pub(crate) start_time: u64,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    /// It has ended and waits for its parent to notice.
    pub(crate) zombie: bool,
}

/// Those of `all` that descend from `root`, or that `also` says belong to it.
fn closure(all: Vec<Process>, root: i32, also: impl Fn(&Process) -> bool) -> Vec<Process> {
    let (mut inside, mut outside) = (Vec::new(), all);
    let mut parents = std::collections::BTreeSet::from([root]);
    loop {
        let (found, rest): (Vec<_>, Vec<_>) =
            outside.into_iter().partition(|process| parents.contains(&process.parent) || also(process));
        if found.is_empty() {
            return inside;
        }
        parents = found.iter().map(|process| process.pid).collect();
        inside.extend(found.into_iter().filter(|process| process.pid != root));
        outside = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_at_any_depth_and_in_any_order() {
        let process = |pid, parent| Process { pid, parent, start_time: 0, group: 0, zombie: false };
        let all = vec![process(9, 4), process(4, 7), process(7, 2), process(5, 1), process(2, 1), process(3, 5)];
        let mut found: Vec<_> = closure(all, 2, |_| false).iter().map(|process| process.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [4, 7, 9]);
    }

    #[test]
    fn a_tree_has_its_members_and_their_memory() {
        let mut shell = std::process::Command::new("/bin/sh").args(["-c", "sleep 600 & wait"]).spawn().unwrap();
        let (own, pid) = (i32::try_from(std::process::id()).unwrap(), i32::try_from(shell.id()).unwrap());
        let below = loop {
            let below = tree(pid, &[]).unwrap();
            if !below.is_empty() {
                break below;
            }
        };
        assert_eq!(below.len(), 1);
        let all = tree(own, &[]).unwrap();
        assert!(all.contains(&pid) && all.contains(&below[0]) && !all.contains(&own), "{all:?}");
        assert!(resident(own) > 100_000 && (1..=resident(own)).contains(&proportional(own)));
        for process in descendants(pid, &[]).unwrap() {
            assert!(signal(&process, nix::sys::signal::Signal::SIGKILL).unwrap());
        }
        shell.wait().unwrap();
        assert_eq!((resident(pid), tree(pid, &[]).unwrap_or_default()), (0, Vec::new()));
    }

    #[test]
    fn this_process_has_a_start_time_that_stays() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let first = start_time(pid).unwrap();
        assert_eq!(start_time(pid).unwrap(), first);
        assert!(first > 0);
    }
}
