//! The routes of the control endpoint: one table for the daemon, for clients and for the documentation.
//!
//! A [`Route`] is a row of the table: its method, path, query keys and types. A [`Call`] is a route with its
//! parameters. The daemon reads calls with [`find`] and [`Call::parse`], and a client writes calls with `Display`.

mod query;
mod scope;
#[cfg(test)]
mod tests;
mod typed;

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

pub use self::query::{PrerequisiteWait, Value, Wait, Within};
use self::query::{Query, append, escape};
pub use self::scope::Scope;
pub use self::typed::{NoDocument, Typed};
use crate::acp::AcpMessage;
use crate::agents::{AgentAddRequest, AgentAddView, Catalogue};
use crate::audit::AuditList;
use crate::bulk::{BulkAnswer, BulkRemove, BulkResume, BulkStop, BulkView};
use crate::context::{ContextChange, ContextView, HintRequest, ProgressRequest, TitleRequest};
use crate::directories::DirectoryList;
use crate::doc;
use crate::doctor::DoctorView;
use crate::drain::DrainView;
use crate::editor::RequestAnswer;
use crate::environment::{DifferenceView, EnvironmentView, Moment, RotationView};
use crate::event::Event;
use crate::feed::FeedEvent;
use crate::hook::{HookList, HookTestView};
use crate::keep::{KeepRequest, KeepView};
use crate::label::Selector;
use crate::list::{Conditions, Cursor, Fields, Phases};
use crate::login::{AgentStart, AgentStartRequest};
use crate::note::NoteView;
use crate::options::OptionsView;
use crate::place::{PlaceCheck, PlaceList};
use crate::plugin::{PluginList, PluginView, ReloadView};
use crate::prerequisite::{CheckReport, CheckRequest, PrerequisiteList};
use crate::problem::Problem;
use crate::prune::{PruneRequest, PruneView};
use crate::repository::{RepositoryList, RepositorySpec};
use crate::schedule::{ScheduleList, ScheduleRuns, ScheduleSpec, ScheduleView};
use crate::scripts::{ScriptDecision, ScriptList, ScriptProposal};
use crate::secret::SecretList;
use crate::session::{
    PermissionAnswer, PromptAccepted, PromptRequest, SessionList, SessionSpec, SessionView, StopView,
};
use crate::snapshot::{SnapshotList, TerminalSnapshot, TerminalSnapshotView};
use crate::spec::{SpecChangeView, SpecPatch};
use crate::status::{AgentList, HealthView, OpenApi, ReadinessView, VersionView};
use crate::validation::ValidationView;

/// HTTP method (RFC 9110 section 9) of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The call changes nothing.
    Get,
    /// The call changes something.
    Post,
    /// The call changes a part of a resource (RFC 5789).
    Patch,
    /// The call sets a value.
    Put,
    /// The call removes or undoes something.
    Delete,
}

impl Method {
    /// Returns the method as requests write the method.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A query key of a route.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The key as requests write the key.
    pub name: &'static str,
    /// Describes the values of the key.
    pub values: fn() -> String,
    /// Returns the JSON Schema of the values.
    #[cfg(feature = "schema")]
    pub schema: fn() -> serde_json::Value,
}

