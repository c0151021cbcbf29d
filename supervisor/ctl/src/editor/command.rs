//! Requests of the editor that its server hands to a session.

use serde_json::Value;
use serde_json::value::RawValue;

use super::wire::Id;

/// Request of the editor.
#[derive(Debug)]
pub(super) enum Command {
    Prompt {
        id: Id,
        blocks: Vec<Value>,
    },
    Cancel,
    /// The editor withdraws its request with this id.
    Withdrawn(String),
    /// Answer to a request of this program.
    Answered {
        id: u64,
        outcome: Result<Value, Value>,
    },
    /// Changes a mode or an option.
    Change {
        id: Id,
        method: String,
        params: Box<RawValue>,
    },
    /// Leaves the session. Without an id, the session is opened again or deleted.
    Close(Option<Id>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    New,
    Load,
    Resume,
}
