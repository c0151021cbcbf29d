//! `[limits]`, `[launch]`, `[resume]` and `[journal]`: limits of sessions and requests, start and end of agents, and
//! size of journals.

use std::path::PathBuf;
use std::time::Duration;

use agentd_api::isolation::IsolationMissing;
use agentd_api::quantity::{InvalidQuantity, Size, Time, size, some_size};
use agentd_api::session::{CpuWeight, RestartPolicy, ResumeNote};
use agentd_keeper::protocol::{JournalSizeLimit, StopTimes};
use serde::Deserialize;

use super::seconds;
use super::template::NoteTemplate;

/// Limits of the daemon and of each session. Each of them prevents a failure that was observed without it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Maximum number of sessions that have an agent at the same time. Default: 64. 0 is refused.
    pub active_sessions: usize,
    /// Maximum number of launches in progress. Further launches wait. Default: 8. 0 is refused.
    pub launches: usize,
    /// Maximum number of turns that wait in one session. Default: 32.
    pub queued_turns: usize,
    /// Maximum number of connections to the control socket, and of connections over TCP. Further connections are
    /// refused. At most half of them can be streams. Default: 512. 0 is refused.
    pub(super) connections: usize,
    /// Maximum number of connections for short requests from one caller, which is a process or a process session.
    /// Default: 64. 0 is refused.
    pub(super) connections_per_caller: usize,
    /// Maximum number of streams of one caller: event streams and requests with `?wait=`. Default: 64. 0 is refused.
    pub(super) streams_per_caller: usize,
    /// Time limit for receiving the body of a request. A body that pauses for a third of this time is refused too.
    /// Default: 30 s. 0 is refused.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub body_time: Time,
    /// Maximum size of a request's body in bytes. Default: 4 MiB. 0 is refused.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Size"))]
    #[serde(deserialize_with = "size")]
    pub body: usize,
    /// Maximum size in bytes of the body of a prompt, with its files and images in base64. Default: 32 MiB. 0 is
    /// refused.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Size"))]
    #[serde(deserialize_with = "size")]
    pub prompt: usize,
    /// Maximum size in bytes of one line of an agent's output that is kept whole. Default: 32 MiB. 0 is refused.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Size"))]
    #[serde(deserialize_with = "size")]
    pub line: u64,
    /// Memory limit of one plugin call in bytes. `plugins.NAME.limits.memory` overrides it. Default: 64 MiB.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Size"))]
    #[serde(deserialize_with = "size")]
    pub plugin_memory: usize,
    /// Time limit from the agent's start to its answer to `initialize`. Default: 60 s.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub initialize: Time,
    /// Time limit for opening a conversation, including the replay of its history. Default: 120 s.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub open_conversation: Time,
    /// Time limit of a turn. agentd then cancels the turn. Default: 4 h. A session can have its own limit.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub turn: Time,
    /// Time limit for the end of a cancelled turn. agentd then ends the agent. Default: 60 s.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub cancel: Time,
    /// Time without any message from the agent in a turn, after which agentd writes a `turn.silent` record. Default:
    /// 10 min. 0 means never.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub silence: Time,
    /// Time without a turn after which agentd stops the session. Default: never. A session can have its own limit.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Time>"))]
    pub idle: Option<Time>,
    /// Time after which an unanswered permission request is rejected. Default: never. A session can have its own
    /// limit.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Time>"))]
    pub permission: Option<Time>,
    /// Time after which a keeper without a connected daemon ends its agent. Default: never.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Time>"))]
    pub orphan: Option<Time>,
    /// Memory limit in bytes for a session's agent and all its descendants. Default: no limit. A session can have its
    /// own limit.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Size>"))]
    #[serde(deserialize_with = "some_size")]
    pub memory: Option<u64>,
    /// Maximum number of processes and threads of a session's agent and all its descendants. Default: no limit. A
    /// session can have its own limit.
    pub tasks: Option<u64>,
    /// CPU share of a session relative to the other sessions while all are busy, from 1 to 10000. It requires that
    /// sessions run as systemd units. Default: not set, and systemd uses 100.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::CpuWeight>"))]
    pub cpu_weight: Option<CpuWeight>,
    /// Maximum rate in bytes per second at which an agent's output is read. A faster agent is slowed down, and no
    /// output is lost. Default: no limit.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Size>"))]
    #[serde(deserialize_with = "some_size")]
    pub output_rate: Option<u64>,
}

