//! Memory of process trees, from `libproc.h`. It shows the processor time of the user's processes in units that depend
//! on the machine, so the time is left out.

use std::collections::BTreeMap;

use agentd_darwin::process;

use super::load::{OwnLoad, TreeLoad, trees};

/// Returns the load of each root and its descendants. There are no units.
pub fn loads(roots: &[u32], _unit_prefix: &str) -> BTreeMap<u32, TreeLoad> {
    let own = |found: process::Process| {
        let memory = process::resident(found.pid).unwrap_or(0);
        let parent = u32::try_from(found.parent).ok()?;
        Some((u32::try_from(found.pid).ok()?, OwnLoad { parent, memory, time: None }))
    };
    let all = process::all().unwrap_or_default().into_iter().filter_map(own).collect();
    trees(&all, roots)
}
