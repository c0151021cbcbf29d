//! Batches of records that are written in one piece. Some of the records are lines for the agent.

use agentd_api::Body;
use agentd_keeper::protocol::Mute;
use serde_json::value::RawValue;

/// Records that are written to the journal together, or not at all.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub entries: Vec<Entry>,
    pub mute: Option<Mute>,
}

#[derive(Debug, Clone)]
pub struct Entry {
    /// One record of a batch.
    pub body: Body,
    /// Whether to send the record's data to the agent once the record is in the journal.
    pub send: bool,
    /// Whether the line that is sent has secrets where the record has their placeholders.
    pub fill: bool,
    /// Whether the line that is sent has the contents of a prompt where the record has their placeholders.
    pub contents: bool,
}

impl Batch {
    pub fn of(body: Body) -> Self {
        Self::default().record(body)
    }

    #[must_use]
    pub fn record(mut self, body: Body) -> Self {
        self.entries.push(Entry { body, send: false, fill: false, contents: false });
        self
    }

    /// Adds a line for the agent, recorded as `agent.in`.
    #[must_use]
    pub fn send(mut self, line: Box<RawValue>) -> Self {
        self.entries.push(Entry { body: Body::AgentIn(line), send: true, fill: false, contents: false });
        self
    }

    /// Adds a line for the agent in which the keeper puts secrets in place of their placeholders.
    #[must_use]
    pub fn send_filled(mut self, line: Box<RawValue>) -> Self {
        self.entries.push(Entry { body: Body::AgentIn(line), send: true, fill: true, contents: false });
        self
    }

    /// Adds a prompt in which the keeper puts contents in place of their placeholders.
    #[must_use]
    pub fn send_with_contents(mut self, line: Box<RawValue>) -> Self {
        self.entries.push(Entry { body: Body::AgentIn(line), send: true, fill: false, contents: true });
        self
    }

    /// Adds the records of another batch.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.entries.extend(other.entries);
        Self { mute: self.mute.or(other.mute), ..self }
    }

    #[must_use]
    pub fn mute(mut self, mute: Mute) -> Self {
        self.mute = Some(mute);
        self
    }
}
