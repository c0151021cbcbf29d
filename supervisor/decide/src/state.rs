//! The state of a session, as folded from its journal. `fold` implements the effect of each record.
//!
//! The state does no I/O and reads no clock. Each variant of [`Run`] holds exactly the data that is valid in it:
//!
//! ```text
//!             launch.started               agent.started
//!   Ended ───────────────────► Preparing ─────────────────► Running ──► agent.exited ──► Ended
//!     ▲  (pending stopped failed)  │  launch.failed            │ starting → idle ⇄ busy → stopping
//!     └────────────────────────────┘◄──────────────────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use agentd_api::context::{Context, Progress};
use agentd_api::degraded::MissingPart;
use agentd_api::editor::EditorTool;
use agentd_api::elicitation::Elicitation;
use agentd_api::event::{Exceeded, LaunchReason, OpenedBy, StaleVariable, TurnQueued};
use agentd_api::isolation::Isolated;
use agentd_api::login::LoginMethod;
use agentd_api::mcp::LaunchedServer;
use agentd_api::prerequisite::{CheckReport, Requester};
use agentd_api::prompt::PromptPart;
use agentd_api::reason;
use agentd_api::scripts::ProposedScript;
use agentd_api::session::{AgentInfo, Condition, ConditionStatus, ConditionType, PermissionRequest, Phase};
use agentd_api::{ByteString, PermissionId, TurnId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::acp::{Call, Capabilities, RpcError};
use crate::completion::CompletionState;
use crate::facts::ObservedFacts;
use crate::limit::LimitedTurn;
use crate::login::Login;
use crate::note::{PendingNote, ToolCallName};
use crate::options::{AgentOptions, ChangedOptions};
use crate::placed::Placed;
use crate::repositories::Repositories;
use crate::spec::{AwaitingChanges, LifeTimes};
use crate::staleness::{self, Staleness};
pub use crate::title::Title;
use crate::verdict::WAITING;
use crate::workflow::Workflow;

/// Reason of a condition that is false until the agent is started again.
pub const RESTARTING: &str = reason::RESTARTING;
/// Reason and message of a condition that is false because a client stopped the session.
pub const STOPPED: &str = reason::STOPPED;
pub const WAS_STOPPED: &str = "the session was stopped";

/// State of a session after the record `seq`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Sequence number of the last record applied; 0 before the first.
    pub seq: u64,
    pub updated: Timestamp,
    pub launches: u64,
    pub run: Run,
    pub conditions: Vec<Condition>,
    /// The conversation that the next launch continues.
    pub conversation: Option<String>,
    /// Whether the conversation is that of another session, which this session has not opened yet.
    #[serde(default)]
    pub is_taken_over: bool,
    pub agent: Option<AgentInfo>,
    /// Whether the agent copies conversations (ACP `session/fork`).
    #[serde(default)]
    pub can_fork: bool,
    /// Whether the agent deletes conversations (ACP `session/delete`).
    #[serde(default)]
    pub can_delete: bool,
    /// The agent's login methods (ACP `authMethods`).
    #[serde(default)]
    pub login_methods: Vec<LoginMethod>,
    /// The login method that the launch requests.
    #[serde(default)]
    pub login: Option<String>,
    /// Login methods that use a key of the launch, in the order of preference.
    #[serde(default)]
    pub key_logins: Vec<String>,
    /// MCP servers of the launch.
    #[serde(default)]
    pub mcp: Vec<LaunchedServer>,
    pub queue: VecDeque<QueuedTurn>,
    /// The turn that met a rate limit, until its end.
    #[serde(default)]
    pub limit: Option<LimitedTurn>,
    /// Turn whose agent has exited while `turn.ended` is not recorded yet.
    pub cut: Option<CutTurn>,
    pub permissions: Vec<OpenPermission>,
    /// The place of the last agent, if that is not this machine.
    #[serde(default)]
    pub placed: Option<Placed>,
    /// The keeper that holds or held the session's last agent.
    pub keeper: Option<KeeperId>,
    /// `HOME` of the last environment built, and `HOME` of the environment in which the conversation was created.
    pub home: Option<String>,
    pub conversation_home: Option<String>,
    /// Variables that name where the agent keeps its conversations: in the last environment built, and in that in which
    /// the conversation was created.
    #[serde(default)]
    pub places: BTreeMap<String, Option<ByteString>>,
    #[serde(default)]
    pub conversation_places: BTreeMap<String, Option<ByteString>>,
    /// Directory in which the agent opened the conversation first.
    #[serde(default)]
    pub conversation_directory: Option<PathBuf>,
    /// Creation time of the conversation.
    pub conversation_born: Option<Timestamp>,
    /// Facts for the note that precedes the next prompt. A stored state without this field gets a default that
    /// assumes earlier turns, because its journal may be truncated.
    #[serde(rename = "untold", default = "PendingNote::of_older_state")]
    pub pending_note: PendingNote,
    /// Changes of the specification that wait for a launch.
    #[serde(default)]
    pub awaiting: AwaitingChanges,
    /// Start and end of the session, and of its readiness.
    #[serde(default)]
    pub times: LifeTimes,
    /// The session's context sets.
    #[serde(default)]
    pub context: Context,
    /// Files of the context that did not exist at the last launch.
    #[serde(default)]
    pub context_missing: Vec<String>,
    /// The environment hint.
    #[serde(default)]
    pub hint: Option<String>,
    /// The parts of the session's title.
    #[serde(default)]
    pub title: Title,
    /// The last reported progress.
    #[serde(default)]
    pub progress: Option<Progress>,
    /// The script that was proposed last.
    #[serde(default)]
    pub proposal: Option<ProposedScript>,
    /// Time at which a person last looked at the session.
    #[serde(default)]
    pub observed: Option<Timestamp>,
    /// Time at which the last turn ended.
    #[serde(default)]
    pub turn_ended_at: Option<Timestamp>,
    /// Earliest expiry of a value in the agent's environment.
    #[serde(default)]
    pub expires: Option<Timestamp>,
    /// Time of the next renewal of expiring values. Absent in states stored by older releases, which renew at
    /// `expires`.
    #[serde(default)]
    pub renews: Option<Timestamp>,
    /// Variables of the running agent whose values are out of date.
    #[serde(default)]
    pub stale: Vec<StaleVariable>,
    /// Last report of each prerequisite of this launch.
    #[serde(default)]
    pub prerequisites: Vec<CheckReport>,
    /// The requester that forced the launch despite unmet prerequisites.
    #[serde(default)]
    pub forced_by: Option<Requester>,
    /// The requester that allowed the launch to leave out failed parts.
    #[serde(default)]
    pub degraded_by: Option<Requester>,
    /// Everything that the launch left out.
    #[serde(default)]
    pub degraded: Vec<MissingPart>,
    /// The limit that the agent exceeded, if the agent was ended for that reason.
    #[serde(default)]
    pub exceeded: Option<Exceeded>,
    /// Times of the agent's crashes since the last launch that a client requested. Counts only crashes that a
    /// restart can help.
    pub crashes: Vec<Timestamp>,
    /// Idempotency keys of the prompts of the last day, oldest first.
    pub keys: VecDeque<PromptKey>,
    pub next_turn: u64,
    pub next_permission: u64,
    pub next_rpc: u64,
    /// Facts about the session's directory.
    #[serde(default)]
    pub facts: ObservedFacts,
    /// Staleness that the last launch found.
    #[serde(default)]
    pub staleness: Staleness,
    /// The session's repositories.
    #[serde(default)]
    pub repositories: Repositories,
    /// The session's workflow.
    #[serde(default)]
    pub workflow: Workflow,
    /// Values that the environment and the configuration want for options of the agent.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Options whose values were changed in the conversation.
    #[serde(default)]
    pub changed_options: ChangedOptions,
    /// Completion, limits and usage.
    #[serde(default)]
    pub completion: CompletionState,
}