/// How agents are started, stopped and restarted.
#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Launch {
    /// Process manager of the sessions: `auto`, `systemd` or `detached`. Default: `auto`.
    pub(super) manager: Manager,
    /// Time limit of a stop between the close of the agent's stdin and SIGTERM. Default: 8 s.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub stop_close: Time,
    /// Time limit of a stop between SIGTERM and the kill of the agent's whole process tree. Default: 2 s.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub stop_term: Time,
    /// Time limit for the answer of a keeper. The session then counts as unreachable. Default: 10 s.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub keeper_answer: Time,
    /// Whether a keeper waits for the next launch, which then starts earlier. It needs 0.2 MB of memory. Without effect
    /// for sessions that run as systemd units, and on macOS. Default: `true`.
    pub spare_keeper: bool,
    /// Time without a further message of the history, after which a loaded conversation counts as replayed. Default:
    /// 300 ms.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub replay_quiet: Time,
    /// Whether agentd restarts an agent that crashed: `never` or `on-failure`. Default: `on-failure`.
    pub restart: RestartPolicy,
    /// Pause before the first restart. Each further pause is twice as long, up to `restart_longest`. Default: 1 s.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub restart_first: Time,
    /// Maximum pause before a restart. Default: 60 s.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub restart_longest: Time,
    /// Action of a launch if the kernel lacks a part of the agent's isolation: `fail` or `warn`. Default: `fail`.
    pub isolation_missing: IsolationMissing,
    /// Whether an agent with the isolation `guard` reaches the user's service manager and session bus: `hide` or
    /// `keep`. Default: `hide`.
    pub isolation_bus: IsolationBus,
}

/// Access of a guarded agent to the user's service manager and session bus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum IsolationBus {
    /// The sockets are covered, so `systemd-run --user` cannot start a process outside of the session.
    #[default]
    Hide,
    /// The sockets stay visible, for programs that need the bus, such as a keyring.
    Keep,
}

impl Launch {
    /// Returns the time limits of the steps of an orderly stop.
    pub fn stop_times(&self) -> StopTimes {
        let milliseconds = |span: Time| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX);
        StopTimes { close_ms: milliseconds(self.stop_close), term_ms: milliseconds(self.stop_term) }
    }
}

/// The note that an agent receives after a resume.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Resume {
    /// Extent of the note before the first prompt after a resume or a restart: `off`, `brief` or `full`. Default:
    /// `brief`. A session can have its own value.
    pub note: ResumeNote,
    /// File with the template of the note. A relative path starts at the directory of the file that contains the key.
    /// agentd reads the template together with the configuration. Default: the built-in template.
    pub template: Option<PathBuf>,
    /// The template from the file. It is not a key of the configuration.
    #[serde(skip)]
    pub note_template: Option<NoteTemplate>,
}

/// Size and durability of journals.
#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Journal {
    /// Size of a journal segment in bytes, after which a new segment begins. Default: 64 MiB.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Size"))]
    #[serde(deserialize_with = "size")]
    pub rotate: u64,
    /// When records are synced to the disk: `record`, `turn` or `none`. Default: `turn`.
    pub durability: Durability,
    /// Size of one session's journal in bytes, or `"unlimited"`. Older segments are removed, also during a turn.
    /// Default: 256 MiB.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Kept"))]
    pub keep_session: KeptSize,
    /// Size of all sessions' journals together in bytes, or `"unlimited"`. The oldest segments of all sessions are
    /// removed first. Default: `"unlimited"`.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Kept"))]
    pub keep_all: KeptSize,
    /// Size of the feed of events in bytes: the references to the events of all sessions, and the events of the
    /// daemon. A reference has about 120 bytes. Older events leave the feed. Default: 64 MiB. Less than 64 KiB is
    /// refused.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Size"))]
    #[serde(deserialize_with = "size")]
    pub keep_feed: u64,
}

