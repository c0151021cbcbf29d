//! Describes the end of an agent: as a message for people, and as a condition reason for programs. Pure.

use agentd_api::event::{AgentExited, Exceeded};
use agentd_api::reason;

/// Returns a message that describes the end of an agent. If a limit was exceeded, the message also states the
/// remedy.
pub fn describe_exit(exited: &AgentExited) -> String {
    if let Some(reason) = &exited.reason {
        return match exited.exceeded {
            Some(Exceeded::Memory) => format!(
                "the session ran out of memory: {reason}; resume it with less to do at once, or allow sessions more \
                 (`memory` of [limits] in agentd.toml, `--memory` of a new one)"
            ),
            Some(Exceeded::Tasks) => format!(
                "the session had too many processes: {reason}; resume it with less to do at once, or allow sessions \
                 more (`tasks` of [limits] in agentd.toml, `--tasks` of a new one)"
            ),
            Some(Exceeded::Unknown) | None => format!("the agent was ended: {reason}"),
        };
    }
    match (&exited.exec_error, exited.status, exited.signal) {
        (Some(error), _, _) => format!("the agent could not be started: {error}"),
        (None, Some(status), _) => format!("the agent exited with status {status}"),
        (None, None, Some(signal)) => format!("the agent was ended by signal {signal}"),
        (None, None, None) => {
            "the agent's keeper ended without reporting an exit status, and the agent with it".to_owned()
        }
    }
}

/// Returns the reason of the conditions that become false with the agent's end.
pub fn exit_reason(exceeded: Option<Exceeded>) -> &'static str {
    match exceeded {
        Some(Exceeded::Memory) => reason::OUT_OF_MEMORY,
        Some(Exceeded::Tasks) => reason::TOO_MANY_TASKS,
        Some(Exceeded::Unknown) | None => reason::AGENT_EXITED,
    }
}
