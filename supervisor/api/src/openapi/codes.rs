//! The problem codes of each route. A route without its codes does not compile: [`own`] names each one.
//!
//! Codes that follow from the row of a route are added by [`codes`]: those of the caller's access, of the path, the
//! query and the body. [`own`] has those that depend on the work.

use std::collections::BTreeSet;

use crate::route::{Answer, Scope};
use crate::{Code, Route};

/// Codes that each route can answer with, before its work begins or because a resource of the system is missing.
pub(super) const ALWAYS: &[Code] = &[
    Code::InvalidRequest,
    Code::Unauthorized,
    Code::ForeignHost,
    Code::ForeignOrigin,
    Code::Forbidden,
    Code::Internal,
    Code::OutOfResources,
    Code::TooManyConnections,
];

/// Codes of a caller that may not make the call. `GET /healthz` is open to all callers.
const ACCESS: &[Code] = &[Code::InSession, Code::CallerUnknown, Code::StartedByAgentd];

/// Codes of a route with a body.
const BODY: &[Code] = &[Code::MalformedRequest, Code::BodyTooLarge, Code::BodyTimeout];

/// Codes of a route whose path names a session.
const SESSION: &[Code] = &[Code::InvalidId, Code::NoSuchSession, Code::SessionUnreadable];

/// Codes of a request that is handed to a session and recorded in its journal.
const COMMAND: &[Code] = &[Code::WrongPhase, Code::TooBusy, Code::KeeperSilent, Code::JournalNotWritable];

/// Codes of a specification that cannot be accepted.
const SPEC: &[Code] = &[
    Code::NoSuchAgent,
    Code::NoSuchDirectory,
    Code::DirectorySilent,
    Code::NoSuchPrerequisite,
    Code::NoSuchPlace,
    Code::SecretInEnvironment,
    Code::SchemaInvalid,
    Code::ConfigurationInvalid,
    Code::NameTaken,
];

/// Codes of a launch that cannot begin.
const LAUNCH: &[Code] = &[
    Code::ConfigurationInvalid,
    Code::PluginUnusable,
    Code::PrerequisitesNotMet,
    Code::TooManySessions,
    Code::Draining,
    Code::ConversationInUse,
    Code::NoSuchAgent,
    Code::NoSuchDirectory,
    Code::DirectorySilent,
    Code::NoSuchSnapshot,
    Code::SnapshotNeeded,
    Code::KeyUnavailable,
    Code::EnvironmentUnreadable,
];

/// Codes of a changed configuration that is checked and taken into use.
const CONFIGURATION: &[Code] = &[Code::ConfigurationInvalid, Code::PluginUnusable, Code::TooBusy];

/// Codes of an environment that is built for a call.
const ENVIRONMENT: &[Code] = &[
    Code::EnvironmentNotBuilt,
    Code::EnvironmentUnreadable,
    Code::KeyUnavailable,
    Code::ConfigurationInvalid,
    Code::PluginUnusable,
    Code::NoSuchAgent,
    Code::NoSuchDirectory,
    Code::DirectorySilent,
    Code::NoSuchSnapshot,
    Code::SnapshotNeeded,
    Code::WrongPhase,
    Code::TooBusy,
];

/// Codes of a look at a directory.
const DIRECTORY: &[Code] = &[Code::NoSuchDirectory, Code::DirectorySilent];

/// Codes of a new or changed schedule. Its runs find the session that it names.
const SCHEDULE: &[Code] = &[Code::ScheduleInvalid, Code::NoSuchSnapshot, Code::SnapshotNeeded, Code::KeyUnavailable];

/// Codes that no route answers with: the path or the method has no route.
pub fn of_no_route() -> &'static [Code] {
    &[Code::NoSuchPath, Code::MethodNotAllowed]
}

/// Returns the problem codes of a route, in the order of their declaration.
pub fn codes(route: Route) -> Vec<Code> {
    let mut sets: Vec<&[Code]> = vec![ALWAYS];
    if route != Route::Health {
        sets.push(ACCESS);
    }
    // Every token has the scope `read`.
    let needs_more = |scope| scope > Scope::Read;
    if needs_more(route.scope()) || route.keys().iter().any(|key| needs_more(route.scope_of_key(key.name))) {
        sets.push(&[Code::ScopeTooSmall]);
    }
    if route.body().is_some() {
        sets.push(BODY);
    }
    if route.path().contains("{session}") {
        sets.push(SESSION);
    }
    if matches!(route.answer(), Answer::Stream(_)) || route.keys().iter().any(|key| key.name == "wait") {
        sets.push(&[Code::TooManyStreams]);
    }
    sets.extend_from_slice(own(route));
    let found: BTreeSet<String> = sets.concat().iter().map(|code| code.as_str()).collect();
    Code::ALL.iter().copied().filter(|code| found.contains(&code.as_str())).collect()
}

