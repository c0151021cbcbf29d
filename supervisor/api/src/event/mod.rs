//! Records of a session's journal. The same records are the events that clients stream.
//!
//! A record is one line of JSON:
//! `{"seq":7,"time":"2026-01-01T00:00:00.000001Z","kind":"turn.ended","data":{...}}`. `seq` counts from 1
//! without gaps in a session. `data` is an object that depends on `kind`. For `agent.out` and `agent.in`,
//! `data` is the JSON-RPC message itself, byte for byte.

mod agent;
mod cause;
mod environment;
mod place;
#[cfg(feature = "schema")]
mod schema;
mod turn;

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::bytes::ByteString;
use crate::completion::{AnswerChecked, Completion, SessionCompleting};
use crate::context::{ContextChanged, ContextLoaded, HintChanged, ProgressReported, SessionObserved, TitleChanged};
use crate::degraded::LaunchDegraded;
use crate::doc::Named;
use crate::facts::FactsObserved;
use crate::id::SessionId;
use crate::prerequisite::{PrerequisitesChanged, PrerequisitesChecked, PrerequisitesForced, Requester};
use crate::repository::RepositoryChanged;
use crate::scripts::ScriptProposed;
use crate::session::{Condition, SessionSpec};
use crate::spec::SpecChanged;
use crate::staleness::StalenessFound;
use crate::workflow::{ActiveWorkflow, WorkflowChanged, WorkflowFailed};

pub use agent::{
    AgentDropped, AgentExited, AgentReplayed, AgentResumed, AgentStarted, AgentUnusable, Exceeded, KeeperStarted, Text,
};
pub use cause::Cause;
pub use environment::{EnvironmentBuilt, EnvironmentRefreshed, StaleVariable, VariableChange, VariableChangeKind};
pub use place::{PlaceChanged, PlaceHost, PlaceRead, PlaceState};
pub use turn::{
    AnsweredBy, PermissionOutcome, PermissionRequested, PermissionResolved, Synthetic, SyntheticCause, TurnCancelling,
    TurnEnded, TurnLimited, TurnQueued, TurnReleased, TurnSilent, TurnStarted,
};

/// One record with its position in the journal.
#[derive(Debug, Clone)]
pub struct Event {
    /// Sequence number in the session, counted from 1 without gaps.
    pub seq: u64,
    /// Time at which the record was written.
    pub time: Timestamp,
    /// Kind and data of the record.
    pub body: Body,
}

/// The outer fields of a record's line. `data` stays unparsed until a reader needs it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Envelope<'a> {
    /// Sequence number in the session, counted from 1 without gaps.
    pub seq: u64,
    /// Time at which the record was written.
    pub time: Timestamp,
    /// The record's kind, for example `turn.ended`.
    #[serde(borrow)]
    pub kind: std::borrow::Cow<'a, str>,
    /// The record's data as JSON text.
    #[serde(borrow)]
    pub data: &'a RawValue,
}

