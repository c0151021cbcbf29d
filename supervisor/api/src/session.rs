//! A session: its current state (status). [`crate::spec`] has what the client requests.

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::completion::{Completion, Cost, Usage};
use crate::context::{ContextView, Progress};
use crate::degraded::MissingPart;
use crate::doc::Named;
use crate::elicitation::{Elicitation, FormValues};
use crate::facts::SessionFacts;
use crate::id::{PermissionId, SessionId, TurnId};
use crate::isolation::Isolated;
use crate::login::LoginMethod;
use crate::mcp::LaunchedServer;
use crate::permission::ToolDetails;
use crate::place::PlaceView;
use crate::prompt::PromptPart;
use crate::repository::RepositoryView;
use crate::scripts::ProposedScript;
use crate::staleness::StaleFinding;
use crate::workflow::{ActiveWorkflow, WorkflowView};

pub use crate::list::{SessionList, SessionSummary, WholeList};
pub use crate::spec::{
    CpuWeight, InvalidCpuWeight, PermissionPolicy, RestartPolicy, ResumeNote, SessionLimits, SessionSpec,
};

/// Phase of a session's life (docs/internals/session.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The session is created and nothing has been done yet.
    Pending,
    /// agentd checks prerequisites and builds the environment.
    Preparing,
    /// The launch waits for a prerequisite, or for the answer whether to continue a stale session.
    Waiting,
    /// agentd starts the agent's process and opens the conversation.
    Starting,
    /// The agent waits for a prompt.
    Idle,
    /// A turn is running.
    Busy,
    /// The agent met a rate limit. agentd sends the prompt again at [`SessionStatus::limited_until`].
    Limited,
    /// The agent crashed. agentd restarts it at [`SessionStatus::next_restart_at`].
    BackingOff,
    /// agentd is ending the agent and all its descendants.
    Stopping,
    /// The session ended on request. It can be resumed.
    Stopped,
    /// The agent or a launch step failed, and agentd does not retry. The session can be resumed.
    Failed,
    /// The session was not interactive, and its prompts are done. It can be resumed, and is interactive then.
    Completed,
    /// A phase newer than this reader.
    #[serde(other)]
    Unknown,
}

impl Phase {
    /// All phases that a session can have, in the order of their declaration.
    pub const ALL: &'static [Self] = &[
        Self::Pending,
        Self::Preparing,
        Self::Waiting,
        Self::Starting,
        Self::Idle,
        Self::Busy,
        Self::Limited,
        Self::BackingOff,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
        Self::Completed,
    ];

    /// Reports whether an agent process runs, starts or ends.
    pub fn is_active(self) -> bool {
        self.is_ready() || matches!(self, Self::Preparing | Self::Waiting | Self::Starting | Self::Stopping)
    }

    /// Reports whether the agent runs and accepts prompts.
    pub fn is_ready(self) -> bool {
        matches!(self, Self::Idle | Self::Busy | Self::Limited)
    }

    /// Reports whether no agent runs and none is about to start. Only a request changes this.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Pending | Self::Stopped | Self::Failed | Self::Completed)
    }

    /// Reports whether the launch has an outcome: the agent accepts prompts, or the session has ended.
    pub fn is_settled(self) -> bool {
        self.is_ready() || matches!(self, Self::Stopped | Self::Failed | Self::Completed)
    }

    /// Returns the phase's name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Preparing => "preparing",
            Self::Waiting => "waiting",
            Self::Starting => "starting",
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Limited => "limited",
            Self::BackingOff => "backing-off",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Completed => "completed",
            Self::Unknown => "unknown",
        }
    }
}

macro_rules! conditions {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// A condition of a session. Most of them report one step of a launch.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum ConditionType {
            $($(#[doc = $doc])+ $name,)*
            /// A condition newer than this reader.
            #[serde(other)]
            Unknown,
        }

        impl ConditionType {
            /// All conditions that a session can have, in the order of their declaration.
            pub const NAMES: &'static [Named] = &[$(Named { name: stringify!($name), doc: &[$($doc,)+] },)*];
        }
    };
}

