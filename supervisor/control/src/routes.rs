//! The callers that may make each call, and the calls that are recorded. No route can be declared without its
//! access: `access` names each route of the table in `agentd_api::route`.

use agentd_api::Route;

/// Callers that may make a call, from all callers to the owner alone. The owner may make each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// All callers, including strangers.
    Public,
    /// A process inside a session.
    Guest,
    /// A process inside the session that the path names, or inside the session that created it.
    Inside,
    /// A process inside the session that the path names.
    Own,
    /// A process inside the session that created the session in the path.
    Parent,
    /// A process inside a session that may create others.
    Creator,
    /// The user whose daemon it is, and root.
    Owner,
}

impl Access {
    /// All levels.
    pub const ALL: &'static [Self] =
        &[Self::Public, Self::Guest, Self::Inside, Self::Own, Self::Parent, Self::Creator, Self::Owner];

    /// Returns the name of the level for the documentation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Public => "everyone",
            Self::Guest => "guest",
            Self::Inside => "inside",
            Self::Own => "own",
            Self::Parent => "parent",
            Self::Creator => "creator",
            Self::Owner => "owner",
        }
    }

    /// Describes the callers of the level.
    pub fn callers(self) -> &'static str {
        match self {
            Self::Public => "every process that can connect",
            Self::Guest => "every process inside a session, unless `control.guests` is `\"none\"`",
            Self::Inside => "as `guest`, for the caller's own session and the sessions which that session created",
            Self::Own => "as `guest`, for the caller's own session alone",
            Self::Parent => "with `control.guests = \"children\"`, for the sessions that the caller's session created",
            Self::Creator => "with `control.guests = \"children\"`, every process inside a session",
            Self::Owner => "the user whose daemon it is, and root, from outside of the sessions",
        }
    }
}

/// Returns the callers that may make the calls of a route.
pub fn access(route: Route) -> Access {
    match route {
        Route::Health => Access::Public,
        Route::Readiness | Route::Description | Route::Sessions | Route::Feed => Access::Guest,
        Route::Session
        | Route::Events
        | Route::Environment
        | Route::EnvironmentDifference
        | Route::Validation
        | Route::Context
        | Route::Note
        | Route::Options
        | Route::ScriptProposal
        | Route::Repositories => Access::Inside,
        Route::ChangeContext
        | Route::SetHint
        | Route::SetTitle
        | Route::ReportProgress
        | Route::ProposeScript
        | Route::CheckSessionPrerequisites => Access::Own,
        Route::Prompt | Route::Cancel | Route::CancelTurn | Route::Stop => Access::Parent,
        Route::CreateSession => Access::Creator,
        Route::Metrics
        | Route::Version
        | Route::Agents
        | Route::AddAgent
        | Route::AgentStart
        | Route::Catalogue
        | Route::Audit
        | Route::Doctor
        | Route::Plugins
        | Route::Plugin
        | Route::Prerequisites
        | Route::CheckPrerequisite
        | Route::Places
        | Route::CheckPlace
        | Route::ForeseeReload
        | Route::Reload
        | Route::Drain
        | Route::BeginDrain
        | Route::UndoDrain
        | Route::Directories
        | Route::Scripts
        | Route::AllowScripts
        | Route::DenyScripts
        | Route::Secrets
        | Route::CheckSecrets
        | Route::Snapshots
        | Route::AddSnapshot
        | Route::RefreshSnapshots
        | Route::InvalidateSnapshots
        | Route::Hooks
        | Route::TestHook
        | Route::Schedules
        | Route::AddSchedule
        | Route::Schedule
        | Route::SetSchedule
        | Route::RemoveSchedule
        | Route::RunSchedule
        | Route::ChangeSpec
        | Route::AddRepository
        | Route::RemoveRepository
        | Route::BulkStop
        | Route::BulkResume
        | Route::BulkRemove
        | Route::BulkAnswer
        | Route::RotateKey
        | Route::Keep
        | Route::Prune
        | Route::RemoveSession
        | Route::Observe
        | Route::Resume
        | Route::Permit
        | Route::AnswerRequest
        | Route::AcpSend
        | Route::AcpStream
        | Route::AcpEnd => Access::Owner,
    }
}

/// Reports whether the response reveals contents of a session or decisions of the owner. Such a call is recorded.
pub(super) fn reveals(route: Route) -> bool {
    matches!(
        route,
        Route::AcpStream
            | Route::Audit
            | Route::AgentStart
            | Route::Context
            | Route::Environment
            | Route::EnvironmentDifference
            | Route::Events
            | Route::Feed
            | Route::ScriptProposal
            | Route::Note
            | Route::Scripts
            | Route::Secrets
            | Route::Snapshots
    )
}

#[cfg(test)]
mod tests {
    use agentd_api::route::{Method, session_in};

    use super::*;

    #[test]
    fn calls_that_change_something_need_the_owner_or_concern_a_child_or_the_callers_own_memory() {
        // A session may change what it remembers about itself. None of this decides what the session may do: a proposed
        // script runs only after the owner's approval.
        let remembered = [
            Route::ChangeContext,
            Route::SetHint,
            Route::SetTitle,
            Route::ReportProgress,
            Route::ProposeScript,
            Route::CheckSessionPrerequisites,
        ];
        for route in Route::ALL {
            let level = access(*route);
            let allowed = if route.method() == Method::Get {
                matches!(level, Access::Public | Access::Guest | Access::Inside | Access::Owner)
            } else {
                matches!(level, Access::Parent | Access::Creator | Access::Owner) || remembered.contains(route)
            };
            assert!(allowed, "{route}: {level:?}");
            let names_a_session = session_in(route.path()).is_some();
            let concerns_one = matches!(level, Access::Inside | Access::Own | Access::Parent);
            assert!(names_a_session || !concerns_one, "{route}: {level:?}");
        }
        let public: Vec<Route> = Route::ALL.iter().copied().filter(|route| access(*route) == Access::Public).collect();
        assert_eq!(public, [Route::Health]);
    }
}
