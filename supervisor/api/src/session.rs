//! A session as clients ask for it (spec) and as it is (status).

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::environment::EnvironmentSpec;
use crate::id::{AgentName, PermissionId, SessionId, SessionName, TurnId};
use crate::isolation::{Isolated, Isolation};
use crate::permission::ToolDetails;
use crate::quantity;

/// The specification of a session: the body of `POST /v1/sessions`, and a part of `session.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SessionName>,
    /// An agent of the configuration; `demo` is built in. Without it and without `command`: the configured default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
    /// A program and its arguments that speak ACP on stdio, instead of a configured agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// The session's working directory, absolute.
    pub directory: PathBuf,
    /// Sent once in the session's life, as soon as the conversation is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_prompt: Option<String>,
    /// Text of the session's own script (`env-setup.sh`), sourced after the global and the directory's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_setup: Option<String>,
    #[serde(default)]
    pub permissions: PermissionPolicy,
    /// Whether a crashed agent is started again; without it, as configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartPolicy>,
    #[serde(default, skip_serializing_if = "SessionLimits::is_default")]
    pub limits: SessionLimits,
    #[serde(default, skip_serializing_if = "EnvironmentSpec::is_default")]
    pub environment: EnvironmentSpec,
    /// What the agent is told in front of the first prompt after a resume; without it, as configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_note: Option<ResumeNote>,
    /// Prerequisites of the configuration that it needs, besides those that are required of it anyway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Words that the configuration's prerequisites may be required by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What the agent is kept from; without it, as its agent is configured. It can only be stricter than that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
}

/// How much an agent is told in front of the first prompt after a resume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResumeNote {
    /// Nothing.
    Off,
    /// A summary of losses and changes, if there are any.
    #[default]
    Brief,
    /// The full list of losses and changes, after every new start of the agent's process.
    Full,
}

/// Whether agentd restarts an agent that crashes after its conversation was open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// It fails, and waits for a resume.
    Never,
    /// It is started again and continues its conversation, after a growing pause; after several crashes it is parked.
    OnFailure,
}

/// Limits of one session; those that are left out are as configured. A size or a time may be a number or a text, as `"2G"` and `"10m"`
/// ([`quantity`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionLimits {
    /// Bytes of memory of the agent and everything it starts.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity::some_size")]
    pub memory: Option<u64>,
    /// Number of processes and threads of the agent and everything it starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u64>,
    /// Share of the processors relative to other sessions while all are busy. It needs sessions that are units of systemd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_weight: Option<CpuWeight>,
    /// Bytes per second that are read from the agent. A faster agent is slowed down, and no output is lost.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity::some_size")]
    pub output_rate: Option<u64>,
    /// Seconds without a turn after which the session is stopped; 0 is never.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity::some_seconds")]
    pub idle_seconds: Option<u64>,
    /// Longest duration of a turn, in seconds; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity::some_seconds")]
    pub turn_seconds: Option<u64>,
    /// Seconds after which a permission request that nobody answers is rejected; 0 is never.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity::some_seconds")]
    pub permission_seconds: Option<u64>,
}

/// A share of the processors, from 1 to 10000; without one it is 100 (systemd.resource-control(5), `CPUWeight=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct CpuWeight(u16);

/// No share has this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a CPU weight is a number from 1 to 10000")]
pub struct InvalidCpuWeight;

impl TryFrom<u16> for CpuWeight {
    type Error = InvalidCpuWeight;

    fn try_from(weight: u16) -> Result<Self, InvalidCpuWeight> {
        if (1..=10_000).contains(&weight) { Ok(Self(weight)) } else { Err(InvalidCpuWeight) }
    }
}

impl From<CpuWeight> for u16 {
    fn from(weight: CpuWeight) -> Self {
        weight.0
    }
}

impl std::str::FromStr for CpuWeight {
    type Err = InvalidCpuWeight;

    fn from_str(text: &str) -> Result<Self, InvalidCpuWeight> {
        text.parse::<u16>().map_err(|_| InvalidCpuWeight)?.try_into()
    }
}

impl SessionLimits {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl SessionSpec {
    /// Makes the specification of a session in this directory, with configured values for everything else.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            name: None,
            agent: None,
            command: None,
            directory: directory.into(),
            initial_prompt: None,
            env_setup: None,
            permissions: PermissionPolicy::default(),
            restart: None,
            limits: SessionLimits::default(),
            environment: EnvironmentSpec::default(),
            resume_note: None,
            requires: Vec::new(),
            tags: Vec::new(),
            isolation: None,
        }
    }
}

/// Who answers the agent's permission requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PermissionPolicy {
    /// A client is asked.
    #[default]
    Ask,
    Allow,
    Deny,
}

/// Where in its life a session is (DESIGN.md section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Created; nothing has been done for it yet.
    Pending,
    /// Prerequisites are checked and the environment is built.
    Preparing,
    /// A prerequisite is not met, and the launch waits for it.
    Waiting,
    /// Its agent process is started and its conversation opened.
    Starting,
    Idle,
    /// A turn is running.
    Busy,
    /// Its agent crashed and is started again at [`SessionStatus::next_restart_at`].
    BackingOff,
    /// Its agent is being ended, with every descendant.
    Stopping,
    /// Ended on request; can be resumed.
    Stopped,
    /// The agent or a launch step failed, and agentd does not try again; can be resumed.
    Failed,
    /// A phase newer than this reader.
    #[serde(other)]
    Unknown,
}

