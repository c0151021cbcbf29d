//! Texts for people about the end of an agent.

use agentd_api::event::AgentExited;

use crate::cgroup::Memory;

/// Returns the reason of an end after the kernel killed a process in the agent's cgroup.
pub(crate) fn for_want_of_memory(memory: &Memory) -> String {
    match memory.limit() {
        Some(limit) => {
            format!("the kernel killed one of its processes: out of memory, {} KiB are allowed", limit >> 10)
        }
        None => {
            "the kernel killed one of its processes: the machine or the sessions together ran out of memory".to_owned()
        }
    }
}

/// Counts processes that the kernel killed.
pub(crate) fn killed(processes: u64) -> String {
    match processes {
        1 => "the kernel killed a process".to_owned(),
        n => format!("the kernel killed {n} processes"),
    }
}

/// Describes the agent's end for a person.
pub(crate) fn ended(exited: &AgentExited) -> String {
    let how = match (exited.status, exited.signal) {
        (Some(status), _) => format!("with status {status}"),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => "with an unknown status".to_owned(),
    };
    let asked = if exited.requested { " after a requested stop" } else { "" };
    let reason = exited.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("the agent ended {how}{asked}{reason}; {} other processes of its tree were killed", exited.killed)
}
