//! `[staleness]`: reaction of a launch to changes of a session's surroundings since its agent last worked.

use std::time::Duration;

use agentd_api::quantity::Time;
use agentd_api::staleness::StalePolicy;
use serde::Deserialize;

/// Reaction of a session's later launches to changes since the agent last worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Staleness {
    /// Policy if another directory is at the path of the session's directory: `ignore`, `note`, `warn`, `ask` or
    /// `refuse`. Default: `warn`. Without any directory a launch always fails.
    pub directory: StalePolicy,
    /// Policy if the git repository is gone or new, or has another top directory or other remotes. Default: `warn`.
    pub repository: StalePolicy,
    /// Policy if the repository is on another branch. Default: `note`.
    pub branch: StalePolicy,
    /// Policy if the branch is at another commit. Default: `note`.
    pub head: StalePolicy,
    /// Policy if the environment's scripts have changed. Default: `note`.
    pub scripts: StalePolicy,
    /// Policy if variables of the environment have changed, or if a fresh environment would differ from the stored
    /// one (`environment.refresh = "warn"`). Default: `note`.
    pub environment: StalePolicy,
    /// Policy if the session was not used for longer than `unused_after`. Default: `note`.
    pub unused: StalePolicy,
    /// Time since the last turn after which a session counts as unused. Default: 14 days. 0 is refused.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub unused_after: Time,
    /// Policy if the agent's program has another name or version. It applies when the agent has started and before
    /// the conversation is opened. Default: `note`.
    pub agent_version: StalePolicy,
}

impl Default for Staleness {
    fn default() -> Self {
        Self {
            directory: StalePolicy::Warn,
            repository: StalePolicy::Warn,
            branch: StalePolicy::Note,
            head: StalePolicy::Note,
            scripts: StalePolicy::Note,
            environment: StalePolicy::Note,
            unused: StalePolicy::Note,
            unused_after: Time(Duration::from_hours(14 * 24)),
            agent_version: StalePolicy::Note,
        }
    }
}
