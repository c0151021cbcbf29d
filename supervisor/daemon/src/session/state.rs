//! What is known of a session, as its journal has it. How a record changes it is [`super::fold`]'s.
//!
//! It does no I/O and reads no clock. Each state of a run holds what is true in it, and nothing else:
//!
//! ```text
//!             launch.started               agent.started
//!   Ended ───────────────────► Preparing ─────────────────► Running ──► agent.exited ──► Ended
//!     ▲  (pending stopped failed)  │  launch.failed            │ starting → idle ⇄ busy → stopping
//!     └────────────────────────────┘◄──────────────────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use agentd_api::event::{Exceeded, LaunchReason, OpenedBy, StaleVariable};
use agentd_api::isolation::Isolated;
use agentd_api::permission::ToolDetails;
use agentd_api::prerequisite::{CheckReport, Requester};
use agentd_api::session::{AgentInfo, Condition, ConditionStatus, ConditionType, PermissionRequest, Phase};
use agentd_api::{PermissionId, TurnId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::note::Untold;
use super::verdict::WAITING;
use crate::acp::{Call, Capabilities, RpcError};

/// The reason of a condition that is false until the agent is started again.
pub(super) const RESTARTING: &str = "Restarting";
/// The reason of a condition that is false since somebody stopped the session, and its message.
pub(super) const STOPPED: &str = "Stopped";
pub(super) const WAS_STOPPED: &str = "the session was stopped";

/// A session's state at `seq`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Of the last record applied; 0 before the first.
    pub(crate) seq: u64,
    pub(crate) updated: Timestamp,
    pub(crate) launches: u64,
    pub(crate) run: Run,
    pub(crate) conditions: Vec<Condition>,
    /// The conversation to continue at the next launch.
    pub(crate) conversation: Option<String>,
    pub(crate) agent: Option<AgentInfo>,
    /// How the agent can be signed in, in its words (ACP `authMethods`).
    #[serde(default)]
    pub(crate) sign_in: Vec<String>,
    pub(crate) queue: VecDeque<QueuedTurn>,
    /// A turn whose agent has ended and whose own end is not recorded yet.
    pub(crate) cut: Option<CutTurn>,
    pub(crate) permissions: Vec<OpenPermission>,
    /// The keeper that holds or held the session's last agent.
    pub(crate) keeper: Option<KeeperId>,
    /// The home that the last environment gave, and the one the conversation was begun in.
    pub(crate) home: Option<String>,
    pub(crate) conversation_home: Option<String>,
    /// When the conversation was begun, as a new one.
    pub(crate) conversation_born: Option<Timestamp>,
    /// What stands in front of the next prompt. Folds of before it was kept stay what they are: their journals may have been cut.
    #[serde(default = "Untold::of_an_older_fold")]
    pub(crate) untold: Untold,
    /// When the first thing of the agent's environment expires.
    #[serde(default)]
    pub(crate) expires: Option<Timestamp>,
    /// When what expires is asked for again. Folds of older releases have none: there it is when it expires.
    #[serde(default)]
    pub(crate) renews: Option<Timestamp>,
    /// What the running agent has and would not be given any more.
    #[serde(default)]
    pub(crate) stale: Vec<StaleVariable>,
    /// What was found last of what this launch needs.
    #[serde(default)]
    pub(crate) prerequisites: Vec<CheckReport>,
    /// Who asked that it be launched whatever is missing.
    #[serde(default)]
    pub(crate) forced_by: Option<Requester>,
    /// What its agent had more of than it may, where that ended it.
    #[serde(default)]
    pub(crate) exceeded: Option<Exceeded>,
    /// When the agent crashed since the last launch that a client asked for; only crashes that restarts are for.
    pub(crate) crashes: Vec<Timestamp>,
    /// The keys of the prompts of the last day, oldest first.
    pub(crate) keys: VecDeque<PromptKey>,
    pub(crate) next_turn: u64,
    pub(crate) next_permission: u64,
    pub(crate) next_rpc: u64,
}