/// Error for a line that is not a valid record.
#[derive(Debug, thiserror::Error)]
pub enum InvalidEvent {
    /// The line is not JSON, or lacks a field of the envelope.
    #[error("the line is not a record")]
    Envelope(#[source] serde_json::Error),
    /// The data does not fit the record's kind.
    #[error("record {seq} of kind {kind:?} has data that does not fit the kind")]
    Data { seq: u64, kind: String, source: serde_json::Error },
}

macro_rules! bodies {
    ($($(#[doc = $doc:literal])+ $kind:literal => $name:ident($data:ty),)*) => {
        /// Kind and data of a record. This is the only list of kinds.
        #[derive(Debug, Clone)]
        #[allow(clippy::large_enum_variant, reason = "the sizes depend on the features that other crates enable")]
        pub enum Body {
            $($(#[doc = $doc])+ $name($data),)*
            /// A kind newer than this reader. The data is kept unchanged.
            Unknown { kind: String, data: Box<RawValue> },
        }

        impl Body {
            /// All kinds that this version writes, in the order of their declaration.
            pub const KINDS: &'static [Named] = &[$(Named { name: $kind, doc: &[$($doc,)+] },)*];

            /// Returns each kind with its meaning and the schema of its data.
            #[cfg(feature = "schema")]
            pub fn schemas(generator: &mut schemars::SchemaGenerator) -> Vec<(&'static str, String, schemars::Schema)> {
                let mut schemas = Vec::new();
                $(
                    let meaning = crate::doc::text(&[$($doc,)+]);
                    schemas.push(($kind, meaning, generator.subschema_for::<$data>()));
                )*
                schemas
            }

            /// Returns the kind as the record's `kind` field has it.
            pub fn kind(&self) -> &str {
                match self {
                    $(Self::$name(_) => $kind,)*
                    Self::Unknown { kind, .. } => kind,
                }
            }

            /// Returns the data as the record's `data` field has it.
            pub fn to_data(&self) -> Box<RawValue> {
                match self {
                    $(Self::$name(data) => serde_json::value::to_raw_value(data)
                        .expect("a record's data has string keys and no failing serializer"),)*
                    Self::Unknown { data, .. } => data.clone(),
                }
            }

            /// Parses the data of a record by its kind. An unknown kind is kept as [`Body::Unknown`].
            fn parse(kind: &str, data: &RawValue) -> Result<Self, serde_json::Error> {
                // These two kinds make up nearly all of a journal. Their data is kept as raw text, so no
                // parsing is needed.
                match kind {
                    "agent.out" => return Ok(Self::AgentOut(data.to_owned())),
                    "agent.in" => return Ok(Self::AgentIn(data.to_owned())),
                    _ => {}
                }
                Ok(match kind {
                    $($kind => Self::$name(serde_json::from_str(data.get())?),)*
                    _ => Self::Unknown { kind: kind.to_owned(), data: data.to_owned() },
                })
            }
        }
    };
}

bodies! {
    /// The session was created. This is the first record of every journal.
    "session.created" => SessionCreated(SessionCreated),
    /// A caller changed the session's specification.
    "spec.changed" => SpecChanged(SpecChanged),
    /// A repository of the session was cloned, reset or removed, or that began or failed.
    "repository.changed" => RepositoryChanged(RepositoryChanged),
    /// A workflow came into force, with its approved description, or none is in force any more. A running agent is
    /// started again.
    "workflow.changed" => WorkflowChanged(WorkflowChanged),
    /// The requested workflow could not come into force.
    "workflow.failed" => WorkflowFailed(WorkflowFailed),
    /// A launch begins. Records of kind `condition` report its steps.
    "launch.started" => LaunchStarted(LaunchStarted),
    /// A launch left out parts that could not be provided, because a caller allowed that.
    "launch.degraded" => LaunchDegraded(LaunchDegraded),
    /// A launch failed before the conversation was ready.
    "launch.failed" => LaunchFailed(LaunchFailed),
    /// A condition changed.
    "condition" => Condition(Condition),
    /// The session's prerequisites were checked for a launch.
    "prerequisites.checked" => PrerequisitesChecked(PrerequisitesChecked),
    /// A prerequisite's outcome changed while the agent runs.
    "prerequisites.changed" => PrerequisitesChanged(PrerequisitesChanged),
    /// A caller forced the launch to continue without prerequisites that are not met.
    "prerequisites.forced" => PrerequisitesForced(PrerequisitesForced),
    /// The environment was built. The record holds names of variables and no values.
    "environment.built" => EnvironmentBuilt(EnvironmentBuilt),
    /// Providers were called again for the parts of the running agent's environment that expire.
    "environment.refreshed" => EnvironmentRefreshed(EnvironmentRefreshed),
    /// agentd read the facts about the session's directory and its repository. A reading outside of a launch is
    /// recorded only if the facts differ from the last ones.
    "facts.observed" => FactsObserved(FactsObserved),
    /// A launch found that the session is stale.
    "staleness.found" => StalenessFound(StalenessFound),
    /// The keeper started. From this record on the keeper writes the journal. Written by the keeper.
    "keeper.started" => KeeperStarted(KeeperStarted),
    /// The agent's process started. Written by the keeper.
    "agent.started" => AgentStarted(AgentStarted),
    /// The state of the agent's launch on its place changed. Present only if the agent runs on a place.
    "place.changed" => PlaceChanged(Box<PlaceChanged>),
    /// One line of JSON that the agent wrote to stdout, verbatim.
    "agent.out" => AgentOut(Box<RawValue>),
    /// One line that was sent to the agent, verbatim.
    "agent.in" => AgentIn(Box<RawValue>),
    /// A line on the agent's stdout that is not JSON, for example a banner or debug output.
    "agent.noise" => AgentNoise(Text),
    /// A line that the agent wrote to stderr.
    "agent.stderr" => AgentStderr(Text),
    /// The agent replayed lines that the journal already has. The keeper left them out. Written by the keeper.
    "agent.replayed" => AgentReplayed(AgentReplayed),
    /// Lines of the agent were left out of the journal. Written by the keeper.
    "agent.dropped" => AgentDropped(AgentDropped),
    /// The agent's process is alive but cannot work any more. agentd ends the process and treats it as a crash.
    "agent.unusable" => AgentUnusable(AgentUnusable),
    /// A new keeper continues with an agent that stayed on its place.
    "agent.resumed" => AgentResumed(AgentResumed),
    /// The journal has all output of an agent that stays on its place up to a position. Precedes no output of the same
    /// read.
    "place.read" => PlaceRead(PlaceRead),
    /// The agent's process and all its descendants ended. Written once for each launch, by the keeper or, if
    /// the keeper could not, by the daemon.
    "agent.exited" => AgentExited(AgentExited),
    /// The conversation with the agent is open.
    "conversation.opened" => ConversationOpened(ConversationOpened),
    /// A prompt was accepted as a turn.
    "turn.queued" => TurnQueued(TurnQueued),
    /// The turn's prompt was sent to the agent.
    "turn.started" => TurnStarted(TurnStarted),
    /// The agent met a rate limit of its provider. The turn goes back to the front of the queue.
    "turn.limited" => TurnLimited(TurnLimited),
    /// A client requested that a limited turn is sent again now.
    "turn.released" => TurnReleased(TurnReleased),
    /// The turn ended.
    "turn.ended" => TurnEnded(TurnEnded),
    /// The answer of a turn with a schema was checked. If it does not satisfy the schema, the agent is asked once more.
    "answer.checked" => AnswerChecked(AnswerChecked),
    /// The running turn is being cancelled, because a client requested it or the turn reached its limit.
    "turn.cancelling" => TurnCancelling(TurnCancelling),
    /// The agent asked for permission, or agentd asked whether to continue a stale session.
    "permission.requested" => PermissionRequested(PermissionRequested),
    /// A permission request was answered, expired or was cancelled.
    "permission.resolved" => PermissionResolved(PermissionResolved),
    /// The agent has sent nothing during the running turn for the configured time.
    "turn.silent" => TurnSilent(TurnSilent),
    /// A client requested that the session stops, or a limit stops the session.
    "stop.requested" => StopRequested(StopRequested),
    /// The prompts of a session that is not interactive are done, and its agent is being ended.
    "session.completing" => SessionCompleting(SessionCompleting),
    /// A session that was not interactive has its result.
    "session.completed" => SessionCompleted(Box<Completion>),
    /// A caller changed the session's context.
    "context.changed" => ContextChanged(ContextChanged),
    /// A launch loaded the session's context and looked for its files.
    "context.loaded" => ContextLoaded(ContextLoaded),
    /// A caller set or removed the environment hint.
    "hint.changed" => HintChanged(HintChanged),
    /// A caller set or removed the title.
    "title.changed" => TitleChanged(TitleChanged),
    /// The agent, or another caller, reported progress.
    "progress.reported" => ProgressReported(ProgressReported),
    /// A person looked at the session. Written once a minute at most.
    "session.observed" => SessionObserved(SessionObserved),
    /// A caller proposed a script for the session's next launches. The record does not contain the script.
    "script.proposed" => ScriptProposed(ScriptProposed),
    /// A daemon took over the session from a daemon that ended unexpectedly. Meanwhile the session ran without
    /// a daemon.
    "daemon.recovered" => DaemonRecovered(DaemonRecovered),
    /// The end of the journal was lost or damaged. The record says how the journal was repaired.
    "journal.repaired" => JournalRepaired(JournalRepaired),
}

impl Event {
    /// Parses one line of a journal, without its newline.
    pub fn parse(line: &[u8]) -> Result<Self, InvalidEvent> {
        let envelope: Envelope<'_> = serde_json::from_slice(line).map_err(InvalidEvent::Envelope)?;
        Self::from_envelope(&envelope)
    }

    /// Parses the data of an envelope.
    pub fn from_envelope(envelope: &Envelope<'_>) -> Result<Self, InvalidEvent> {
        let body = Body::parse(&envelope.kind, envelope.data).map_err(|source| InvalidEvent::Data {
            seq: envelope.seq,
            kind: envelope.kind.clone().into_owned(),
            source,
        })?;
        Ok(Self { seq: envelope.seq, time: envelope.time, body })
    }
}

/// Data of the record `session.created`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionCreated {
    /// The specification of the session, as requested.
    pub spec: SessionSpec,
    /// The `Idempotency-Key` of the request that created the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The session whose agent requested this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// The conversation of another session that this session continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<Continuation>,
    /// The process that requested the session, if a client did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

/// The conversation that a new session takes over from its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Continuation {
    /// The agent's id for the conversation (ACP `sessionId`).
    pub conversation: String,
    /// `HOME` of the environment in which the conversation was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// Variables that name where the agent keeps the conversation. Null for a variable that is not set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<String, Option<ByteString>>,
    /// Creation time of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// Whether the conversation began outside of agentd, so that the journal has no part of the history.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_adopted: bool,
    /// Whether the agent of the other session copies conversations (ACP `session/fork`).
    #[serde(default)]
    pub can_fork: bool,
    /// Directory in which the agent opened the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The workflow in force, whose instructions the conversation has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<Box<ActiveWorkflow>>,
}

/// Why a launch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LaunchReason {
    /// The session was created.
    Create,
    /// A client resumed the session.
    Resume,
    /// The agent crashed, and the session's policy is to restart it.
    Restart,
    /// Another workflow came into force, or none is in force any more.
    Workflow,
    /// A reason newer than this reader.
    #[serde(other)]
    Unknown,
}

impl LaunchReason {
    /// Returns the name that records have, or `other` for a reason newer than this reader.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Resume => "resume",
            Self::Restart => "restart",
            Self::Workflow => "workflow",
            Self::Unknown => "other",
        }
    }

    /// Reports whether agentd starts the agent again by itself, and not at a client's request.
    pub fn is_own(self) -> bool {
        matches!(self, Self::Restart | Self::Workflow)
    }
}

/// Data of the record `launch.started`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaunchStarted {
    /// Number of the launch in the session, counted from 1.
    pub launch: u64,
    /// Why the launch began.
    pub reason: LaunchReason,
    /// Whether the client requested a new conversation instead of the existing one.
    #[serde(default)]
    pub fresh: bool,
    /// Time until which the launch waits for prerequisites that are not met. Absent if the launch does not
    /// wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_until: Option<Timestamp>,
    /// The caller that forced the launch to ignore prerequisites.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced_by: Option<Requester>,
    /// The caller that allowed the launch to leave out failed parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degraded_by: Option<Requester>,
    /// The process that requested the launch, if a client did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
    /// Trace context of the request that began the launch, in the form of the header `traceparent` (W3C Trace
    /// Context). Absent without traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_parent: Option<String>,
}