impl Phase {
    /// Whether an agent process runs or is being started or ended.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Preparing | Self::Waiting | Self::Starting | Self::Idle | Self::Busy | Self::Stopping)
    }

    /// Whether no agent runs and none is about to be started. Only a request changes this.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Pending | Self::Stopped | Self::Failed)
    }

    /// Whether the launch has an outcome: the agent takes prompts, or the session has ended.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Idle | Self::Busy | Self::Stopped | Self::Failed)
    }

    /// The phase as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Preparing => "preparing",
            Self::Waiting => "waiting",
            Self::Starting => "starting",
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::BackingOff => "backing-off",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// The steps of a launch, each reported as a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionType {
    PrerequisitesMet,
    NotStale,
    WorkspaceReady,
    /// Nothing in the environment looks wrong; where it is false, that is a warning and keeps nothing from starting.
    EnvironmentValid,
    /// The snapshot that the environment begins with is complete and as recent as requested.
    SnapshotFresh,
    EnvironmentReady,
    /// The named secrets of the configuration that are this session's, and those of a stored environment that is given again; only
    /// where it has any, or lacks one.
    SecretsAvailable,
    AgentStarted,
    ConversationReady,
    /// True if the agent got a stored environment and a fresh one would differ.
    EnvironmentDrifted,
    /// False where something in the agent's environment holds no longer, or could not be asked for again; only where something holds
    /// for a limited time.
    EnvironmentCurrent,
    /// False while the session's keeper does not answer; absent otherwise. Of this daemon's own knowledge: it is in no journal.
    KeeperAnswers,
    /// False while the session's journal cannot be written; only where a write has failed since the daemon started. It is not recorded.
    JournalWritable,
    #[serde(other)]
    Unknown,
}

/// Whether a condition holds, as in Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// One condition of a session, as Kubernetes' `metav1.Condition`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: ConditionType,
    pub status: ConditionStatus,
    /// One CamelCase word for programs.
    pub reason: String,
    /// For people; never a secret.
    pub message: String,
    /// The generation of the spec this was found for.
    pub observed_generation: u64,
    /// When the status last changed.
    pub last_transition_time: Timestamp,
}

/// A session as `GET /v1/sessions/{id}` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionView {
    pub id: SessionId,
    /// Rises with each change of the spec.
    pub generation: u64,
    pub created: Timestamp,
    /// The session whose agent created this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    pub spec: SessionSpec,
    pub status: SessionStatus,
}

/// The status of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    pub phase: Phase,
    /// Why the phase is what it is, where that needs saying: `agent exited with status 1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the crashed agent is started again. Only in the phase `backing-off`; absent there while the daemon is drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_restart_at: Option<Timestamp>,
    pub observed_generation: u64,
    pub conditions: Vec<Condition>,
    /// The agent, as it introduced itself in `initialize`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentInfo>,
    /// The agent's own name for the conversation (ACP `sessionId`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// The isolation that the running agent was started with; absent where no agent runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolated>,
    /// The pid that was started; the agent may be a descendant of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper_pid: Option<u32>,
    /// The version of the frame protocol that the running keeper speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper_protocol: Option<u32>,
    /// How often the session was launched.
    pub launches: u64,
    /// The running turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnView>,
    /// Turns that wait, in order.
    #[serde(default)]
    pub queue: Vec<TurnView>,
    /// Permission requests that wait for an answer.
    #[serde(default)]
    pub permissions: Vec<PermissionRequest>,
    /// The seq of the last event; `0` before the first.
    pub last_seq: u64,
    /// When the last event was written.
    pub updated: Timestamp,
}

/// A turn that runs or waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnView {
    pub id: TurnId,
    pub prompt: String,
    /// The agent has said nothing for longer than configured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
}

/// Who the agent says it is (ACP `agentInfo`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInfo {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// A permission request that waits for an answer (ACP `session/request_permission`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionRequest {
    pub id: PermissionId,
    /// What the agent wants to do, in its words.
    pub title: String,
    /// The tool's kind: `execute`, `edit` ... (ACP `ToolKind`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_kind: Option<String>,
    /// What it is for: command, paths, changes. Journals of older releases have none.
    #[serde(default, skip_serializing_if = "ToolDetails::is_empty")]
    pub details: ToolDetails,
    pub options: Vec<PermissionOption>,
}

/// One of the answers an agent offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionOption {
    /// The agent's own id for it.
    pub id: String,
    pub name: String,
    /// `allow_once`, `allow_always`, `reject_once`, `reject_always`; others are kept as they come.
    pub kind: String,
}

/// The body of `POST /v1/sessions/{id}/prompt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptRequest {
    pub prompt: String,
}

/// What `POST /v1/sessions/{id}/prompt` answers: the turn, running or waiting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptAccepted {
    pub turn: TurnId,
    /// Events after this seq belong to what follows.
    pub after_seq: u64,
}

/// The body of `POST /v1/sessions/{id}/permissions/{permission}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum PermissionAnswer {
    /// Choose the option with this id.
    Option(String),
    /// Choose the option of the mildest allowing kind.
    Allow,
    /// Choose the option of the mildest rejecting kind.
    Deny,
}

/// What `GET /v1/sessions` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionList {
    pub sessions: Vec<SessionView>,
    /// Sessions whose files could not be read, and were set aside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableSession>,
}

/// A session that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableSession {
    /// The directory's name.
    pub id: String,
    pub reason: String,
}