/// Body of a successful response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The response has no body.
    Nothing,
    /// The body is one JSON document of the named type.
    Document(&'static str),
    /// The body is text in the named format.
    Text(&'static str),
    /// The body is a stream of JSON documents of the named type.
    Stream(&'static str),
}

/// Returns the name of a type that can be sent and read.
const fn document<T: Serialize + DeserializeOwned>(name: &'static str, _: PhantomData<T>) -> &'static str {
    name
}

/// Returns the name of a type whose lines are forwarded as the journal has them.
const fn line<T>(name: &'static str, _: PhantomData<T>) -> &'static str {
    name
}

macro_rules! routes {
    ($(
        $(#[doc = $purpose:literal])+
        $name:ident = $method:ident $head:literal $($part:ident $($tail:literal)?)*
        $({ $($key:ident: $value:ty),+ })?
        $(($body:ident))?
        => $status:literal $kind:ident $(($answer:ident))?;
    )*) => {
        /// A row of the table of routes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Route {
            $($(#[doc = $purpose])+ $name,)*
        }

        impl Route {
            /// All routes, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub fn method(self) -> Method {
                match self {
                    $(Self::$name => Method::$method,)*
                }
            }

            /// Returns the path, in which `{name}` is a parameter.
            pub fn path(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($head, $("{", stringify!($part), "}" $(, $tail)?,)*),)*
                }
            }

            /// Returns the query keys that the route takes.
            pub fn keys(self) -> &'static [Key] {
                match self {
                    $(Self::$name => &[
                        $($(Key {
                            name: stringify!($key),
                            values: <$value>::describe,
                            #[cfg(feature = "schema")]
                            schema: <$value>::schema,
                        },)+)?
                    ],)*
                }
            }

            /// Returns the type of the request's body; `None` for a route that reads no body.
            pub fn body(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => routes!(@body $($body)?),)*
                }
            }

            /// Returns the schema of the request's body.
            #[cfg(feature = "schema")]
            pub fn body_schema(self, generator: &mut schemars::SchemaGenerator) -> Option<schemars::Schema> {
                match self {
                    $(Self::$name => routes!(@schema generator $($body)?),)*
                }
            }

            /// Returns the schema of a successful response's body, or of one document of a stream.
            #[cfg(feature = "schema")]
            pub fn answer_schema(self, generator: &mut schemars::SchemaGenerator) -> Option<schemars::Schema> {
                match self {
                    $(Self::$name => routes!(@answer_schema generator $kind $($answer)?),)*
                }
            }

            /// Returns the name of the row.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Returns the HTTP status of a successful response.
            pub fn status(self) -> u16 {
                match self {
                    $(Self::$name => $status,)*
                }
            }

            /// Returns the body of a successful response.
            pub fn answer(self) -> Answer {
                match self {
                    $(Self::$name => routes!(@answer $kind $($answer)?),)*
                }
            }

            /// Returns the purpose in one line.
            pub fn purpose(self) -> String {
                match self {
                    $(Self::$name => doc::text(&[$($purpose,)+]),)*
                }
            }
        }

        /// The calls, each as a type of its own with the types of its bodies.
        pub mod call {
            #[allow(clippy::wildcard_imports, reason = "the types of the table")]
            use super::*;

            $(
                $(#[doc = $purpose])+
                #[derive(Debug, Clone, Default, PartialEq, Eq)]
                pub struct $name {
                    $(
                        #[doc = concat!("Part `", stringify!($part), "` of the path, without `%`.")]
                        pub $part: String,
                    )*
                    $($(
                        #[doc = concat!("Query key `", stringify!($key), "`; `None` leaves the key out.")]
                        pub $key: Option<$value>,
                    )+)?
                }

                impl From<$name> for Call {
                    fn from(call: $name) -> Self {
                        let $name { $($part,)* $($($key,)+)? } = call;
                        Self::$name { $($part,)* $($($key,)+)? }
                    }
                }

                impl Typed for $name {
                    const ROUTE: Route = Route::$name;
                    type Body = routes!(@body_type $($body)?);
                    type Answer = routes!(@answer_type $kind $($answer)?);
                }
            )*
        }

        /// A route with its parameters. The parameters of the path are not decoded, since ids and names never need
        /// `%`.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Call {
            $($(#[doc = $purpose])+ $name { $($part: String,)* $($($key: Option<$value>,)+)? },)*
        }

        impl Call {
            pub fn route(&self) -> Route {
                match self {
                    $(Self::$name { .. } => Route::$name,)*
                }
            }

            /// Reads the parameters of a call of `route` from its path and query.
            ///
            /// # Errors
            ///
            /// The route does not take this query.
            pub fn parse(route: Route, path: &str, query: &str) -> Result<Self, Problem> {
                let mut parts = parameters(route, path);
                let mut query = Query::parse(route, query)?;
                Ok(match route {
                    $(Route::$name => Self::$name {
                        $($part: parts.next().unwrap_or_default(),)*
                        $($($key: query.take(stringify!($key))?,)+)?
                    },)*
                })
            }

            /// Returns the path and the query of the request.
            pub fn address(&self) -> String {
                match self {
                    $(Self::$name { $($part,)* $($($key,)+)? } => {
                        let address = String::from($head);
                        $(
                            let address = address + &escape($part);
                            $(let address = address + $tail;)?
                        )*
                        $(
                            let mut address = address;
                            $(append(&mut address, stringify!($key), $key.as_ref());)+
                        )?
                        address
                    })*
                }
            }
        }
    };
    (@body_type) => { () };
    (@body_type $body:ident) => { super::$body };
    (@answer_type Document $answer:ident) => { super::$answer };
    (@answer_type Nothing) => { IgnoredAny };
    (@answer_type Text $format:ident) => { NoDocument };
    (@answer_type Stream $answer:ident) => { NoDocument };
    (@schema $generator:ident) => { None };
    (@schema $generator:ident $of:ident) => { Some($generator.subschema_for::<$of>()) };
    (@answer_schema $generator:ident Text $format:ident) => { None };
    (@answer_schema $generator:ident $kind:ident $($of:ident)?) => { routes!(@schema $generator $($of)?) };
    (@body) => { None };
    (@body $body:ident) => { Some(document(stringify!($body), PhantomData::<$body>)) };
    (@answer Nothing) => { Answer::Nothing };
    (@answer Document $answer:ident) => { Answer::Document(document(stringify!($answer), PhantomData::<$answer>)) };
    (@answer Text $format:ident) => { Answer::Text(stringify!($format)) };
    (@answer Stream $answer:ident) => { Answer::Stream(line(stringify!($answer), PhantomData::<$answer>)) };
}

// A row: purpose, name, method, path with its parameters, { query keys }, (body), status and body of the response.
routes! {
    /// Answers while the daemon answers at all.
    Health = Get "/healthz" => 200 Document(HealthView);
    /// Answers 200 if a session can be launched, else `not-ready` with the reasons.
    Readiness = Get "/readyz" => 200 Document(ReadinessView);
    /// Shows the metrics in `OpenMetrics`, or in the text format of Prometheus for `Accept: text/plain`.
    Metrics = Get "/metrics" => 200 Text(OpenMetrics);
    /// Shows the daemon's version, directories and formats.
    Version = Get "/v1/version" => 200 Document(VersionView);
    /// Describes the calls, types and problem codes of the control endpoint as an `OpenAPI` document.
    Description = Get "/v1/openapi.json" => 200 Document(OpenApi);
    /// Lists the configured agents.
    Agents = Get "/v1/agents" => 200 Document(AgentList);
    /// Adds an agent to the user's file, and reloads. With `dry_run` in the body only shows the change.
    AddAgent = Post "/v1/agents" (AgentAddRequest) => 200 Document(AgentAddView);
    /// Builds the environment in which an agent would start, with its secrets, for a login at the owner's terminal.
    AgentStart = Post "/v1/agents/" name "/environment" (AgentStartRequest) => 200 Document(AgentStart);
    /// Lists the configured and the known agents with installation and login. `agent` shows one, and `versions` runs
    /// them for their versions.
    Catalogue = Get "/v1/catalogue" { agent: String, versions: bool } => 200 Document(Catalogue);
    /// Lists the recorded calls that changed or revealed something, oldest first.
    Audit = Get "/v1/audit" { session: String, since: String, limit: u64 } => 200 Document(AuditList);
    /// Shows the daemon's findings about itself, each with its remedy.
    Doctor = Get "/v1/doctor" => 200 Document(DoctorView);
    /// Lists the plugins with their state.
    Plugins = Get "/v1/plugins" => 200 Document(PluginList);
    /// Shows a plugin: its kind, its grant, and its calls and failures.
    Plugin = Get "/v1/plugins/" name => 200 Document(PluginView);
    /// Lists the prerequisites of all sessions, or of one session, with their last results.
    Prerequisites = Get "/v1/prerequisites" { session: String } => 200 Document(PrerequisiteList);
    /// Checks a prerequisite now.
    CheckPrerequisite = Post "/v1/prerequisites/" name "/check" (CheckRequest) => 200 Document(CheckReport);
    /// Lists the places of the configuration with the number of sessions on each.
    Places = Get "/v1/places" => 200 Document(PlaceList);
    /// Starts agentd-keeper on a place, without an agent, and reports each step. The place has the time `wait` for its
    /// answer, or one minute.
    CheckPlace = Post "/v1/places/" name "/check" { wait: Wait } => 200 Document(PlaceCheck);
    /// Shows the changes that a reload would make, and changes nothing.
    ForeseeReload = Get "/v1/reload" => 200 Document(ReloadView);
    /// Reads the configuration again and puts the configuration in force. With `dry_run` changes nothing.
    Reload = Post "/v1/reload" { dry_run: bool } => 200 Document(ReloadView);
    /// Shows the progress of a drain.
    Drain = Get "/v1/drain" { wait: Wait } => 200 Document(DrainView);
    /// Begins a drain: stops every session in order and launches none.
    BeginDrain = Post "/v1/drain" { wait: Wait } => 202 Document(DrainView);
    /// Undoes a drain.
    UndoDrain = Delete "/v1/drain" { wait: Wait } => 200 Document(DrainView);
    /// Lists the directories whose paths begin with `path`, for its completion. `~` and a missing `path` are the home.
    Directories = Get "/v1/directories" { path: String } => 200 Document(DirectoryList);
    /// Lists a directory's scripts: state, digest and sourced files. `diff` adds the text or its changes.
    Scripts = Get "/v1/scripts" { directory: String, diff: bool } => 200 Document(ScriptList);
    /// Approves a directory's scripts. A script that changed since it was shown is refused.
    AllowScripts = Post "/v1/scripts/allow" (ScriptDecision) => 200 Document(ScriptList);
    /// Rejects a directory's scripts.
    DenyScripts = Post "/v1/scripts/deny" (ScriptDecision) => 200 Document(ScriptList);
    /// Lists the named secrets with their sources and receivers, and never a value.
    Secrets = Get "/v1/secrets" => 200 Document(SecretList);
    /// Reads each secret from its source, reports the result, and discards the value.
    CheckSecrets = Post "/v1/secrets/check" => 200 Document(SecretList);
    /// Lists the snapshots of the login shell and of terminals.
    Snapshots = Get "/v1/snapshots" => 200 Document(SnapshotList);
    /// Stores a terminal's environment in memory; new sessions can begin with this environment.
    AddSnapshot = Post "/v1/snapshots" (TerminalSnapshot) => 201 Document(TerminalSnapshotView);
    /// Runs the login shell now.
    RefreshSnapshots = Post "/v1/snapshots/refresh" => 200 Document(SnapshotList);
    /// Forgets the environment of the login shell.
    InvalidateSnapshots = Post "/v1/snapshots/invalidate" => 200 Document(SnapshotList);
    /// Encrypts every stored environment with a new key.
    RotateKey = Post "/v1/environment/rotate-key" => 200 Document(RotationView);
    /// Adds names to the variables that the whitelist keeps, in the user's file, and reloads.
    Keep = Post "/v1/environment/keep" (KeepRequest) => 200 Document(KeepView);
    /// Removes sessions at rest that match the criteria. With `dry_run` in the body lists them with their sizes.
    Prune = Post "/v1/prune" (PruneRequest) => 200 Document(PruneView);
    /// Lists the schedules with their next time and last run.
    Schedules = Get "/v1/schedules" => 200 Document(ScheduleList);
    /// Adds a schedule.
    AddSchedule = Post "/v1/schedules" (ScheduleSpec) => 201 Document(ScheduleView);
    /// Shows a schedule with the history of its runs.
    Schedule = Get "/v1/schedules/" schedule => 200 Document(ScheduleView);
    /// Replaces the specification of a schedule; with `If-Match` only at that generation.
    SetSchedule = Put "/v1/schedules/" schedule (ScheduleSpec) => 200 Document(ScheduleView);
    /// Removes a schedule with its history. Its sessions stay.
    RemoveSchedule = Delete "/v1/schedules/" schedule => 204 Nothing;
    /// Runs a schedule now. With `due` only if a time is due.
    RunSchedule = Post "/v1/schedules/" schedule "/run" { due: bool } => 200 Document(ScheduleRuns);
    /// Lists the hooks of the configuration with their positions and last attempts.
    Hooks = Get "/v1/hooks" => 200 Document(HookList);
    /// Sends one test event to a hook now, and shows the answer. A failed delivery is no problem of the call.
    TestHook = Post "/v1/hooks/" name "/test" => 200 Document(HookTestView);
    /// Streams the events of all sessions and of the daemon, or with `before` sends the `limit` events before that
    /// cursor.
    Feed = Get "/v1/events"
        { after: u64, last: u64, follow: bool, before: u64, limit: u64, kind: String, session: String, label: Selector }
        => 200 Stream(FeedEvent);
    /// Stops the selected sessions, with one result for each.
    BulkStop = Post "/v1/bulk/stop" (BulkStop) => 200 Document(BulkView);
    /// Launches the selected sessions again, with one result for each.
    BulkResume = Post "/v1/bulk/resume" (BulkResume) => 200 Document(BulkView);
    /// Removes the selected sessions, with one result for each.
    BulkRemove = Post "/v1/bulk/remove" (BulkRemove) => 200 Document(BulkView);
    /// Answers the open permission requests of the selected sessions, with one result for each session.
    BulkAnswer = Post "/v1/bulk/answer" (BulkAnswer) => 200 Document(BulkView);
    /// Lists the sessions that match, in pages of `limit`. With `stale` checks them now, and lists only those with
    /// findings.
    Sessions = Get "/v1/sessions"
        { stale: bool, label: Selector, phase: Phases, agent: String, directory: String, condition: Conditions,
            fields: Fields, limit: u64, after: Cursor }
        => 200 Document(SessionList);
    /// Creates a session and begins its first launch.
    CreateSession = Post "/v1/sessions"
        { wait: Wait, wait_for_prerequisites: PrerequisiteWait, force: bool, degraded: bool }
        (SessionSpec) => 202 Document(SessionView);
    /// Shows a session: specification, status and conditions.
    Session = Get "/v1/sessions/" session => 200 Document(SessionView);
    /// Changes the specification by a JSON merge patch; with `If-Match` only at that generation.
    ChangeSpec = Patch "/v1/sessions/" session (SpecPatch) => 200 Document(SpecChangeView);
    /// Lists the repositories of a session, with what is checked out now and whether there is unsaved work.
    Repositories = Get "/v1/sessions/" session "/repos" => 200 Document(RepositoryList);
    /// Adds a repository: between turns, or with `now` also during a turn.
    AddRepository = Post "/v1/sessions/" session "/repos" { now: bool, wait: Wait } (RepositorySpec)
        => 202 Document(RepositoryList);
    /// Removes a repository and its files: between turns, or with `now` also during a turn. With `force` also one with
    /// unsaved work.
    RemoveRepository = Delete "/v1/sessions/" session "/repos/" repository { force: bool, now: bool, wait: Wait }
        => 202 Document(RepositoryList);
    /// Removes a session. With `force` stops the session first.
    RemoveSession = Delete "/v1/sessions/" session { force: bool } => 204 Nothing;
    /// Sends the stored events of a session, then each new event unless `follow=false`. With `before` sends the `limit`
    /// events before that event.
    Events = Get "/v1/sessions/" session "/events" { after: u64, last: u64, follow: bool, before: u64, limit: u64 }
        => 200 Stream(Event);
    /// Shows every variable of a session with its provider and former value, and never a secret's value.
    Environment = Get "/v1/sessions/" session "/environment" { at: Moment, values: bool }
        => 200 Document(EnvironmentView);
    /// Compares two environments of a session: added, changed and removed variables.
    EnvironmentDifference = Get "/v1/sessions/" session "/environment/diff" { from: Moment, to: Moment, values: bool }
        => 200 Document(DifferenceView);
    /// Lists the warnings that a launch would report now, and launches nothing.
    Validation = Get "/v1/sessions/" session "/validation" => 200 Document(ValidationView);
    /// Shows the options that the session's agent offers, with their values: mode, model and others.
    Options = Get "/v1/sessions/" session "/options" => 200 Document(OptionsView);
    /// Shows the note that the agent would get with the next prompt, and sends nothing.
    Note = Get "/v1/sessions/" session "/note" => 200 Document(NoteView);
    /// Shows the context of a session: files, applet, endpoints, ports and other sets.
    Context = Get "/v1/sessions/" session "/context" => 200 Document(ContextView);
    /// Changes sets of the context. Sets that the change does not name stay.
    ChangeContext = Patch "/v1/sessions/" session "/context" (ContextChange) => 200 Document(ContextView);
    /// Sets or removes the environment hint.
    SetHint = Put "/v1/sessions/" session "/hint" (HintRequest) => 200 Document(SessionView);
    /// Sets or removes the title.
    SetTitle = Put "/v1/sessions/" session "/title" (TitleRequest) => 200 Document(SessionView);
    /// Reports the progress of the work.
    ReportProgress = Put "/v1/sessions/" session "/progress" (ProgressRequest) => 200 Document(SessionView);
    /// Checks the session's prerequisites now.
    CheckSessionPrerequisites = Post "/v1/sessions/" session "/prerequisites/check" => 200 Document(PrerequisiteList);
    /// Shows the script that was proposed for the session, and whether it is approved. `diff` adds the text or its
    /// changes.
    ScriptProposal = Get "/v1/sessions/" session "/script-proposal" { diff: bool } => 200 Document(ScriptList);
    /// Proposes a script for the session's next launches. It runs after the owner has approved it.
    ProposeScript = Put "/v1/sessions/" session "/script-proposal" (ScriptProposal) => 200 Document(ScriptList);
    /// Records that a person looked at the session, once a minute at most.
    Observe = Post "/v1/sessions/" session "/observed" => 200 Document(SessionView);
    /// Queues a turn.
    Prompt = Post "/v1/sessions/" session "/prompt" (PromptRequest) => 202 Document(PromptAccepted);
    /// Cancels the running turn.
    Cancel = Post "/v1/sessions/" session "/cancel" => 202 Document(SessionView);
    /// Drops a queued turn, or cancels the running turn.
    CancelTurn = Delete "/v1/sessions/" session "/turns/" turn => 202 Document(SessionView);
    /// Stops a session, or cancels its restart.
    Stop = Post "/v1/sessions/" session "/stop" { wait: Wait } => 202 Document(StopView);
    /// Launches a session again and continues its conversation, or begins a new conversation.
    Resume = Post "/v1/sessions/" session "/resume"
        { wait: Wait, new_conversation: bool, wait_for_prerequisites: PrerequisiteWait, force: bool,
            degraded: bool }
        => 202 Document(SessionView);
    /// Answers a permission request of the agent.
    Permit = Post "/v1/sessions/" session "/permissions/" permission (PermissionAnswer) => 200 Document(SessionView);
    /// Answers a request of the agent that only an editor can carry out.
    AnswerRequest = Post "/v1/sessions/" session "/requests" (RequestAnswer) => 200 Document(SessionView);
    /// Sends a message of the Agent Client Protocol. The answer to `initialize` is in the body, and every other answer
    /// comes through the stream.
    AcpSend = Post "/acp" { agent: String, wait_for_prerequisites: PrerequisiteWait, force: bool, degraded: bool }
        (AcpMessage) => 200 Document(AcpMessage);
    /// Streams the messages for a client of the Agent Client Protocol, or begins a connection over WebSocket.
    AcpStream = Get "/acp" { agent: String, wait_for_prerequisites: PrerequisiteWait, force: bool, degraded: bool }
        => 200 Stream(AcpMessage);
    /// Ends a connection of the Agent Client Protocol. Its sessions continue.
    AcpEnd = Delete "/acp" { agent: String, wait_for_prerequisites: PrerequisiteWait, force: bool, degraded: bool }
        => 202 Nothing;
}

/// Writes the method and the path.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method(), self.path())
    }
}

