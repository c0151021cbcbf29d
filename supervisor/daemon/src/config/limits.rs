//! `[limits]`, `[launch]`, `[resume]` and `[journal]`: bounds of sessions, how they are started and ended, and what is kept.

use std::time::Duration;

use agentd_api::isolation::IsolationMissing;
use agentd_api::quantity::{InvalidQuantity, Size, Time, size, some_size};
use agentd_api::session::{CpuWeight, RestartPolicy, ResumeNote};
use agentd_keeper::protocol::{Keep, StopTimes};
use serde::Deserialize;

use super::seconds;

/// Bounds. Each is there because something without it has been seen to take a machine down.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// Sessions with an agent, at once.
    pub(crate) active_sessions: usize,
    /// Launches under way, at once; further ones wait.
    pub(crate) launches: usize,
    /// Turns that wait in one session.
    pub(crate) queued_turns: usize,
    /// Connections to the control endpoint, at once; further ones are refused. Half of them can be streams.
    pub(crate) connections: usize,
    /// Of these, connections of one process, or one session of processes, whose requests are short.
    pub(crate) connections_per_caller: usize,
    /// Streams of one caller: events and `?wait=`.
    pub(crate) streams_per_caller: usize,
    /// For a request's body to come; one that stops for a third of it is not waited for.
    pub(crate) body_time: Time,
    /// Bytes of a request's body.
    #[serde(deserialize_with = "size")]
    pub(crate) body: usize,
    /// Bytes of one line of an agent that are kept whole.
    #[serde(deserialize_with = "size")]
    pub(crate) line: u64,
    /// Bytes of memory of one plugin call.
    #[serde(deserialize_with = "size")]
    pub(crate) plugin_memory: usize,
    /// From the agent's start to its answer to `initialize`.
    pub(crate) initialize: Time,
    /// For opening a conversation, replay included.
    pub(crate) open_conversation: Time,
    /// For a turn; at its end the turn is cancelled.
    pub(crate) turn: Time,
    /// For the end of a turn that was cancelled; an agent that takes longer is ended.
    pub(crate) cancel: Time,
    /// For anything at all from an agent in a turn; then a `turn.silent` record says so.
    pub(crate) silence: Time,
    /// Without a turn; then the session is stopped. Without this, never.
    pub(crate) idle: Option<Time>,
    /// For somebody's answer to a permission request; then it is rejected. Without this, for ever.
    pub(crate) permission: Option<Time>,
    /// A keeper that no daemon comes back to for so long ends its agent. Without this, never.
    pub(crate) orphan: Option<Time>,
    /// Bytes of memory of a session's agent and everything it starts.
    #[serde(deserialize_with = "some_size")]
    pub(crate) memory: Option<u64>,
    /// Processes and threads of the same.
    pub(crate) tasks: Option<u64>,
    /// Its share of the processors, where it is a unit of systemd.
    pub(crate) cpu_weight: Option<CpuWeight>,
    /// Bytes a second of an agent's output; a quicker one is held back.
    #[serde(deserialize_with = "some_size")]
    pub(crate) output_rate: Option<u64>,
}

/// How sessions are launched and ended.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Launch {
    pub(crate) manager: Manager,
    /// At a stop: from stdin closed to SIGTERM.
    pub(crate) stop_close: Time,
    /// At a stop: from SIGTERM to the kill of the whole tree.
    pub(crate) stop_term: Time,
    /// How long a keeper may take for an answer before its session counts as out of reach.
    pub(crate) keeper_answer: Time,
    /// How long no history may come before a loaded conversation counts as replayed.
    pub(crate) replay_quiet: Time,
    /// What becomes of a session whose agent crashed.
    pub(crate) restart: RestartPolicy,
    /// The pause before the first restart; each further one is twice as long, up to the longest.
    pub(crate) restart_first: Time,
    pub(crate) restart_longest: Time,
    /// What becomes of a launch where the kernel lacks a part of the agent's isolation.
    pub(crate) isolation_missing: IsolationMissing,
    /// Whether a guarded agent reaches the user's service manager and session bus.
    pub(crate) isolation_bus: IsolationBus,
}

/// See [`Launch::isolation_bus`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum IsolationBus {
    /// Their sockets are covered. `systemd-run --user` starts nothing outside of the session.
    #[default]
    Hide,
    /// Their sockets are there, for programs that need the bus (a keyring).
    Keep,
}

impl Launch {
    /// How long each step of an orderly stop may take.
    pub(crate) fn stop_times(&self) -> StopTimes {
        let milliseconds = |span: Time| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX);
        StopTimes { close_ms: milliseconds(self.stop_close), term_ms: milliseconds(self.stop_term) }
    }
}

/// What agents are told after a resume.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Resume {
    pub(crate) note: ResumeNote,
}

/// How journals are kept.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Journal {
    /// Bytes after which a new segment is begun.
    #[serde(deserialize_with = "size")]
    pub(crate) rotate: u64,
    /// What is on the disk before anybody is told of it.
    pub(crate) durability: Durability,
    /// Of one session; older segments are removed, also while a turn goes on.
    pub(crate) keep_session: Kept,
    /// Of all sessions together; the oldest segments of all are removed.
    pub(crate) keep_all: Kept,
}

/// How much of a journal is kept: a size ([`agentd_api::quantity`]), or `"unlimited"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WrittenKept")]
pub(crate) struct Kept(pub(crate) Keep);

#[derive(Deserialize)]
#[serde(untagged, expecting = "a size, as 268435456 or \"256M\", or \"unlimited\"")]
enum WrittenKept {
    Bytes(u64),
    Text(String),
}

impl TryFrom<WrittenKept> for Kept {
    type Error = InvalidQuantity;

    fn try_from(written: WrittenKept) -> Result<Self, InvalidQuantity> {
        Ok(Self(Keep(match written {
            WrittenKept::Bytes(bytes) => Some(bytes),
            WrittenKept::Text(word) if word == "unlimited" => None,
            WrittenKept::Text(text) => Some(text.parse::<Size>()?.0),
        })))
    }
}

/// What a power cut may cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Durability {
    /// Nothing at all: every record is on the disk before it is shown.
    Record,
    /// What was said since the last turn's end.
    #[default]
    Turn,
    /// What the operating system had not written yet.
    None,
}

/// Who holds the sessions' processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Manager {
    /// systemd where agentd itself is one of its services, else detached.
    #[default]
    Auto,
    Systemd,
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
    /// What a writer has to know.
    pub(crate) fn options(&self) -> agentd_journal::Options {
        let sync = match self.durability {
            Durability::Record => agentd_journal::Sync::Always,
            Durability::Turn => agentd_journal::Sync::Asked,
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
            keep_session: Kept(Keep::default()),
            keep_all: Kept(Keep(None)),
        }
    }
}