/// Returns the codes that depend on the work of a route.
fn own(route: Route) -> &'static [&'static [Code]] {
    match route {
        Route::Health
        | Route::Metrics
        | Route::Version
        | Route::Description
        | Route::Agents
        | Route::Audit
        | Route::Doctor
        | Route::Plugins
        | Route::Places
        | Route::Secrets
        | Route::CheckSecrets
        | Route::Snapshots
        | Route::InvalidateSnapshots
        | Route::Drain
        | Route::BeginDrain
        | Route::UndoDrain
        | Route::Schedules
        | Route::Hooks
        | Route::Sessions
        | Route::ScriptProposal
        | Route::Session
        | Route::Repositories
        | Route::Context => &[],
        Route::Readiness => &[&[Code::NotReady]],
        Route::AddAgent => &[CONFIGURATION, &[Code::ConfigurationNotWritable, Code::NameTaken, Code::NoSuchAgent]],
        Route::Keep => &[CONFIGURATION, &[Code::ConfigurationNotWritable, Code::NoSuchAgent]],
        Route::ForeseeReload | Route::Reload => &[CONFIGURATION],
        Route::AgentStart => &[ENVIRONMENT, SESSION],
        Route::Catalogue => &[&[Code::NoSuchAgent, Code::ConfigurationInvalid]],
        Route::Plugin => &[&[Code::NoSuchPlugin]],
        // Each session of a bulk call has its own result. These codes are about the sessions that the body names.
        Route::Prerequisites | Route::BulkStop | Route::BulkResume | Route::BulkRemove | Route::BulkAnswer => {
            &[SESSION]
        }
        Route::CheckPrerequisite => &[SESSION, ENVIRONMENT, &[Code::NoSuchPrerequisite]],
        Route::CheckPlace => &[&[Code::NoSuchPlace]],
        Route::CheckSessionPrerequisites => &[COMMAND, ENVIRONMENT, &[Code::NoSuchPrerequisite]],
        // The list has each script as refused if the approvals cannot be read.
        Route::Directories | Route::Scripts => &[DIRECTORY],
        Route::AllowScripts => &[DIRECTORY, &[Code::ApprovalsUnreadable, Code::ScriptChanged]],
        Route::DenyScripts => &[DIRECTORY, &[Code::ApprovalsUnreadable]],
        // The note has missing parts of a launch as undetermined.
        Route::AddSnapshot | Route::Note => &[&[Code::TooBusy]],
        Route::RefreshSnapshots => &[&[Code::SnapshotFailed]],
        Route::RotateKey => &[&[Code::KeyUnavailable, Code::EnvironmentUnreadable]],
        Route::Prune => &[SESSION, COMMAND],
        Route::TestHook => &[&[Code::NoSuchHook]],
        Route::AddSchedule => &[SPEC, SCHEDULE, &[Code::TooBusy]],
        Route::SetSchedule => {
            const OWN: &[Code] =
                &[Code::NoSuchSchedule, Code::ScheduleUnreadable, Code::GenerationChanged, Code::FieldFixed];
            &[SPEC, SCHEDULE, OWN]
        }
        Route::Schedule | Route::RemoveSchedule => &[&[Code::NoSuchSchedule, Code::ScheduleUnreadable]],
        // The answer has each run, also one that was refused.
        Route::RunSchedule => &[&[Code::NoSuchSchedule, Code::ScheduleUnreadable, Code::ScheduleInvalid]],
        Route::CreateSession => &[
            SPEC,
            LAUNCH,
            &[Code::KeyReused, Code::InvalidId, Code::NoSuchSession, Code::SessionUnreadable],
            &[Code::WrongPhase, Code::TooBusy, Code::JournalNotWritable],
        ],
        Route::Resume => &[SPEC, LAUNCH, COMMAND],
        Route::ChangeSpec => {
            const OWN: &[Code] = &[
                Code::GenerationChanged,
                Code::FieldFixed,
                Code::NoSuchSnapshot,
                Code::SnapshotNeeded,
                Code::RepositoryHasWork,
            ];
            &[SPEC, COMMAND, OWN]
        }
        Route::AddRepository => &[COMMAND, &[Code::NameTaken]],
        Route::RemoveRepository => &[COMMAND, &[Code::NoSuchRepository, Code::RepositoryHasWork]],
        Route::RemoveSession => &[COMMAND, &[Code::RepositoryHasWork]],
        Route::Events => &[&[Code::CursorGone]],
        Route::Feed => &[&[Code::NoSuchSession, Code::InvalidId, Code::FeedUnavailable]],
        Route::Environment | Route::EnvironmentDifference => &[ENVIRONMENT],
        // The answer has missing parts of a launch as warnings.
        Route::Validation => &[&[Code::EnvironmentUnreadable, Code::KeyUnavailable]],
        Route::ChangeContext => &[COMMAND, &[Code::ContextFull]],
        Route::Options
        | Route::SetHint
        | Route::SetTitle
        | Route::ReportProgress
        | Route::ProposeScript
        | Route::Observe
        | Route::Cancel
        | Route::Stop => &[COMMAND],
        // A prompt launches a session that has completed.
        Route::Prompt => &[COMMAND, LAUNCH, &[Code::QueueFull, Code::SchemaInvalid, Code::KeyReused]],
        Route::CancelTurn => &[COMMAND, &[Code::NoSuchTurn]],
        Route::Permit => &[COMMAND, &[Code::NoSuchPermission, Code::PermissionAnswered]],
        Route::AnswerRequest => &[COMMAND, &[Code::NoSuchRequest]],
        Route::AcpSend => &[&[Code::NoSuchConnection, Code::UnsupportedMediaType, Code::InvalidId]],
        Route::AcpStream => &[&[Code::NoSuchConnection, Code::NotAcceptable, Code::CursorGone, Code::InvalidId]],
        Route::AcpEnd => &[&[Code::NoSuchConnection]],
    }
}
