//! What is known of a session: the fold of its journal.
//!
//! [`State::apply`] is the only way a state changes, in normal running and after a crash alike. It is total: a record that does
//! not fit (a kind from the future, an answer to a question nobody asked) changes nothing but the seq. It does no I/O and reads
//! no clock.
//!
//! ```text
//!             launch.started               agent.started
//!   Ended ───────────────────► Preparing ─────────────────► Running ──► agent.exited ──► Ended
//!     ▲  (pending stopped failed)  │  launch.failed            │ starting → idle ⇄ busy → stopping
//!     └────────────────────────────┘◄──────────────────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use agentd_api::event::{
    AgentExited, AgentStarted, ConversationOpened, LaunchStarted, OpenedBy, PermissionRequested, TurnStarted,
};
use agentd_api::session::{AgentInfo, Condition, ConditionStatus, ConditionType, PermissionRequest, Phase};
use agentd_api::{Body, Event, PermissionId, TurnId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::acp::{self, Capabilities, Message, RpcError, ToolCall};

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
    pub(crate) queue: VecDeque<QueuedTurn>,
    /// A turn that its agent can no longer end.
    pub(crate) cut: Option<CutTurn>,
    pub(crate) permissions: Vec<OpenPermission>,
    pub(crate) next_turn: u64,
    pub(crate) next_permission: u64,
    pub(crate) next_rpc: u64,
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
    /// Begin a new conversation even though there is one to continue.
    pub(crate) fresh: bool,
    pub(crate) keeper: Option<u32>,
    pub(crate) stop: bool,
}

/// An agent process is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) launch: u64,
    pub(crate) fresh: bool,
    pub(crate) keeper: Option<u32>,
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
    /// Requests sent to the agent in this launch and not answered yet.
    pub(crate) pending: BTreeMap<u64, Pending>,
    /// Requests of the agent not answered yet, in the order they came.
    pub(crate) asked: Vec<Asked>,
    pub(crate) opening: Opening,
    pub(crate) turn: Option<RunningTurn>,
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
    /// Tool calls whose end has not been seen.
    pub(crate) tool_calls: BTreeSet<String>,
    /// The agent's answer to the prompt: its stop reason, or its error.
    pub(crate) answer: Option<Result<Option<String>, RpcError>>,
}

/// A turn whose agent is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CutTurn {
    pub(crate) id: TurnId,
    pub(crate) tool_calls: Vec<String>,
    pub(crate) detail: String,
}

