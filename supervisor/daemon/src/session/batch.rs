//! Records to be written in one piece, some of them lines for the agent.

use agentd_api::Body;
use agentd_keeper::protocol::Mute;
use serde_json::value::RawValue;

/// Records that go into the journal together, or not at all.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Entry>,
    pub(crate) mute: Option<Mute>,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) body: Body,
    /// Send the data to the agent, once it is in the journal.
    pub(crate) send: bool,
}

impl Batch {
    pub(crate) fn of(body: Body) -> Self {
        Self::default().record(body)
    }

    #[must_use]
    pub(crate) fn record(mut self, body: Body) -> Self {
        self.entries.push(Entry { body, send: false });
        self
    }

    /// A line for the agent, recorded as `agent.in`.
    #[must_use]
    pub(crate) fn send(mut self, line: Box<RawValue>) -> Self {
        self.entries.push(Entry { body: Body::AgentIn(line), send: true });
        self
    }

    #[must_use]
    pub(crate) fn mute(mut self, mute: Mute) -> Self {
        self.mute = Some(mute);
        self
    }
}
