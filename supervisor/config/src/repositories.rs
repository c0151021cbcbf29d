//! `[repositories]` and `[workspaces]`: git repositories of sessions, and directories of the sessions' own.

use agentd_api::quantity::Time;
use serde::Deserialize;

use super::seconds;

/// Git repositories that sessions request (`repos`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Repositories {
    /// Time limit for git's work on one repository. Default: 10 min. 0 is refused.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub deadline: Time,
    /// Author of commits in clones: `user.name` of git. Default: the user's own setting.
    pub user_name: Option<String>,
    /// Address of the author of commits in clones: `user.email` of git. Default: the user's own setting.
    pub user_email: Option<String>,
}

impl Default for Repositories {
    fn default() -> Self {
        Self { deadline: seconds(600), user_name: None, user_email: None }
    }
}

/// Directories of the sessions' own (`workspace = "new"`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Workspaces {
    /// Fate of a workspace when its session is removed: `remove` or `keep`. A workspace whose repositories have
    /// uncommitted or unpushed work is always kept. Default: `remove`.
    pub at_removal: AtRemoval,
}

/// Fate of a workspace when its session is removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum AtRemoval {
    /// The workspace is removed with the session.
    #[default]
    Remove,
    /// The workspace stays.
    Keep,
}