/// Why the agent is being ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    Stop,
    /// The launch failed after the agent had been started.
    Failure(String),
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
            queue: VecDeque::new(),
            cut: None,
            permissions: Vec::new(),
            next_turn: 1,
            next_permission: 1,
            next_rpc: 1,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        match &self.run {
            Run::Ended(Ended::Pending) => Phase::Pending,
            Run::Ended(Ended::Stopped) => Phase::Stopped,
            Run::Ended(Ended::Failed(_)) => Phase::Failed,
            Run::Preparing(preparing) if preparing.stop => Phase::Stopping,
            Run::Preparing(_) => Phase::Preparing,
            Run::Running(running) if running.ending.is_some() => Phase::Stopping,
            Run::Running(running) => match (&running.opening, &running.turn) {
                (Opening::Open, Some(_)) => Phase::Busy,
                (Opening::Open, None) => Phase::Idle,
                _ => Phase::Starting,
            },
        }
    }

    pub(crate) fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    pub(crate) fn holds(&self, kind: ConditionType) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == ConditionStatus::True)
    }

    /// Folds one record in.
    pub(crate) fn apply(&mut self, event: &Event) {
        self.seq = event.seq;
        self.updated = event.time;
        match &event.body {
            Body::LaunchStarted(started) => self.launch_started(started),
            Body::LaunchFailed(failed) => self.launch_failed(&failed.message),
            Body::Condition(condition) => self.set_condition(condition),
            Body::KeeperStarted(keeper) => match &mut self.run {
                Run::Preparing(preparing) => preparing.keeper = Some(keeper.pid),
                Run::Running(_) | Run::Ended(_) => {}
            },
            Body::AgentStarted(agent) => self.agent_started(agent),
            Body::AgentOut(line) => self.agent_out(line),
            Body::AgentIn(line) => self.agent_in(line),
            Body::AgentExited(exited) => self.agent_exited(exited),
            Body::ConversationOpened(opened) => self.conversation_opened(opened),
            Body::TurnQueued(queued) => {
                self.queue.push_back(QueuedTurn { id: queued.turn.clone(), prompt: queued.prompt.clone() });
                self.next_turn += 1;
            }
            Body::TurnStarted(started) => self.turn_started(started),
            Body::TurnEnded(ended) => self.turn_ended(&ended.turn),
            Body::TurnCancelling(cancelling) => {
                if let Some(turn) = self.turn_mut().filter(|turn| turn.id == cancelling.turn) {
                    turn.cancelling = true;
                }
            }
            Body::PermissionRequested(requested) => self.permission_requested(requested),
            Body::PermissionResolved(resolved) => {
                self.permissions.retain(|open| open.request.id != resolved.permission);
            }
            Body::StopRequested(_) => match &mut self.run {
                Run::Preparing(preparing) => preparing.stop = true,
                Run::Running(running) => running.ending = Some(Ending::Stop),
                Run::Ended(_) => {}
            },
            Body::SessionCreated(_)
            | Body::EnvironmentBuilt(_)
            | Body::AgentNoise(_)
            | Body::AgentStderr(_)
            | Body::AgentReplayed(_)
            | Body::DaemonRecovered(_)
            | Body::Unknown { .. } => {}
        }
    }

    fn launch_started(&mut self, started: &LaunchStarted) {
        self.launches = started.launch;
        self.conditions.clear();
        self.run = Run::Preparing(Preparing {
            launch: started.launch,
            fresh: started.fresh || self.conversation.is_none(),
            keeper: None,
            stop: false,
        });
    }

    fn launch_failed(&mut self, message: &str) {
        match &mut self.run {
            Run::Preparing(preparing) if preparing.stop => self.run = Run::Ended(Ended::Stopped),
            Run::Preparing(_) => self.run = Run::Ended(Ended::Failed(message.to_owned())),
            // The agent is there and has to be ended first.
            Run::Running(running) => running.ending = Some(Ending::Failure(message.to_owned())),
            Run::Ended(_) => {}
        }
    }

    fn set_condition(&mut self, condition: &Condition) {
        match self.conditions.iter_mut().find(|known| known.kind == condition.kind) {
            Some(known) => *known = condition.clone(),
            None => self.conditions.push(condition.clone()),
        }
    }

    fn agent_started(&mut self, agent: &AgentStarted) {
        let Run::Preparing(preparing) = &self.run else { return };
        self.run = Run::Running(Box::new(Running {
            launch: agent.launch,
            fresh: preparing.fresh,
            keeper: preparing.keeper,
            pid: agent.pid,
            start_time: agent.start_time,
            pending: BTreeMap::new(),
            asked: Vec::new(),
            opening: Opening::Initializing,
            turn: None,
            ending: preparing.stop.then_some(Ending::Stop),
        }));
    }

    fn agent_exited(&mut self, exited: &AgentExited) {
        let (ending, turn) = match &mut self.run {
            Run::Running(running) => (running.ending.take(), running.turn.take()),
            // It could not be executed: that is the end of the launch.
            Run::Preparing(_) if exited.exec_error.is_some() => (None, None),
            // A keeper that had no agent yet has ended, and the launch goes on without it.
            Run::Preparing(preparing) => {
                preparing.keeper = None;
                return;
            }
            Run::Ended(_) => return,
        };
        let how = describe_exit(exited);
        self.cut = turn.map(|turn| CutTurn {
            id: turn.id,
            tool_calls: turn.tool_calls.into_iter().collect(),
            detail: how.clone(),
        });
        self.run = Run::Ended(match ending {
            Some(Ending::Stop) => Ended::Stopped,
            Some(Ending::Failure(message)) => Ended::Failed(message),
            None if exited.requested => Ended::Stopped,
            None => Ended::Failed(how),
        });
    }

    fn conversation_opened(&mut self, opened: &ConversationOpened) {
        self.conversation = Some(opened.conversation.clone());
        if let Run::Running(running) = &mut self.run {
            running.opening = Opening::Open;
        }
    }

    fn turn_started(&mut self, started: &TurnStarted) {
        let Some(position) = self.queue.iter().position(|queued| queued.id == started.turn) else { return };
        let Run::Running(running) = &mut self.run else { return };
        let Some(queued) = self.queue.remove(position) else { return };
        running.turn = Some(RunningTurn {
            id: queued.id,
            prompt: queued.prompt,
            cancelling: false,
            tool_calls: BTreeSet::new(),
            answer: None,
        });
    }

    fn turn_ended(&mut self, id: &TurnId) {
        self.queue.retain(|queued| queued.id != *id);
        if self.cut.as_ref().is_some_and(|cut| cut.id == *id) {
            self.cut = None;
        }
        if let Run::Running(running) = &mut self.run
            && running.turn.as_ref().is_some_and(|turn| turn.id == *id)
        {
            running.turn = None;
            // An answer that comes after the end belongs to nobody.
            running.pending.retain(|_, pending| !matches!(pending, Pending::Prompt(turn) if turn == id));
        }
    }

    fn permission_requested(&mut self, requested: &PermissionRequested) {
        self.next_permission += 1;
        self.permissions.push(OpenPermission { request: requested.request.clone(), rpc: requested.rpc.clone() });
    }

    /// A line we sent: what it asks is pending, what it answers is not asked any more.
    fn agent_in(&mut self, line: &RawValue) {
        let Run::Running(running) = &mut self.run else { return };
        match Message::parse(line) {
            Some(Message::Request { id, method, .. }) => {
                let Some(id) = id.as_u64() else { return };
                self.next_rpc = self.next_rpc.max(id + 1);
                let pending = match method.as_str() {
                    acp::method::INITIALIZE => Pending::Initialize,
                    acp::method::NEW if running.fresh => Pending::Open(OpenedBy::New),
                    acp::method::NEW => Pending::Open(OpenedBy::NewAfterLoss),
                    acp::method::LOAD => Pending::Open(OpenedBy::Load),
                    acp::method::RESUME => Pending::Open(OpenedBy::Resume),
                    acp::method::PROMPT => match &running.turn {
                        Some(turn) => Pending::Prompt(turn.id.clone()),
                        None => return,
                    },
                    _ => return,
                };
                running.pending.insert(id, pending);
            }
            Some(Message::Response { id, .. }) => running.asked.retain(|asked| asked.rpc != id),
            Some(Message::Notification { .. }) | None => {}
        }
    }

    fn agent_out(&mut self, line: &RawValue) {
        let Run::Running(running) = &mut self.run else { return };
        match Message::parse(line) {
            Some(Message::Request { id, method, params }) => {
                let permission = (method == acp::method::REQUEST_PERMISSION)
                    .then(|| params.and_then(acp::permission_request))
                    .flatten()
                    .map(|(title, tool_kind, options)| PermissionDraft { title, tool_kind, options });
                running.asked.push(Asked { rpc: id, method, permission });
            }
            Some(Message::Notification { method, params: Some(params) }) if method == acp::method::UPDATE => {
                if let Some(turn) = &mut running.turn {
                    match acp::tool_call(params) {
                        Some(ToolCall::Open(id)) => drop(turn.tool_calls.insert(id)),
                        Some(ToolCall::Closed(id)) => drop(turn.tool_calls.remove(&id)),
                        None => {}
                    }
                }
            }
            Some(Message::Response { id, result }) => {
                let pending = id.as_u64().and_then(|id| running.pending.remove(&id));
                match pending {
                    Some(Pending::Initialize) => self.initialized(result),
                    Some(Pending::Open(by)) => self.opened(by, result),
                    Some(Pending::Prompt(id)) => {
                        if let Some(turn) = self.turn_mut().filter(|turn| turn.id == id) {
                            turn.answer = Some(result.map(acp::stop_reason));
                        }
                    }
                    None => {}
                }
            }
            Some(Message::Notification { .. }) | None => {}
        }
    }

    fn initialized(&mut self, result: Result<&RawValue, RpcError>) {
        let opening = match result.map_err(|error| error.to_string()).and_then(acp::initialized) {
            Ok(initialized) if initialized.protocol == 1 => {
                self.agent = initialized.agent;
                Opening::Initialized(initialized.capabilities)
            }
            Ok(initialized) => Opening::Refused(OpenRefused::Initialize(format!(
                "it speaks version {} of the Agent Client Protocol; agentd speaks version 1",
                initialized.protocol
            ))),
            Err(error) => Opening::Refused(OpenRefused::Initialize(error)),
        };
        self.set_opening(opening);
    }

    fn opened(&mut self, by: OpenedBy, result: Result<&RawValue, RpcError>) {
        let refused = |error: String, code: i64| Opening::Refused(OpenRefused::Open { by, error, code });
        let opening = match (result, by) {
            (Err(error), _) => refused(error.to_string(), error.code),
            (Ok(_), OpenedBy::Load | OpenedBy::Resume) => match &self.conversation {
                Some(conversation) => Opening::Answered { conversation: conversation.clone(), by },
                None => return,
            },
            (Ok(result), _) => match acp::opened(result) {
                Some(conversation) => Opening::Answered { conversation, by },
                None => refused("its answer has no sessionId".to_owned(), 0),
            },
        };
        self.set_opening(opening);
    }

    fn set_opening(&mut self, opening: Opening) {
        if let Run::Running(running) = &mut self.run {
            running.opening = opening;
        }
    }

    fn turn_mut(&mut self) -> Option<&mut RunningTurn> {
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

/// How an agent ended, for people.
pub(crate) fn describe_exit(exited: &AgentExited) -> String {
    match (&exited.exec_error, exited.status, exited.signal) {
        (Some(error), _, _) => format!("the agent could not be started: {error}"),
        (None, Some(status), _) => format!("the agent exited with status {status}"),
        (None, None, Some(signal)) => format!("the agent was ended by signal {signal}"),
        (None, None, None) => "the agent's keeper ended without a word, and the agent with it".to_owned(),
    }
}