/// Identity of one keeper process. A pid alone is reused, so the start time is part of the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperId {
    pub pid: u32,
    pub start_time: u64,
    pub launch: u64,
    /// Version of the keeper's frame protocol.
    pub protocol: u32,
    /// Whether the keeper puts the contents of files into prompts.
    #[serde(default)]
    pub fills_contents: bool,
}

/// Idempotency key of a prompt, kept to recognise a repeated request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptKey {
    pub key: String,
    pub turn: TurnId,
    /// SHA-256 of the prompt. A request that uses a known key with another prompt is refused.
    pub digest: String,
    pub seq: u64,
    /// Time at which the prompt was queued; absent in states stored by older releases.
    #[serde(default)]
    pub time: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
/// Progress of the session's current or last launch.
pub enum Run {
    Ended(Ended),
    Preparing(Preparing),
    Running(Box<Running>),
}

/// No agent runs and no launch is in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    Pending,
    Stopped,
    Failed(String),
    /// The agent was ended for another workflow. The next launch follows at once.
    Switching,
    Completed,
}

/// A launch that checks prerequisites and builds the environment. No agent process exists yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preparing {
    pub launch: u64,
    pub reason: LaunchReason,
    /// Whether to create a new conversation even if an earlier one could be continued.
    pub fresh: bool,
    pub stop: bool,
    /// Time until which the launch waits for unmet prerequisites.
    #[serde(default)]
    pub wait_until: Option<Timestamp>,
}

