//! The facts about each session in the feed: the last event and the compact state.

use std::sync::Arc;

use agentd_api::feed::SessionBrief;
use serde::{Deserialize, Serialize};

/// A session in the feed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Known {
    /// Sequence number of the last event in the feed.
    pub(crate) fed: u64,
    /// The last `session.state` in the feed.
    #[serde(default)]
    pub(crate) stated: Option<Arc<SessionBrief>>,
    /// The present state, for filters. It can be ahead of the feed.
    #[serde(skip)]
    pub(crate) present: Option<Arc<SessionBrief>>,
}

impl Known {
    pub(crate) fn new(fed: u64) -> Self {
        Self { fed, stated: None, present: None }
    }

    /// Returns the most recent state that is known.
    pub(crate) fn latest(&self) -> Option<&Arc<SessionBrief>> {
        self.present.as_ref().or(self.stated.as_ref())
    }
}