conditions! {
    /// The prerequisites are met.
    PrerequisitesMet,
    /// The session's directory exists, its file system responds, and it is still that directory.
    NotStale,
    /// The session's git repository has the top directory and the remotes of the agent's last work. This and the
    /// following conditions about unchanged things are present only from the second launch on.
    RepositoryUnchanged,
    /// The repository is on the branch of the agent's last work.
    BranchUnchanged,
    /// The branch is at the commit of the agent's last work.
    HeadUnchanged,
    /// The environment's scripts are those that the agent last worked with.
    ScriptsUnchanged,
    /// The session was used within `staleness.unused_after`.
    RecentlyUsed,
    /// The environment equals that of the agent's last work.
    EnvironmentUnchanged,
    /// The agent's program has the name and the version of the agent's last work.
    AgentUnchanged,
    /// The session's directory can be entered.
    WorkspaceReady,
    /// The session's repositories are as the specification has them. False if one of them could not be cloned, reset or
    /// removed; a running session stays usable, and agentd tries again. Present only if the session has repositories.
    RepositoriesReady,
    /// The requested workflow is in force. False if it cannot be: a running session stays usable, and agentd tries
    /// again. Present only if the session requests a workflow.
    WorkflowReady,
    /// Nothing in the environment looks wrong. False is a warning and does not prevent the launch.
    EnvironmentValid,
    /// The snapshot that the environment starts with is complete and as recent as requested.
    SnapshotFresh,
    /// The environment is built.
    EnvironmentReady,
    /// The session's named secrets, and the secrets of a reused stored environment, could be fetched. Present
    /// only if the session has or lacks such a secret.
    SecretsAvailable,
    /// The agent's place runs the agent. False while the launch waits in the queue of an engine, and Unknown if the
    /// connection to the place is lost. Present only if the agent does not run on this machine.
    Placed,
    /// The agent's process is started.
    AgentStarted,
    /// The conversation is open and the agent accepts prompts.
    ConversationReady,
    /// True while the agent requires a login: it refused to open the conversation, or a prompt. Absent if the agent has
    /// not asked for a login in this launch.
    AuthenticationRequired,
    /// True while a turn waits for the end of a rate limit of the agent's provider. The message has the agent's words,
    /// and the time at which the prompt is sent again. Absent if no turn of this launch met one.
    RateLimited,
    /// False if a variable that names where the agent keeps its conversations has another value now than at the
    /// beginning of the conversation. The agent gets the former value, and finds the conversation. Absent otherwise.
    ConversationPlace,
    /// The agent was given the session's additional directories. False if it takes none; then it is a warning and names
    /// them. Present only if the session has any.
    DirectoriesGiven,
    /// The agent was given the session's MCP servers. False names those that it was not given, and is a warning.
    /// Present only if the session has any besides agentd's own.
    McpServersGiven,
    /// The options of the agent, such as its mode and its model, have the values that the session wants. False is a
    /// warning. Present only if the session wants a value.
    OptionsApplied,
    /// True if the agent got a stored environment and a fresh one would differ.
    EnvironmentDrifted,
    /// False if something in the agent's environment has expired, or a provider could not be called again.
    /// Present only if something in the environment expires.
    EnvironmentCurrent,
    /// True if the launch left out parts that could not be provided. Present only for a degraded launch.
    Degraded,
    /// False while a change of the specification waits for the next launch. The message names the fields. Absent
    /// otherwise.
    SpecApplied,
    /// False while a limit of the session cannot be checked, because the agent does not report its cost. The session
    /// continues. Present only after a turn of a session with such a limit.
    LimitsChecked,
    /// True while the session needs a person: an answer to a question, a login, or a decision about a failed session.
    /// The reason names the need. A failed session needs a person until it is resumed or removed, and a stopped session
    /// needs nothing. Absent otherwise.
    NeedsAttention,
    /// True while the agent accepts prompts: the summary of the other conditions. The reason is the phase.
    Ready,
    /// False while the session's keeper does not respond, absent otherwise. Only the running daemon knows this;
    /// it is in no journal.
    KeeperAnswers,
    /// False while the session's journal cannot be written. Present only after a failed write since the daemon
    /// started. Not recorded.
    JournalWritable,
}

/// Whether a condition holds, with the meaning of Kubernetes' conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// agentd does not know yet.
    Unknown,
}

