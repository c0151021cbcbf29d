//! The journal's records, which are also the events that clients see: one type for both, because the journal is the stream.
//!
//! A record is one line of JSON: `{"seq":7,"time":"2026-01-01T00:00:00.000001Z","kind":"turn.ended","data":{...}}`.
//! `seq` counts from 1 without gap in a session. `data` is an object of the kind, or, for `agent.out` and `agent.in`,
//! the JSON-RPC message itself, to the byte.

mod cause;
mod environment;

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::bytes::ByteString;
use crate::id::{PermissionId, SessionId, TurnId};
use crate::isolation::Isolated;
use crate::prerequisite::{PrerequisitesChanged, PrerequisitesChecked, PrerequisitesForced, Requester};
use crate::session::{Condition, PermissionRequest, SessionSpec};

pub use cause::Cause;
pub use environment::{EnvironmentBuilt, EnvironmentRefreshed, StaleVariable, VariableChange, VariableChangeKind};

/// One record with its place in the journal.
#[derive(Debug, Clone)]
pub struct Event {
    /// From 1, without gap.
    pub seq: u64,
    pub time: Timestamp,
    pub body: Body,
}

/// The envelope as it stands on the line; `data` is read by kind, later and only where somebody cares.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Envelope<'a> {
    pub seq: u64,
    pub time: Timestamp,
    #[serde(borrow)]
    pub kind: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    pub data: &'a RawValue,
}