/// One process and no other: a pid alone comes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeeperId {
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
    pub(crate) launch: u64,
    /// Of its frames.
    pub(crate) protocol: u32,
}

/// A prompt that was given a key, so that its repetition is known as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PromptKey {
    pub(crate) key: String,
    pub(crate) turn: TurnId,
    /// SHA-256 of the prompt: the same key for another prompt is a mistake.
    pub(crate) digest: String,
    pub(crate) seq: u64,
    /// When the prompt was queued; absent in folds of before this was kept.
    #[serde(default)]
    pub(crate) time: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Run {
    Ended(Ended),
    Preparing(Preparing),
    Running(Box<Running>),
}

/// Nothing runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ended {
    Pending,
    Stopped,
    Failed(String),
}

/// The world is checked and the environment built; no agent yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Preparing {
    pub(crate) launch: u64,
    pub(crate) reason: LaunchReason,
    /// Begin a new conversation even though there is one to continue.
    pub(crate) fresh: bool,
    pub(crate) stop: bool,
    /// Until when it waits for what is missing.
    #[serde(default)]
    pub(crate) wait_until: Option<Timestamp>,
}

/// An agent process is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) launch: u64,
    pub(crate) reason: LaunchReason,
    pub(crate) fresh: bool,
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
    /// What the agent is kept from.
    #[serde(default)]
    pub(crate) isolation: Isolated,
    /// Requests sent to the agent in this launch and not answered yet.
    pub(crate) pending: BTreeMap<u64, Pending>,
    /// Requests of the agent not answered yet, in the order they came.
    pub(crate) asked: Vec<Asked>,
    pub(crate) opening: Opening,
    /// Tool calls that were announced and have not ended, the latest last. A permission request may leave out what they said.
    #[serde(default)]
    pub(crate) calls: VecDeque<Call>,
    pub(crate) turn: Option<RunningTurn>,
    /// The seq since which no turn has run.
    pub(crate) idle_since: u64,
    pub(crate) ending: Option<Ending>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pending {
    Initialize,
    Open(OpenedBy),
    Prompt(TurnId),
}

/// A request of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) rpc: Value,
    pub(crate) method: String,
    /// For a permission request: what it asks, under no id of ours yet.
    pub(crate) permission: Option<PermissionDraft>,
}

/// What a permission request says, before it has an id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PermissionDraft {
    pub(crate) title: String,
    pub(crate) tool_kind: Option<String>,
    /// What the agent said of the tool call, in this request or before. Folds of older releases have none.
    #[serde(default)]
    pub(crate) details: ToolDetails,
    pub(crate) options: Vec<agentd_api::session::PermissionOption>,
}

/// A permission request that a client or a policy has to answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OpenPermission {
    pub(crate) request: PermissionRequest,
    pub(crate) rpc: Value,
}

/// How far the conversation is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Opening {
    /// `initialize` has not been answered.
    Initializing,
    Initialized(Capabilities),
    /// The agent gave an id, or took ours.
    Answered {
        conversation: String,
        by: OpenedBy,
    },
    Open,
    /// It could not be opened.
    Refused(OpenRefused),
}

/// Why a conversation could not be opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum OpenRefused {
    Initialize(String),
    Open { by: OpenedBy, error: String, code: i64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueuedTurn {
    pub(crate) id: TurnId,
    pub(crate) prompt: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunningTurn {
    pub(crate) id: TurnId,
    pub(crate) prompt: String,
    pub(crate) cancelling: bool,
    /// The seq of the last thing the agent said.
    pub(crate) heard: u64,
    /// That it has been silent for long is recorded.
    pub(crate) silent: bool,
    pub(crate) stderr: VecDeque<String>,
    /// Tool calls whose end has not been seen.
    pub(crate) tool_calls: BTreeSet<String>,
    pub(crate) answer: Option<Answer>,
}

/// A turn that was running when its agent ended, until its end is recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CutTurn {
    pub(crate) id: TurnId,
    pub(crate) tool_calls: Vec<String>,
    pub(crate) detail: String,
    pub(crate) stderr: Vec<String>,
    /// The agent's answer to the prompt, where it came before the agent's end.
    #[serde(default)]
    pub(crate) answer: Option<Answer>,
}

/// An agent's answer to a prompt: its stop reason, or its error.
pub(crate) type Answer = Result<Option<String>, RpcError>;

/// Why the agent is being ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    Stop,
    /// The launch failed after the agent had been started.
    Failure(String),
    /// Its process lives and can do nothing any more: a crash like another.
    Unusable(String),
}