impl LaunchStarted {
    /// Makes the record of a launch that neither waits for prerequisites nor leaves anything out.
    pub fn new(launch: u64, reason: LaunchReason, fresh: bool) -> Self {
        Self {
            launch,
            reason,
            fresh,
            wait_until: None,
            forced_by: None,
            degraded_by: None,
            requester: None,
            trace_parent: None,
        }
    }
}

/// Data of the record `launch.failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaunchFailed {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// The reason of the condition that failed: one CamelCase word for programs.
    pub reason: String,
    /// Description of the failure for people.
    pub message: String,
}

/// Data of the record `journal.repaired`: damage to the journal's end, for example by a power failure or a
/// faulty disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JournalRepaired {
    /// Number of bytes that were not valid records. They were moved to `journal.torn` in the session's
    /// directory.
    #[serde(default)]
    pub cut_bytes: u64,
    /// Number of records that `session.json` had seen and the journal has lost.
    #[serde(default)]
    pub lost_records: u64,
    /// Whether the session's state was rebuilt from the journal. Otherwise the state of `session.json` was
    /// kept, because the beginning of the journal is no longer stored.
    #[serde(default)]
    pub rebuilt: bool,
    /// Description of the repair for people.
    pub detail: String,
}

/// How a conversation was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OpenedBy {
    /// As a new conversation (ACP `session/new`).
    New,
    /// By loading the former conversation (ACP `session/load`).
    Load,
    /// By resuming the former conversation (ACP `session/resume`).
    Resume,
    /// As a copy of another session's conversation (ACP `session/fork`).
    Fork,
    /// As a new conversation, because the agent cannot load or resume the former one, or failed to. The agent
    /// does not know the former conversation.
    NewAfterLoss,
    /// A way newer than this reader.
    #[serde(other)]
    Unknown,
}