/// One condition of a session, with the fields of Kubernetes' `metav1.Condition`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Condition {
    /// Which condition this is.
    #[serde(rename = "type")]
    pub kind: ConditionType,
    /// Whether the condition holds.
    pub status: ConditionStatus,
    /// One CamelCase word for programs.
    pub reason: String,
    /// Description for people. Never contains a secret.
    pub message: String,
    /// Generation of the spec that the condition was evaluated for.
    pub observed_generation: u64,
    /// Time at which `status` last changed.
    pub last_transition_time: Timestamp,
}

/// A session, as `GET /v1/sessions/{id}` returns it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionView {
    /// Id of the session.
    pub id: SessionId,
    /// Generation of the spec. Increases with each change of the spec.
    pub generation: u64,
    /// Time at which the session was created.
    pub created: Timestamp,
    /// The session whose agent created this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// Specification, as the client requested it. The views of a session share it.
    pub spec: Arc<SessionSpec>,
    /// Current state.
    pub status: SessionStatus,
}

impl SessionView {
    /// Returns the workflow in force.
    pub fn active_workflow(&self) -> Option<&ActiveWorkflow> {
        self.status.workflow.as_ref()?.active.as_ref()
    }
}

/// The current state of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionStatus {
    /// Current phase.
    pub phase: Phase,
    /// Why the session is in this phase, if that needs an explanation: `agent exited with status 1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Time at which agentd restarts the crashed agent. Only in phase `backing-off`, and absent while the
    /// daemon is drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_restart_at: Option<Timestamp>,
    /// Time at which agentd sends the prompt again that met a rate limit. Only in phase `limited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_until: Option<Timestamp>,
    /// Generation of the spec that this status is based on.
    pub observed_generation: u64,
    /// Conditions of the last launch and of the running agent.
    pub conditions: Vec<Condition>,
    /// The agent's name and version, from its response to `initialize`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentInfo>,
    /// The agent's id for the conversation (ACP `sessionId`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Whether the agent deletes its conversations on request (ACP `session/delete`), as of its last start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deletes_conversations: bool,
    /// Directories below which the agent keeps its conversations, if agentd knows the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversation_directories: Vec<PathBuf>,
    /// Place of the last agent, if that is not this machine. It stays after the end of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<PlaceView>,
    /// The isolation that the running agent was started with. Absent if no agent runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolated>,
    /// The mode in which the agent works, as it names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The model of the agent, as it names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// MCP servers of the last launch, besides agentd's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp: Vec<LaunchedServer>,
    /// Login methods that the agent offers, as of its last start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub login_methods: Vec<LoginMethod>,
    /// Process id that was started for the agent. The agent may be a descendant of this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_pid: Option<u32>,
    /// Process id of the keeper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper_pid: Option<u32>,
    /// Version of the frame protocol that the running keeper speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper_protocol: Option<u32>,
    /// Title: the title that was set, else the agent's, else the beginning of the first prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The environment hint: what the session needs to work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The context. Its files are marked as missing as of the last launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextView>,
    /// The last reported progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The script that was proposed last for the session's next launches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_proposal: Option<ProposedScript>,
    /// Time at which a person last looked at the session, prompted it or answered a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_observed_at: Option<Timestamp>,
    /// Time since which no turn has run. Absent during a turn and before the first turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Timestamp>,
    /// Time at which the agent of the last launch was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Time at which the session last ended. Absent from the beginning of a launch until its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Time at which the session last completed with the outcome `completed`. Absent for other outcomes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// Number of launches of the session.
    pub launches: u64,
    /// Whether the session waits for further prompts. A session that was created as not interactive is interactive
    /// after its completion.
    #[serde(default = "is_interactive", skip_serializing_if = "Clone::clone")]
    pub interactive: bool,
    /// The result of a session that was not interactive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<Arc<Completion>>,
    /// The session's cost, as the agent last reported it (ACP `usage_update`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The tokens that the agent last reported.
    #[serde(default, skip_serializing_if = "Usage::is_empty")]
    pub usage: Usage,
    /// Seconds for which the session was active until its last change of phase.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub active_seconds: u64,
    /// The session's repositories as of the last action on each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repos: Vec<RepositoryView>,
    /// The workflow in force, and why the requested one is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<Box<WorkflowView>>,
    /// Everything that the last launch left out, because a caller allowed that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<MissingPart>,
    /// The running turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnView>,
    /// Queued turns, in order.
    #[serde(default)]
    pub queue: Vec<TurnView>,
    /// Permission requests that wait for an answer.
    #[serde(default)]
    pub permissions: Vec<PermissionRequest>,
    /// Last observed facts about the directory and its repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Arc<SessionFacts>>,
    /// Differences that the last launch found since the agent last worked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub staleness: Vec<StaleFinding>,
    /// Sequence number of the last event. `0` if there are no events.
    pub last_seq: u64,
    /// Time at which the last event was written.
    pub updated: Timestamp,
}