impl State {
    /// A session of which nothing is known yet.
    pub(crate) fn new(created: Timestamp) -> Self {
        Self {
            seq: 0,
            updated: created,
            launches: 0,
            run: Run::Ended(Ended::Pending),
            conditions: Vec::new(),
            conversation: None,
            agent: None,
            sign_in: Vec::new(),
            queue: VecDeque::new(),
            cut: None,
            permissions: Vec::new(),
            keeper: None,
            home: None,
            conversation_home: None,
            conversation_born: None,
            untold: Untold::default(),
            expires: None,
            renews: None,
            stale: Vec::new(),
            prerequisites: Vec::new(),
            forced_by: None,
            exceeded: None,
            crashes: Vec::new(),
            keys: VecDeque::new(),
            next_turn: 1,
            next_permission: 1,
            next_rpc: 1,
        }
    }

    /// The phase by the journal alone. [`super::waits::phase`] also knows whether the agent is to be started again.
    pub(crate) fn phase(&self) -> Phase {
        match &self.run {
            Run::Ended(Ended::Pending) => Phase::Pending,
            Run::Ended(Ended::Stopped) => Phase::Stopped,
            Run::Ended(Ended::Failed(_)) => Phase::Failed,
            Run::Preparing(preparing) if preparing.stop => Phase::Stopping,
            Run::Preparing(_) if self.is_waiting() => Phase::Waiting,
            Run::Preparing(_) => Phase::Preparing,
            Run::Running(running) if running.ending.is_some() => Phase::Stopping,
            Run::Running(running) => match (&running.opening, &running.turn) {
                (Opening::Open, Some(_)) => Phase::Busy,
                (Opening::Open, None) => Phase::Idle,
                _ => Phase::Starting,
            },
        }
    }

    /// Whether the agent is being ended since it can do nothing any more: it is started again after that.
    pub(crate) fn is_unusable(&self) -> bool {
        matches!(&self.run, Run::Running(running) if matches!(running.ending, Some(Ending::Unusable(_))))
    }

    /// Whether the condition of the agent's process has this reason.
    pub(crate) fn says_of_agent(&self, reason: &str) -> bool {
        self.condition(ConditionType::AgentStarted).is_some_and(|condition| condition.reason == reason)
    }

    /// Whether records of an agent that has ended are still to be written: the end of its turn, of its questions. No launch begins
    /// before they are.
    pub(crate) fn is_unclosed(&self) -> bool {
        self.cut.is_some() || (matches!(self.run, Run::Ended(_)) && !self.permissions.is_empty())
    }

    /// Whether something that it needs is waited for, or was when it ended.
    pub(crate) fn is_waiting(&self) -> bool {
        self.condition(ConditionType::PrerequisitesMet).is_some_and(|condition| condition.reason == WAITING)
    }

    pub(crate) fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    pub(crate) fn holds(&self, kind: ConditionType) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == ConditionStatus::True)
    }

    pub(super) fn turn_mut(&mut self) -> Option<&mut RunningTurn> {
        match &mut self.run {
            Run::Running(running) => running.turn.as_mut(),
            Run::Ended(_) | Run::Preparing(_) => None,
        }
    }

    /// The id a permission request gets that is recorded next.
    pub(crate) fn next_permission_id(&self) -> PermissionId {
        PermissionId::numbered(self.next_permission)
    }
}

/// What a prompt's repetition is known by.
pub(crate) fn prompt_digest(prompt: &str) -> String {
    use sha2::{Digest as _, Sha256};
    crate::env::hex(&Sha256::digest(prompt))
}