/// A launch whose agent process exists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Running {
    pub launch: u64,
    pub reason: LaunchReason,
    pub fresh: bool,
    pub pid: u32,
    pub start_time: u64,
    /// The isolation applied to the agent.
    #[serde(default)]
    pub isolation: Isolated,
    /// Requests sent to the agent in this launch and not answered yet.
    pub pending: BTreeMap<u64, Pending>,
    /// Requests of the agent not answered yet, in order of arrival.
    pub asked: Vec<AgentRequest>,
    pub opening: Opening,
    /// Abilities of the agent, from its answer to `initialize`.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Whether the conversation is opened for the second time, in the directory in which it was created.
    #[serde(default)]
    pub is_second_attempt: bool,
    /// Options that the agent offers.
    #[serde(default)]
    pub options: AgentOptions,
    /// The login of this launch.
    #[serde(default)]
    pub login: Login,
    /// Requests to an editor that the agent was offered.
    #[serde(default)]
    pub editor: BTreeSet<EditorTool>,
    /// Open tool calls, the latest last. A permission request may leave out details that its tool call has reported
    /// before.
    #[serde(default)]
    pub calls: VecDeque<Call>,
    pub turn: Option<RunningTurn>,
    /// Sequence number since which no turn has run.
    pub idle_since: u64,
    pub ending: Option<EndReason>,
}

/// A request to the agent whose response is outstanding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pending {
    Initialize,
    Authenticate,
    Open(OpenedBy),
    Prompt(TurnId),
    /// Sets the option with this id.
    Option {
        option: String,
        value: String,
    },
}

/// A request of the agent that agentd has not answered yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentRequest {
    pub rpc: Value,
    pub method: String,
    /// Content of a permission request or a question. `None` for any other method, and for a request that cannot be
    /// parsed.
    pub permission: Option<agentd_permission::PermissionDraft>,
    /// The form or the page of a question.
    #[serde(default)]
    pub elicitation: Option<Elicitation>,
}

/// A permission request that a client or a policy has to answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenPermission {
    pub request: PermissionRequest,
    pub rpc: Value,
}

/// Progress of opening the conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Opening {
    /// `initialize` has not been answered.
    Initializing,
    Initialized(Capabilities),
    /// The agent returned the id of a new conversation, or accepted the id that agentd sent.
    Answered {
        conversation: String,
        by: OpenedBy,
    },
    Open,
    /// The agent refused to open the conversation.
    Refused(OpenRefused),
}

