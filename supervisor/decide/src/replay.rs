//! The history that an agent replays when it loads a conversation. The journal has it already.

use std::time::Duration;

use agentd_api::event::OpenedBy;
use agentd_keeper::protocol::Mute;

use crate::acp;
use crate::state::{Pending, Run, State};

/// Makes the rule for the history before the answer to the request `id`, and shortly after it.
pub(crate) fn rule(id: u64, quiet: Duration) -> Mute {
    let updates = acp::HISTORY.iter().map(|&kind| kind.to_owned()).collect();
    Mute { response_to: id, updates, quiet_ms: u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX) }
}

/// Returns the rule for the history that the running agent replays now, for a keeper that continues with the agent.
pub fn running(state: &State, quiet: Duration) -> Option<Mute> {
    let Run::Running(running) = &state.run else { return None };
    let (id, _) = running.pending.iter().find(|(_, pending)| **pending == Pending::Open(OpenedBy::Load))?;
    // The history of an adopted conversation is recorded.
    (!state.is_adopting()).then(|| rule(*id, quiet))
}
