//! The scopes of tokens, and the scope that each call needs.
//!
//! No route can be declared without its scope: [`Route::scope`] names each one. A query key can need more than its
//! route ([`Route::scope_of_key`]). The access of the caller is a second condition, which the endpoint decides.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Call, Route};

/// Calls that a token permits. Each scope includes the smaller ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Calls that change nothing and reveal no environment and no secret.
    Read,
    /// Calls that answer and steer existing sessions.
    Operate,
    /// All calls of the owner.
    Own,
}

impl Scope {
    /// All scopes, the smallest first.
    pub const ALL: &'static [Self] = &[Self::Read, Self::Operate, Self::Own];

    /// Returns the name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Own => "own",
        }
    }

    /// Describes the calls of the scope for the documentation.
    pub fn calls(self) -> &'static str {
        match self {
            Self::Read => "calls that change nothing, without environments, secrets and scripts of directories",
            Self::Operate => "as `read`, and calls that answer and steer existing sessions",
            Self::Own => "every call of the owner",
        }
    }
}

/// Writes the name in the configuration.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Route {
    /// Returns the smallest scope of a token that may make the calls of the route.
    pub fn scope(self) -> Scope {
        match self {
            Self::Health
            | Self::Readiness
            | Self::Metrics
            | Self::Version
            | Self::Description
            | Self::Agents
            | Self::Catalogue
            | Self::Audit
            | Self::Doctor
            | Self::Plugins
            | Self::Plugin
            | Self::Hooks
            | Self::Prerequisites
            | Self::Places
            | Self::Drain
            | Self::Snapshots
            | Self::Schedules
            | Self::Schedule
            | Self::Feed
            | Self::Sessions
            | Self::Session
            | Self::Repositories
            | Self::Events
            | Self::Validation
            | Self::Options
            | Self::Note
            | Self::Context
            | Self::ScriptProposal => Scope::Read,
            // `ChangeSpec` changes labels only, without `own`: the rest of a specification decides what runs.
            Self::CheckPrerequisite
            | Self::CheckPlace
            | Self::CheckSessionPrerequisites
            | Self::RefreshSnapshots
            | Self::InvalidateSnapshots
            | Self::RunSchedule
            | Self::TestHook
            | Self::BulkStop
            | Self::BulkResume
            | Self::BulkAnswer
            | Self::ChangeSpec
            | Self::ChangeContext
            | Self::SetHint
            | Self::SetTitle
            | Self::ReportProgress
            | Self::Observe
            | Self::Prompt
            | Self::Cancel
            | Self::CancelTurn
            | Self::Stop
            | Self::Resume
            | Self::Permit
            | Self::AnswerRequest => Scope::Operate,
            // The reads among these reveal values of variables, sources of secrets or files of any directory, or they
            // load plugins. None is needed to watch sessions.
            Self::AddAgent
            | Self::AgentStart
            | Self::ForeseeReload
            | Self::Reload
            | Self::BeginDrain
            | Self::UndoDrain
            | Self::Directories
            | Self::Scripts
            | Self::AllowScripts
            | Self::DenyScripts
            | Self::Secrets
            | Self::CheckSecrets
            | Self::AddSnapshot
            | Self::RotateKey
            | Self::Keep
            | Self::Prune
            | Self::AddSchedule
            | Self::SetSchedule
            | Self::RemoveSchedule
            | Self::BulkRemove
            | Self::CreateSession
            | Self::AddRepository
            | Self::RemoveRepository
            | Self::RemoveSession
            | Self::Environment
            | Self::EnvironmentDifference
            | Self::ProposeScript
            | Self::AcpSend
            | Self::AcpStream
            | Self::AcpEnd => Scope::Own,
        }
    }

    /// Returns the smallest scope of a token that may use the query key of the route.
    pub fn scope_of_key(self, key: &str) -> Scope {
        let of_key = match (self, key) {
            // These keys run the agents, or launch in spite of a missing prerequisite or part.
            (Self::Catalogue, "versions") => Scope::Operate,
            (Self::Resume, "force" | "degraded") => Scope::Own,
            _ => Scope::Read,
        };
        of_key.max(self.scope())
    }
}

impl Call {
    /// Returns the smallest scope of a token that may make the call.
    pub fn scope(&self) -> Scope {
        let keys: &[&str] = match self {
            Self::Catalogue { versions: Some(true), .. } => &["versions"],
            Self::Resume { force: Some(true), .. } => &["force"],
            Self::Resume { degraded: Some(true), .. } => &["degraded"],
            _ => &[],
        };
        let route = self.route();
        keys.iter().map(|key| route.scope_of_key(key)).fold(route.scope(), Ord::max)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Method;
    use super::*;

    #[test]
    fn calls_that_only_read_change_nothing_and_calls_that_change_are_never_reads() {
        for route in Route::ALL {
            assert!(route.method() == Method::Get || route.scope() > Scope::Read, "{route}");
            assert!(route.method() != Method::Get || route.scope() != Scope::Operate, "{route}");
        }
    }

    #[test]
    fn the_scope_of_a_call_is_that_of_its_route_and_of_its_keys() {
        for route in Route::ALL {
            let call = |query: &str| Call::parse(*route, route.path(), query).unwrap();
            assert_eq!(call("").scope(), route.scope(), "{route}");
            for key in route.keys() {
                let more = route.scope_of_key(key.name);
                if more > route.scope() {
                    assert_eq!(call(&format!("{}=true", key.name)).scope(), more, "{route} {}", key.name);
                    assert_eq!(call(&format!("{}=false", key.name)).scope(), route.scope(), "{route} {}", key.name);
                }
            }
        }
    }

    #[test]
    fn the_scopes_are_ordered_and_named_as_in_the_configuration() {
        assert!(Scope::ALL.is_sorted() && Scope::Read < Scope::Operate && Scope::Operate < Scope::Own);
        for scope in Scope::ALL {
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.name());
        }
    }
}