/// Reason why a conversation could not be opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum OpenRefused {
    Initialize(String),
    Open { by: OpenedBy, error: String, code: i64 },
}

/// A prompt that waits for its turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedTurn {
    pub id: TurnId,
    pub prompt: String,
    /// Parts that follow the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PromptPart>,
}

/// The turn that the agent works on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunningTurn {
    pub id: TurnId,
    pub prompt: String,
    /// Parts that follow the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PromptPart>,
    pub cancelling: bool,
    /// Sequence number of the agent's last message.
    pub heard: u64,
    /// Whether a long silence of the agent is already recorded.
    pub silent: bool,
    pub stderr: VecDeque<String>,
    /// Ids of the tool calls that have not ended.
    pub tool_calls: BTreeSet<String>,
    pub answer: Option<PromptAnswer>,
}

/// A turn that ran when its agent exited, until the end of the turn is recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CutTurn {
    pub id: TurnId,
    pub tool_calls: Vec<String>,
    /// Names of these calls, for the note.
    #[serde(default)]
    pub calls: Vec<ToolCallName>,
    pub detail: String,
    pub stderr: Vec<String>,
    /// The agent's answer to the prompt, if the answer arrived before the agent exited.
    #[serde(default)]
    pub answer: Option<PromptAnswer>,
}

/// An agent's answer to a prompt: its stop reason, or its error.
pub type PromptAnswer = Result<Option<String>, RpcError>;

/// Reason for ending the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndReason {
    Stop,
    /// The launch failed after the agent had been started.
    Failure(String),
    /// Another workflow came into force.
    Switch,
    /// The agent process lives but cannot work any more. Counts as a crash.
    Unusable(String),
}

impl State {
    /// Returns the state of a session without records.
    pub fn new(created: Timestamp) -> Self {
        Self {
            seq: 0,
            updated: created,
            launches: 0,
            run: Run::Ended(Ended::Pending),
            conditions: Vec::new(),
            conversation: None,
            is_taken_over: false,
            agent: None,
            can_fork: false,
            can_delete: false,
            login_methods: Vec::new(),
            login: None,
            key_logins: Vec::new(),
            mcp: Vec::new(),
            queue: VecDeque::new(),
            limit: None,
            cut: None,
            permissions: Vec::new(),
            placed: None,
            keeper: None,
            home: None,
            conversation_home: None,
            places: BTreeMap::new(),
            conversation_places: BTreeMap::new(),
            conversation_directory: None,
            conversation_born: None,
            pending_note: PendingNote::default(),
            awaiting: AwaitingChanges::default(),
            times: LifeTimes::default(),
            context: Context::default(),
            context_missing: Vec::new(),
            hint: None,
            title: Title::default(),
            progress: None,
            proposal: None,
            observed: None,
            turn_ended_at: None,
            expires: None,
            renews: None,
            stale: Vec::new(),
            prerequisites: Vec::new(),
            forced_by: None,
            degraded_by: None,
            degraded: Vec::new(),
            exceeded: None,
            crashes: Vec::new(),
            keys: VecDeque::new(),
            next_turn: 1,
            next_permission: 1,
            next_rpc: 1,
            facts: ObservedFacts::default(),
            staleness: Staleness::default(),
            repositories: Repositories::default(),
            workflow: Workflow::default(),
            options: BTreeMap::new(),
            changed_options: ChangedOptions::default(),
            completion: CompletionState::default(),
        }
    }

