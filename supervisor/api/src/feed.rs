//! The feed: one stream of the events of all sessions and of the daemon (`GET /v1/events`).
//!
//! An event of a session is the record of its journal, in another envelope. Further kinds of events belong to the
//! feed alone ([`Notice`], [`MARKERS`]).

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::audit::AuditRecord;
use crate::doc::Named;
use crate::id::{AgentName, PermissionId, SessionId, SessionName, TurnId};
use crate::label::Labels;
use crate::plugin::PluginProblem;
use crate::prerequisite::Requester;
use crate::problem::Problem;
use crate::session::{ConditionStatus, ConditionType, Phase, SessionView};

/// One event of the feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FeedEvent {
    /// Position in the feed. Cursors rise, also over restarts of the daemon, and are not consecutive.
    pub cursor: u64,
    /// The session that the event belongs to. Absent for events of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Sequence number of the record in the session's journal. Absent for events that no journal has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Time of the event.
    pub time: Timestamp,
    /// Kind of the event.
    pub kind: String,
    /// Data of the event. Its fields depend on the kind.
    pub data: serde_json::Value,
}

/// The compact state of a session. It has no title: a title can quote a prompt, and the feed outlives the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionBrief {
    /// Id of the session.
    pub id: SessionId,
    /// Name of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SessionName>,
    /// The session whose agent created this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// Configured name of the agent. Absent if the session has its own command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
    /// Working directory.
    pub directory: PathBuf,
    /// Name of the place of the last agent. Absent if that is this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Labels of the session.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Phase of the session.
    pub phase: Phase,
    /// Why the session is in this phase, if that needs an explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The running turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Permission requests that wait for an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<PermissionId>,
    /// The conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<BriefCondition>,
}

/// A condition without its message and its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BriefCondition {
    /// The condition.
    #[serde(rename = "type")]
    pub kind: ConditionType,
    /// Whether the condition holds.
    pub status: ConditionStatus,
    /// One CamelCase word for programs.
    pub reason: String,
}

impl From<&SessionView> for SessionBrief {
    fn from(view: &SessionView) -> Self {
        let SessionView { spec, status, .. } = view;
        let brief = |condition: &crate::session::Condition| BriefCondition {
            kind: condition.kind,
            status: condition.status,
            reason: condition.reason.clone(),
        };
        Self {
            id: view.id.clone(),
            name: spec.name.clone(),
            parent: view.parent.clone(),
            agent: spec.agent.clone(),
            directory: spec.directory.clone(),
            place: status.place.as_ref().map(|place| place.name.clone()),
            labels: spec.labels.clone(),
            phase: status.phase,
            message: status.message.clone(),
            turn: status.turn.as_ref().map(|turn| turn.id.clone()),
            permissions: status.permissions.iter().map(|request| request.id.clone()).collect(),
            conditions: status.conditions.iter().map(brief).collect(),
        }
    }
}

/// The daemon has started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DaemonStarted {
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
}

/// The daemon is ending in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DaemonStopping {}

/// A configuration was put in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigurationReloaded {
    /// Dotted keys that changed.
    pub changed: Vec<String>,
    /// Number of loaded plugins.
    pub plugins: usize,
    /// The mistakes that were found, each with its position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<String>,
}

/// A configuration was refused, and the previous configuration stays in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigurationRefused {
    /// The reason.
    pub problem: Problem,
}

/// The plugins cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginsFailed {
    /// Description of the error for people.
    pub detail: String,
}

/// A plugin cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginFailed {
    /// Name of the plugin.
    pub plugin: String,
    /// The reason, as in the plugin's view.
    pub problem: PluginProblem,
}

/// A plugin is not called for a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginSuspended {
    /// Name of the plugin.
    pub plugin: String,
    /// Description of the suspension for people, with its duration. It quotes no message of the plugin.
    pub detail: String,
}

/// A plugin works again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginRecovered {
    /// Name of the plugin.
    pub plugin: String,
}

/// A drain has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DrainBegun {
    /// The requester.
    pub by: Requester,
}

/// A drain was undone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DrainUndone {}

