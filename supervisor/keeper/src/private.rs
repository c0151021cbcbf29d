//! Keeps what a process has in its memory from the other processes of its user: agents run as that user too.
//!
//! A process that is not dumpable (`PR_SET_DUMPABLE`) can be traced by root alone, its files in `/proc` that show
//! memory, environment and descriptors are root's, and it leaves no core. An exec ends that, so a program that is
//! started is as it would be anywhere; between fork and exec the child is as closed as its parent. The limit of core
//! files is 0 as well, and each agent is given back what its user has.

use std::io;
use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::os;

/// The soft limit of core files that programs started from here are to have. It is of the process, as the limit itself
/// is.
static CORE: OnceLock<u64> = OnceLock::new();

/// Closes this process's memory. `core` is the soft limit of core files that its user has, where this process was
/// started with another.
pub fn close(core: Option<u64>) -> io::Result<()> {
    os::refuse_tracing()?;
    // A filter of system calls may forbid limits. What is not dumpable leaves no core all the same.
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_CORE) {
        // A second call finds the limit of the first.
        CORE.get_or_init(|| core.unwrap_or(soft).min(hard));
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
    }
    Ok(())
}

/// The soft limit of core files that this process had before it was closed.
pub fn core_limit() -> Option<u64> {
    CORE.get().copied()
}

/// In a child before its exec: gives it that limit back. Async-signal-safe.
pub(crate) fn restore_core_limit(soft: Option<u64>) {
    if let Some(soft) = soft
        && let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE)
    {
        let _ = setrlimit(Resource::RLIMIT_CORE, soft.min(hard), hard);
    }
}
