//! Protects the memory of this process from other processes of its user. Agents run as the same user.
//!
//! Only root can trace a process that is not dumpable (`PR_SET_DUMPABLE`). Its files in `/proc` that show memory,
//! environment and file descriptors belong to root, and it leaves no core file. An exec ends this state, so started
//! programs are not affected. Between fork and exec, the child is as protected as its parent. The keeper also sets
//! its core file limit to 0, and restores the user's limit for each agent.

use std::io;
use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::os;

/// Soft limit of core files for programs started by this process. It is process-wide, like the limit itself.
static CORE: OnceLock<u64> = OnceLock::new();

/// Protects this process's memory. `core` is the user's soft limit of core files, if this process was started with a
/// different one.
pub fn protect_memory(core: Option<u64>) -> io::Result<()> {
    os::refuse_tracing()?;
    // A system call filter may forbid setrlimit(2). A process that is not dumpable leaves no core file in any case.
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_CORE) {
        // A second call would find the limit that the first call set.
        CORE.get_or_init(|| core.unwrap_or(soft).min(hard));
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
    }
    Ok(())
}

/// Returns the soft limit of core files from before the protection.
pub fn core_limit() -> Option<u64> {
    CORE.get().copied()
}

/// Restores the core file limit in a child before its exec. Async-signal-safe.
pub(crate) fn restore_core_limit(soft: Option<u64>) {
    if let Some(soft) = soft
        && let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE)
    {
        let _ = setrlimit(Resource::RLIMIT_CORE, soft.min(hard), hard);
    }
}