macro_rules! notices {
    ($($(#[doc = $doc:literal])+ $kind:literal => $name:ident($data:ty),)*) => {
        /// An event that the feed stores itself, because no journal has it.
        #[derive(Debug, Clone)]
        pub enum Notice {
            $($(#[doc = $doc])+ $name($data),)*
        }

        impl Notice {
            /// All kinds of the feed's own events, in the order of their declaration.
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

            /// Returns the kind of the event.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $kind,)*
                }
            }

            /// Returns the data of the event.
            pub fn to_data(&self) -> Box<RawValue> {
                match self {
                    $(Self::$name(data) => serde_json::value::to_raw_value(data)
                        .expect("an event's data has string keys and no failing serializer"),)*
                }
            }
        }
    };
}

// The feed's own kinds.
notices! {
    /// The compact state of a session that changed. It follows the events that caused the change.
    "session.state" => SessionState(Box<SessionBrief>),
    /// A session was removed with all its files. The data is its last compact state.
    "session.removed" => SessionRemoved(Box<SessionBrief>),
    /// The daemon has started. Without a `daemon.stopping` before, the previous daemon crashed.
    "daemon.started" => DaemonStarted(DaemonStarted),
    /// The daemon is ending in order. Its sessions continue.
    "daemon.stopping" => DaemonStopping(DaemonStopping),
    /// A configuration was put in force.
    "configuration.reloaded" => ConfigurationReloaded(ConfigurationReloaded),
    /// A configuration was refused. The previous configuration stays in force.
    "configuration.refused" => ConfigurationRefused(Box<ConfigurationRefused>),
    /// The plugins cannot be loaded, so no session can be launched.
    "plugins.failed" => PluginsFailed(PluginsFailed),
    /// A plugin cannot be loaded. Launches that need it fail.
    "plugin.failed" => PluginFailed(PluginFailed),
    /// A plugin failed several times in a row, and is not called for a time.
    "plugin.suspended" => PluginSuspended(PluginSuspended),
    /// A call of a plugin succeeded after a suspension.
    "plugin.recovered" => PluginRecovered(PluginRecovered),
    /// A drain has begun: every session is stopped and none is launched.
    "drain.begun" => DrainBegun(DrainBegun),
    /// A drain was undone.
    "drain.undone" => DrainUndone(DrainUndone),
    /// A call was recorded in the audit log. A refused call has the code of the refusal.
    "audit.recorded" => AuditRecorded(Box<AuditRecord>),
}

/// Kind of the event with the state of all sessions.
pub const FEED_STATE: &str = "feed.state";
/// Kind of the event about events that are no longer kept.
pub const FEED_GONE: &str = "feed.gone";
/// Kind of the event that shows a silent stream to be alive.
pub const HEARTBEAT: &str = "heartbeat";

/// Events that only a stream has. They pass every filter of kinds, and no later stream repeats them.
pub const MARKERS: &[Named] = &[
    Named { name: FEED_STATE, doc: &["The compact states of all sessions at this cursor: `sessions` and `removed`."] },
    Named {
        name: FEED_GONE,
        doc: &[
            "Events that the filter selects are no longer kept. `after` is the cursor of the request.",
            "`first_cursor` is the oldest event that is kept.",
            "`first_seq` and `last_seq` are the missing records of one session.",
        ],
    },
    Named {
        name: HEARTBEAT,
        doc: &[
            "Nothing was sent for a while. The cursor is the position up to which the stream has looked.",
            "`trouble` tells why new events may be delayed.",
        ],
    },
];

/// Data of `feed.state`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FeedState {
    /// The sessions, by id. A session that is missing was removed, or was never there.
    pub sessions: Vec<SessionBrief>,
    /// Ids of the sessions that were removed last, oldest first.
    pub removed: Vec<SessionId>,
}

/// Data of `feed.gone`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FeedGone {
    /// Cursor of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Cursor of the oldest event that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_cursor: Option<u64>,
    /// First missing record of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seq: Option<u64>,
    /// Last missing record of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seq: Option<u64>,
}

/// Data of `heartbeat`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Heartbeat {
    /// Why the feed cannot be written now. It catches up when it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}