    /// Returns the phase that follows from the journal alone. [`crate::waits::phase`] also considers restarts after
    /// a crash.
    pub fn phase(&self) -> Phase {
        match &self.run {
            Run::Ended(Ended::Pending) => Phase::Pending,
            // The result is not recorded yet.
            Run::Ended(ended) if self.awaits_completion() && *ended != Ended::Switching => Phase::Stopping,
            Run::Ended(Ended::Completed) => Phase::Completed,
            Run::Ended(Ended::Stopped) => Phase::Stopped,
            Run::Ended(Ended::Failed(_)) => Phase::Failed,
            Run::Preparing(preparing) if preparing.stop => Phase::Stopping,
            Run::Preparing(_) if self.is_waiting() || staleness::question(self).is_some() => Phase::Waiting,
            Run::Ended(Ended::Switching) | Run::Preparing(_) => Phase::Preparing,
            Run::Running(running) if running.ending.is_some() => Phase::Stopping,
            Run::Running(_) if staleness::question(self).is_some() => Phase::Waiting,
            Run::Running(_) if self.placed.as_ref().is_some_and(Placed::is_queued) => Phase::Waiting,
            Run::Running(running) => match (&running.opening, &running.turn) {
                (Opening::Open, Some(_)) => Phase::Busy,
                (Opening::Open, None) if self.limited().is_some() => Phase::Limited,
                (Opening::Open, None) => Phase::Idle,
                _ => Phase::Starting,
            },
        }
    }

    /// Returns the requester that let the launch ignore unmet prerequisites. A degraded launch ignores them too.
    pub fn forced(&self) -> Option<&Requester> {
        self.forced_by.as_ref().or(self.degraded_by.as_ref())
    }

    /// Reports whether the agent is being ended and then started again: it cannot work any more, or another workflow
    /// came into force.
    pub fn is_started_again(&self) -> bool {
        let Run::Running(running) = &self.run else { return false };
        matches!(running.ending, Some(EndReason::Unusable(_) | EndReason::Switch))
    }

    /// Reports whether the condition `AgentStarted` has this reason.
    pub fn agent_started_reason_is(&self, reason: &str) -> bool {
        self.condition(ConditionType::AgentStarted).is_some_and(|condition| condition.reason == reason)
    }

    /// Reports whether records about an exited agent are outstanding: the end of its turn, or the end of a
    /// permission request. No launch begins before these records are written.
    pub fn is_unclosed(&self) -> bool {
        self.cut.is_some() || (matches!(self.run, Run::Ended(_)) && !self.permissions.is_empty())
    }

    /// Reports whether the launch waits for prerequisites, or waited for them when it ended.
    pub fn is_waiting(&self) -> bool {
        self.condition(ConditionType::PrerequisitesMet).is_some_and(|condition| condition.reason == WAITING)
    }

    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    pub fn holds(&self, kind: ConditionType) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == ConditionStatus::True)
    }

    pub fn turn_mut(&mut self) -> Option<&mut RunningTurn> {
        match &mut self.run {
            Run::Running(running) => running.turn.as_mut(),
            Run::Ended(_) | Run::Preparing(_) => None,
        }
    }

    /// Returns the time since which no turn has run, if a turn has ended and none runs.
    pub fn idle_since(&self) -> Option<Timestamp> {
        let is_busy = matches!(&self.run, Run::Running(running) if running.turn.is_some());
        self.turn_ended_at.filter(|_| !is_busy)
    }

    /// Returns the id of the next permission request to be recorded.
    pub fn next_permission_id(&self) -> PermissionId {
        PermissionId::numbered(self.next_permission)
    }
}

/// Returns the SHA-256 of a prompt and its schema in hex, which identifies a repeated prompt.
pub fn prompt_digest(queued: &TurnQueued) -> String {
    use sha2::{Digest as _, Sha256};
    let mut digest = Sha256::new_with_prefix(&queued.prompt);
    if let Some(schema) = &queued.schema {
        digest.update([0]);
        digest.update(schema.to_string());
    }
    for part in &queued.parts {
        digest.update([1]);
        digest.update(serde_json::to_vec(part).unwrap_or_default());
    }
    agentd_api::hex(&digest.finalize())
}