/// Data of the record `conversation.opened`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConversationOpened {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// The agent's id for the conversation (ACP `sessionId`).
    pub conversation: String,
    /// How the conversation was opened.
    pub by: OpenedBy,
    /// The working directory of the conversation. Agents find a conversation again only with the same directory
    /// and home.
    #[serde(default)]
    pub directory: PathBuf,
    /// The agent's home directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// Variables that name where the agent keeps the conversation. Null for a variable that is not set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<String, Option<ByteString>>,
}

/// Data of the record `stop.requested`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StopRequested {
    /// Why the session stops, for people.
    pub reason: String,
    /// The client or the limit that stops the session.
    #[serde(flatten)]
    pub cause: Cause,
}

/// Data of the record `daemon.recovered`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DaemonRecovered {
    /// Version of the daemon that took over.
    pub version: String,
    /// Whether the agent was still alive.
    pub agent_alive: bool,
    /// Number of processes that an ended agent had left and that the daemon killed.
    #[serde(default)]
    pub killed: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_said_is_kept_to_the_byte() {
        let line =
            br#"{"seq":3,"time":"2026-01-01T00:00:00Z","kind":"agent.out","data":{"b":1,  "a":1.50,"new":null}}"#;
        let event = Event::parse(line).unwrap();
        let Body::AgentOut(message) = &event.body else { panic!("{event:?}") };
        assert_eq!(message.get(), r#"{"b":1,  "a":1.50,"new":null}"#);
        assert_eq!(event.body.to_data().get(), message.get());
    }

    #[test]
    fn a_kind_from_the_future_is_kept() {
        let event = Event::parse(br#"{"seq":3,"time":"2026-01-01T00:00:00Z","kind":"moon.rose","data":[1]}"#).unwrap();
        assert_eq!((event.body.kind(), event.body.to_data().get()), ("moon.rose", "[1]"));
    }

    #[test]
    fn a_known_kind_with_other_data_is_an_error_that_names_it() {
        let error =
            Event::parse(br#"{"seq":3,"time":"2026-01-01T00:00:00Z","kind":"turn.ended","data":{}}"#).unwrap_err();
        assert!(error.to_string().contains("record 3 of kind \"turn.ended\""), "{error}");
    }
}
