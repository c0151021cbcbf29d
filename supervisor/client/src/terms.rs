//! The terms of a launch.

use std::time::Duration;

use agentd_api::route::{PrerequisiteWait, Within};

/// Behaviour of a launch if a prerequisite is missing or a part of the session cannot be provided.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terms {
    /// Time limit of the wait for missing prerequisites.
    pub wait: Option<Duration>,
    /// Whether the launch leaves out missing prerequisites.
    pub force: bool,
    /// Whether the launch leaves out failed parts.
    pub degraded: bool,
}

impl Terms {
    pub(crate) fn wait_for_prerequisites(self) -> Option<PrerequisiteWait> {
        self.wait.map(Within)
    }

    pub(crate) fn force(self) -> Option<bool> {
        self.force.then_some(true)
    }

    /// The key is left out otherwise, so that a daemon of an older release takes the call.
    pub(crate) fn degraded(self) -> Option<bool> {
        self.degraded.then_some(true)
    }
}