/// Why a line is not a record.
#[derive(Debug, thiserror::Error)]
pub enum InvalidEvent {
    #[error("the line is not a record")]
    Envelope(#[source] serde_json::Error),
    #[error("record {seq} of kind {kind:?} has data of another form")]
    Data { seq: u64, kind: String, source: serde_json::Error },
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $kind:literal => $name:ident($data:ty),)*) => {
        /// What a record says. The kinds are listed here and nowhere else.
        #[derive(Debug, Clone)]
        pub enum Body {
            $($(#[$doc])* $name($data),)*
            /// A kind newer than this reader, kept as it is.
            Unknown { kind: String, data: Box<RawValue> },
        }

        impl Body {
            /// The kind, as it stands in the record.
            pub fn kind(&self) -> &str {
                match self {
                    $(Self::$name(_) => $kind,)*
                    Self::Unknown { kind, .. } => kind,
                }
            }

            /// The data, as it stands in the record.
            pub fn to_data(&self) -> Box<RawValue> {
                match self {
                    $(Self::$name(data) => serde_json::value::to_raw_value(data)
                        .expect("a record's data has string keys and no failing serializer"),)*
                    Self::Unknown { data, .. } => data.clone(),
                }
            }

            fn parse(kind: &str, data: &RawValue) -> Result<Self, serde_json::Error> {
                // Nearly all of a journal is this, and what is kept verbatim need not be read again.
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
    /// The first record of every journal.
    "session.created" => SessionCreated(SessionCreated),
    /// A launch begins: its steps follow as conditions.
    "launch.started" => LaunchStarted(LaunchStarted),
    /// A launch ended before the conversation was ready.
    "launch.failed" => LaunchFailed(LaunchFailed),
    /// A condition changed.
    "condition" => Condition(Condition),
    /// What the session needs of the world was looked at.
    "prerequisites.checked" => PrerequisitesChecked(PrerequisitesChecked),
    /// The same while the agent runs, where something is other than it was.
    "prerequisites.changed" => PrerequisitesChanged(PrerequisitesChanged),
    /// The launch goes on without what is missing, as somebody asked.
    "prerequisites.forced" => PrerequisitesForced(PrerequisitesForced),
    /// The environment was built. Names only.
    "environment.built" => EnvironmentBuilt(EnvironmentBuilt),
    /// What of the running agent's environment holds for a limited time was asked for again.
    "environment.refreshed" => EnvironmentRefreshed(EnvironmentRefreshed),
    /// Written by the keeper: it holds the journal from here on.
    "keeper.started" => KeeperStarted(KeeperStarted),
    /// Written by the keeper: the agent's process runs.
    "agent.started" => AgentStarted(AgentStarted),
    /// One line the agent wrote to stdout that is JSON: verbatim.
    "agent.out" => AgentOut(Box<RawValue>),
    /// One line the agent was sent: verbatim.
    "agent.in" => AgentIn(Box<RawValue>),
    /// A line on the agent's stdout that is not JSON: a banner, debug output.
    "agent.noise" => AgentNoise(Text),
    "agent.stderr" => AgentStderr(Text),
    /// Written by the keeper: lines that were recognised as a replay of what the journal has already.
    "agent.replayed" => AgentReplayed(AgentReplayed),
    /// Written by the keeper: lines of the agent that are not in the journal.
    "agent.dropped" => AgentDropped(AgentDropped),
    /// The agent's process lives and can do nothing any more: it is ended, and that counts as a crash.
    "agent.unusable" => AgentUnusable(AgentUnusable),
    /// Written by the keeper, or by the daemon where the keeper could not: the agent's process ended, and every descendant with it. Once a
    /// launch.
    "agent.exited" => AgentExited(AgentExited),
    /// The conversation with the agent is open.
    "conversation.opened" => ConversationOpened(ConversationOpened),
    "turn.queued" => TurnQueued(TurnQueued),
    "turn.started" => TurnStarted(TurnStarted),
    "turn.ended" => TurnEnded(TurnEnded),
    /// The running turn is being cancelled: a client asked for it, or it reached its limit.
    "turn.cancelling" => TurnCancelling(TurnCancelling),
    "permission.requested" => PermissionRequested(PermissionRequested),
    "permission.resolved" => PermissionResolved(PermissionResolved),
    /// The running turn's agent has said nothing for a while.
    "turn.silent" => TurnSilent(TurnSilent),
    /// A client asked for the session to be stopped, or a limit stops it.
    "stop.requested" => StopRequested(StopRequested),
    /// A daemon took the session over from one that ended without a word; what stands before went on without it.
    "daemon.recovered" => DaemonRecovered(DaemonRecovered),
    /// The end of the journal was lost or damaged, and what was done about it.
    "journal.repaired" => JournalRepaired(JournalRepaired),
}

impl Event {
    /// Reads one line, without its newline.
    pub fn parse(line: &[u8]) -> Result<Self, InvalidEvent> {
        let envelope: Envelope<'_> = serde_json::from_slice(line).map_err(InvalidEvent::Envelope)?;
        Self::from_envelope(&envelope)
    }

    /// Interprets an envelope.
    pub fn from_envelope(envelope: &Envelope<'_>) -> Result<Self, InvalidEvent> {
        let body = Body::parse(&envelope.kind, envelope.data).map_err(|source| InvalidEvent::Data {
            seq: envelope.seq,
            kind: envelope.kind.clone().into_owned(),
            source,
        })?;
        Ok(Self { seq: envelope.seq, time: envelope.time, body })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionCreated {
    pub spec: SessionSpec,
    /// The `Idempotency-Key` of the request that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The session whose agent asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// The process that asked for it, where a client did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

/// Why a launch was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaunchReason {
    Create,
    Resume,
    /// The agent crashed, and the session's policy is to start it again.
    Restart,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchStarted {
    /// From 1.
    pub launch: u64,
    pub reason: LaunchReason,
    /// Asked to begin a new conversation, and not to continue the one there is.
    #[serde(default)]
    pub fresh: bool,
    /// Until when it waits for prerequisites that are missing; without it, it does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_until: Option<Timestamp>,
    /// Who asked that it be launched whatever is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced_by: Option<Requester>,
    /// The process that asked for it, where a client did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

impl LaunchStarted {
    /// One that neither waits nor is forced.
    pub fn new(launch: u64, reason: LaunchReason, fresh: bool) -> Self {
        Self { launch, reason, fresh, wait_until: None, forced_by: None, requester: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFailed {
    pub launch: u64,
    /// One CamelCase word, that of the condition that failed.
    pub reason: String,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperStarted {
    pub pid: u32,
    /// The process's start time, from an unspecified epoch (Linux: clock ticks since boot, proc(5) field 22): with the
    /// pid it names one process.
    pub start_time: u64,
    pub version: String,
    /// The version of its frame protocol.
    pub protocol: u32,
    pub launch: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStarted {
    pub launch: u64,
    pub pid: u32,
    /// As in `keeper.started`.
    pub start_time: u64,
    pub command: Vec<String>,
    /// What the agent is kept from.
    #[serde(default, skip_serializing_if = "Isolated::is_none")]
    pub isolation: Isolated,
}

/// Some text, and whether it was cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    pub text: ByteString,
    /// How many bytes of the line were left out, where it was longer than is kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cut: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReplayed {
    pub lines: u64,
    pub bytes: u64,
}

/// Notifications, noise or stderr that were left out. Requests and responses never are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentDropped {
    pub lines: u64,
    pub bytes: u64,
    /// For people: the disk was full, the journal has reached its bound.
    pub reason: String,
}

/// What a power cut or a damaged disk did to the journal's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalRepaired {
    /// Bytes that were no records. They are in `journal.torn` in the session's directory.
    #[serde(default)]
    pub cut_bytes: u64,
    /// Records that `session.json` knew of and the journal has lost.
    #[serde(default)]
    pub lost_records: u64,
    /// The state was made again from the journal. Otherwise what `session.json` had was kept, because the journal's beginning is not
    /// kept any more.
    #[serde(default)]
    pub rebuilt: bool,
    /// For people.
    pub detail: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentUnusable {
    pub launch: u64,
    /// One CamelCase word for programs: `ConversationGone`.
    pub reason: String,
    /// For people.
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentExited {
    pub launch: u64,
    /// The exit status, where it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// The signal's number, where one ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The program could not be executed at all, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_error: Option<String>,
    /// How many other processes of its tree had to be killed.
    #[serde(default)]
    pub killed: u32,
    /// Whether a stop had been asked for.
    #[serde(default)]
    pub requested: bool,
    /// Why it ended though nobody had asked for that: no daemon came back, a limit was passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it had more of than it may; `reason` has the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exceeded: Option<Exceeded>,
}

/// What a session's limit is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exceeded {
    Memory,
    Tasks,
    /// One newer than this reader.
    #[serde(other)]
    Unknown,
}

/// How a conversation was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OpenedBy {
    New,
    Load,
    Resume,
    /// The agent can neither load nor resume, or could not: it begins anew, and knows nothing of what was said before.
    NewAfterLoss,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationOpened {
    pub launch: u64,
    /// ACP `sessionId`.
    pub conversation: String,
    pub by: OpenedBy,
    /// The directory it was opened in, and the home: with others, agents do not find it again.
    #[serde(default)]
    pub directory: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnQueued {
    pub turn: TurnId,
    pub prompt: String,
    /// The `Idempotency-Key` of the request that queued it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The process that asked for it, where a client did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Requester>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnStarted {
    pub turn: TurnId,
    /// The id of the `session/prompt` request that stands next in the journal.
    pub rpc: u64,
    /// What agentd told the agent in front of the prompt, after a resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Why agentd and not the agent ended a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyntheticCause {
    /// The agent's process ended before it answered.
    AgentExited,
    /// The agent answered the prompt with an error.
    AgentError,
    /// It was cancelled while it waited.
    Dropped,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEnded {
    pub turn: TurnId,
    /// ACP `stopReason`, as the agent gave it; absent where it gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<Synthetic>,
    /// Tool calls that had begun and whose end was not seen (ACP `toolCallId`): they are closed with this, as interrupted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interrupted_tool_calls: Vec<String>,
}

/// What is known of a turn that the agent did not end itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synthetic {
    pub cause: SyntheticCause,
    pub detail: String,
    /// What the agent wrote to stderr last in this turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnSilent {
    pub turn: TurnId,
    /// For how long nothing was heard.
    pub seconds: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnCancelling {
    pub turn: TurnId,
    #[serde(flatten)]
    pub cause: Cause,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PermissionRequested {
    pub request: PermissionRequest,
    /// The id of the agent's JSON-RPC request; `{"verbatim": TEXT}` where no JSON value holds it exactly as it was written.
    pub rpc: serde_json::Value,
}

/// How a permission request ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PermissionOutcome {
    /// The option with this id was chosen.
    Selected(String),
    Cancelled,
}

/// Who answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnsweredBy {
    Client,
    Policy,
    /// Nobody answered in time.
    Expiry,
    /// The turn was cancelled or had ended.
    Cancel,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionResolved {
    pub permission: PermissionId,
    pub outcome: PermissionOutcome,
    pub by: AnsweredBy,
    #[serde(flatten)]
    pub cause: Cause,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequested {
    /// For people.
    pub reason: String,
    #[serde(flatten)]
    pub cause: Cause,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonRecovered {
    pub version: String,
    /// Whether the agent was found alive.
    pub agent_alive: bool,
    /// How many processes of an agent that had ended were found, and killed.
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
