//! Memory and processor time of process trees, by rules that are equal on all systems.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Memory and processor time of a process with all its descendants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeLoad {
    /// Memory in bytes.
    pub memory: u64,
    /// Processor time, if the system shows it.
    pub time: Option<Duration>,
    /// Number of processes.
    pub processes: u32,
}

/// A process with its own memory and time.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnLoad {
    pub(super) parent: u32,
    pub(super) memory: u64,
    pub(super) time: Option<Duration>,
}

/// Sums the loads of each root and its descendants. A root that does not exist is left out.
pub(super) fn trees(all: &BTreeMap<u32, OwnLoad>, roots: &[u32]) -> BTreeMap<u32, TreeLoad> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (pid, own) in all {
        children.entry(own.parent).or_default().push(*pid);
    }
    let sum = |root: u32| {
        let (mut load, mut seen, mut left) = (TreeLoad::default(), BTreeSet::new(), vec![root]);
        while let Some(pid) = left.pop() {
            let Some(own) = all.get(&pid).filter(|_| seen.insert(pid)) else { continue };
            load.memory += own.memory;
            load.time = own.time.map(|time| load.time.unwrap_or_default() + time).or(load.time);
            load.processes += 1;
            left.extend(children.get(&pid).into_iter().flatten());
        }
        load
    };
    roots.iter().filter(|root| all.contains_key(root)).map(|&root| (root, sum(root))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_summed_with_all_descendants_and_without_others() {
        let own = |parent, memory| OwnLoad { parent, memory, time: Some(Duration::from_secs(memory)) };
        let all = BTreeMap::from([(2, own(1, 1)), (3, own(2, 2)), (4, own(3, 4)), (5, own(1, 8)), (6, own(6, 16))]);
        let loads = trees(&all, &[2, 5, 6, 9]);
        let load = |memory, processes| TreeLoad { memory, time: Some(Duration::from_secs(memory)), processes };
        assert_eq!(loads, BTreeMap::from([(2, load(7, 3)), (5, load(8, 1)), (6, load(16, 1))]));
    }
}