/// Smallest size of the feed.
pub(super) const SMALLEST_FEED: u64 = 64 << 10;

/// Size of the part of a journal that is kept: a size ([`agentd_api::quantity`]) or `"unlimited"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawKept")]
pub struct KeptSize(pub JournalSizeLimit);

#[derive(Deserialize)]
#[serde(untagged, expecting = "a size, as 268435456 or \"256M\", or \"unlimited\"")]
enum RawKept {
    Bytes(u64),
    Text(String),
}

/// Serializes the size as a number, for default values in the schema.
#[cfg(feature = "schema")]
impl serde::Serialize for KeptSize {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.0 {
            Some(bytes) => serializer.serialize_u64(bytes),
            None => serializer.serialize_str("unlimited"),
        }
    }
}

impl TryFrom<RawKept> for KeptSize {
    type Error = InvalidQuantity;

    fn try_from(written: RawKept) -> Result<Self, InvalidQuantity> {
        Ok(Self(JournalSizeLimit(match written {
            RawKept::Bytes(bytes) => Some(bytes),
            RawKept::Text(word) if word == "unlimited" => None,
            RawKept::Text(text) => Some(text.parse::<Size>()?.0),
        })))
    }
}

/// Durability of a session's records, which determines the loss at a power cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Every record is synced before clients see it. A power cut loses no visible record.
    Record,
    /// Records are synced at the end of each turn. A power cut loses at most the records since then.
    #[default]
    Turn,
    /// The operating system decides. A power cut loses the records that it had not written.
    None,
}

/// The manager of the sessions' processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Manager {
    /// `systemd` if agentd runs as a systemd service, otherwise `detached`.
    #[default]
    Auto,
    /// Each session runs as a systemd unit.
    Systemd,
    /// Each session runs as a detached process.
    Detached,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            active_sessions: 64,
            launches: 8,
            queued_turns: 32,
            connections: 512,
            connections_per_caller: 64,
            streams_per_caller: 64,
            body_time: seconds(30),
            body: 4 << 20,
            prompt: 32 << 20,
            line: 32 << 20,
            plugin_memory: 64 << 20,
            initialize: seconds(60),
            open_conversation: seconds(120),
            turn: seconds(4 * 3600),
            cancel: seconds(60),
            silence: seconds(600),
            idle: None,
            permission: None,
            orphan: None,
            memory: None,
            tasks: None,
            cpu_weight: None,
            output_rate: None,
        }
    }
}

impl Default for Launch {
    fn default() -> Self {
        Self {
            manager: Manager::Auto,
            // FIELD-NOTES: codex-acp needs 7 s after its stdin is closed.
            stop_close: seconds(8),
            stop_term: seconds(2),
            keeper_answer: seconds(10),
            spare_keeper: true,
            replay_quiet: Time(Duration::from_millis(300)),
            restart: RestartPolicy::OnFailure,
            restart_first: seconds(1),
            restart_longest: seconds(60),
            isolation_missing: IsolationMissing::Fail,
            isolation_bus: IsolationBus::Hide,
        }
    }
}

impl Journal {
    /// Returns the options for the journal's writer.
    pub fn options(&self) -> agentd_journal::Options {
        let sync = match self.durability {
            Durability::Record => agentd_journal::Sync::Always,
            Durability::Turn => agentd_journal::Sync::OnRequest,
            Durability::None => agentd_journal::Sync::Never,
        };
        agentd_journal::Options { rotate: self.rotate, sync }
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            rotate: 64 << 20,
            durability: Durability::default(),
            keep_session: KeptSize(JournalSizeLimit::default()),
            keep_all: KeptSize(JournalSizeLimit(None)),
            keep_feed: 64 << 20,
        }
    }
}
