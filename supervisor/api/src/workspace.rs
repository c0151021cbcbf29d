//! The workspace of a session.

use serde::{Deserialize, Serialize};

use crate::id::SessionId;

/// A directory of the session's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Workspace {
    /// A new directory in agentd's state directory.
    New,
    /// The workspace that was made for another session, which this session continues. Only agentd sets it.
    Of(SessionId),
}

impl Workspace {
    /// Returns the session for which the workspace was made; `own` has this value in its specification.
    pub fn owner<'a>(&'a self, own: &'a SessionId) -> &'a SessionId {
        match self {
            Self::New => own,
            Self::Of(owner) => owner,
        }
    }
}