fn is_interactive() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A running or queued turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnView {
    /// Id of the turn.
    pub id: TurnId,
    /// The prompt.
    pub prompt: String,
    /// Whether the agent has sent nothing for longer than the configured time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
}

/// The agent's name and version, as the agent reports them (ACP `agentInfo`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentInfo {
    /// Name for programs.
    pub name: String,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// A question that waits for an answer: the agent's (ACP `session/request_permission` or `elicitation/create`), or
/// agentd's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PermissionRequest {
    /// Id of the permission request, unique in its session.
    pub id: PermissionId,
    /// The asker.
    #[serde(default, skip_serializing_if = "PermissionOrigin::is_agent")]
    pub origin: PermissionOrigin,
    /// Description of the intended action, in the words of the asker.
    pub title: String,
    /// Kind of the tool, for example `execute` or `edit` (ACP `ToolKind`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_kind: Option<String>,
    /// The command, paths and changes of the tool call. Absent in journals of older releases.
    #[serde(default, skip_serializing_if = "ToolDetails::is_empty")]
    pub details: ToolDetails,
    /// The answers that the asker offers.
    pub options: Vec<PermissionOption>,
    /// The form or the page of a question that is no permission request (ACP `elicitation/create`). Its options are
    /// `accept` and `decline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elicitation: Option<Elicitation>,
}

/// The asker of a permission request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PermissionOrigin {
    /// The session's agent.
    #[default]
    Agent,
    /// agentd itself. Only a client answers; no rule and no policy does.
    Agentd,
    /// An asker newer than this reader.
    #[serde(other)]
    Unknown,
}

impl PermissionOrigin {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    fn is_agent(&self) -> bool {
        *self == Self::Agent
    }
}

/// An answer that a permission request offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PermissionOption {
    /// The asker's id for the option.
    pub id: String,
    /// Label for people.
    pub name: String,
    /// Kind of the option: `allow_once`, `allow_always`, `reject_once` or `reject_always`. Other kinds are kept
    /// unchanged.
    pub kind: String,
}

/// The body of `POST /v1/sessions/{id}/prompt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PromptRequest {
    /// Text of the prompt. Can be empty if there are parts.
    pub prompt: String,
    /// Files, images, audio and links that follow the text. An agent that does not take a kind gets a text or a link in
    /// its place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PromptPart>,
    /// A JSON Schema that the answer's last block must satisfy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<serde_json::Value>,
}

/// The response of `POST /v1/sessions/{id}/prompt`: the turn, which is running or queued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromptAccepted {
    /// Id of the turn.
    pub turn: TurnId,
    /// Sequence number of the last event before the request. Events of the turn have higher numbers.
    pub after_seq: u64,
}

/// The body of `POST /v1/sessions/{id}/permissions/{permission}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum PermissionAnswer {
    /// Selects the option with this id.
    Option(String),
    /// Selects the allowing option with the least effect: `allow_once` before `allow_always`.
    Allow,
    /// Selects the rejecting option with the least effect: `reject_once` before `reject_always`.
    Deny,
    /// Accepts a question with these values of its form. Absent fields get their defaults.
    Form(#[cfg_attr(feature = "schema", schemars(with = "crate::schema::Values"))] FormValues),
}

/// A session that was skipped because its files could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnreadableSession {
    /// Name of the session's directory.
    pub id: String,
    /// Why the files could not be read.
    pub reason: String,
}

/// The response of `POST /v1/sessions/{session}/stop`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum StopView {
    /// The session.
    Session(Box<SessionView>),
    /// The session whose agent was ended although the session's files could not be read.
    Unreadable(UnreadableSession),
}