/// Writes the method, the path and the query.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.route().method(), self.address())
    }
}

fn is_parameter(part: &str) -> bool {
    part.starts_with('{')
}

/// Returns the parts of a path. Slashes before the first part do not count.
fn parts(path: &str) -> std::str::Split<'_, char> {
    path.trim_start_matches('/').split('/')
}

fn parameters(route: Route, path: &str) -> impl Iterator<Item = String> {
    let named = parts(route.path()).zip(parts(path)).filter(|(wanted, _)| is_parameter(wanted));
    named.map(|(_, part)| part.to_owned())
}

/// Returns the routes with this path.
fn at(path: &str) -> impl Iterator<Item = Route> {
    let fits = move |route: &Route| {
        let (mut wanted, mut given) = (parts(route.path()), parts(path));
        loop {
            match (wanted.next(), given.next()) {
                (None, None) => return true,
                (Some(wanted), Some(given)) if is_parameter(wanted) || wanted == given => {}
                _ => return false,
            }
        }
    };
    Route::ALL.iter().copied().filter(fits)
}

/// Returns the route of a method and a path without query. The first match in the table counts. `HEAD` finds the route
/// of `GET` (RFC 9110 section 9.3.2).
pub fn find(method: &str, path: &str) -> Option<Route> {
    let method = if method == HEAD { Method::Get.as_str() } else { method };
    at(path).find(|route| route.method().as_str() == method)
}

/// The method whose answer has the headers of `GET` and no body.
const HEAD: &str = "HEAD";

/// Lists the methods of a path, as the header `Allow` has them; `None` for an unknown path.
pub fn allowed(path: &str) -> Option<String> {
    let mut methods = Vec::new();
    for method in at(path).map(Route::method) {
        methods.push(method.as_str());
        methods.extend((method == Method::Get).then_some(HEAD));
    }
    (!methods.is_empty()).then(|| methods.join(", "))
}

/// Returns the session that a path names, whether or not a route has this path.
pub fn session_in(path: &str) -> Option<&str> {
    let mut given = parts(path);
    for wanted in parts(Route::Session.path()) {
        let part = given.next()?;
        if is_parameter(wanted) {
            return Some(part);
        }
        if wanted != part {
            return None;
        }
    }
    None
}
