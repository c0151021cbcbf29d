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
    AgentExited, AgentStarted, ConversationOpened, LaunchReason, LaunchStarted, OpenedBy, PermissionRequested,
    StaleVariable, TurnQueued, TurnStarted,
};
use agentd_api::prerequisite::{CheckReport, Requester};
use agentd_api::session::{AgentInfo, Condition, ConditionStatus, ConditionType, PermissionRequest, Phase};
use agentd_api::{Body, Event, PermissionId, TurnId};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::note::Untold;
use super::verdict::{WAITING, supersede};
use crate::acp::{Capabilities, RpcError};

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
    /// What the running agent has and would not be given any more.
    #[serde(default)]
    pub(crate) stale: Vec<StaleVariable>,
    /// What was found last of what this launch needs.
    #[serde(default)]
    pub(crate) prerequisites: Vec<CheckReport>,
    /// Who asked that it be launched whatever is missing.
    #[serde(default)]
    pub(crate) forced_by: Option<Requester>,
    /// When the agent crashed since the last launch that a client asked for; only crashes that restarts are for.
    pub(crate) crashes: Vec<Timestamp>,
    /// The keys of the last prompts, oldest first.
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
}

/// How many keys are remembered.
const KEYS: usize = 64;
/// Crashes further back than this count no more.
const CRASH_WINDOW: SignedDuration = SignedDuration::from_mins(10);
/// How many of a turn's last lines of stderr are told at a synthetic end.
const LAST_WORDS: usize = 5;

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
    /// Requests sent to the agent in this launch and not answered yet.
    pub(crate) pending: BTreeMap<u64, Pending>,
    /// Requests of the agent not answered yet, in the order they came.
    pub(crate) asked: Vec<Asked>,
    pub(crate) opening: Opening,
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
    /// The agent's answer to the prompt: its stop reason, or its error.
    pub(crate) answer: Option<Result<Option<String>, RpcError>>,
}

/// A turn whose agent is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CutTurn {
    pub(crate) id: TurnId,
    pub(crate) tool_calls: Vec<String>,
    pub(crate) detail: String,
    pub(crate) stderr: Vec<String>,
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
            keeper: None,
            home: None,
            conversation_home: None,
            conversation_born: None,
            untold: Untold::default(),
            expires: None,
            stale: Vec::new(),
            prerequisites: Vec::new(),
            forced_by: None,
            crashes: Vec::new(),
            keys: VecDeque::new(),
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

    /// Folds one record in.
    pub(crate) fn apply(&mut self, event: &Event) {
        self.seq = event.seq;
        self.updated = event.time;
        match &event.body {
            Body::LaunchStarted(started) => self.launch_started(started),
            Body::LaunchFailed(failed) => self.launch_failed(&failed.message),
            Body::Condition(condition) => self.set_condition(condition),
            Body::KeeperStarted(keeper) => {
                self.keeper = Some(KeeperId {
                    pid: keeper.pid,
                    start_time: keeper.start_time,
                    launch: keeper.launch,
                    protocol: keeper.protocol,
                });
            }
            Body::EnvironmentBuilt(built) => {
                self.home.clone_from(&built.home);
                self.expires = built.expires_at;
                self.untold.built(built);
            }
            Body::EnvironmentRefreshed(refreshed) if refreshed.launch == self.launches => {
                self.expires = refreshed.expires_at;
                self.stale.clone_from(&refreshed.stale);
            }
            Body::PrerequisitesChecked(checked) if checked.launch == self.launches => {
                supersede(&mut self.prerequisites, &checked.reports);
            }
            Body::PrerequisitesChanged(changed) if changed.launch == self.launches => {
                supersede(&mut self.prerequisites, &changed.reports);
            }
            Body::AgentStarted(agent) => self.agent_started(agent),
            Body::AgentOut(line) => {
                self.heard();
                self.agent_out(line);
            }
            Body::AgentStderr(line) => self.agent_stderr(&line.text.display()),
            Body::AgentIn(line) => self.agent_in(line),
            Body::AgentExited(exited) => self.agent_exited(exited),
            Body::ConversationOpened(opened) => self.conversation_opened(opened),
            Body::TurnQueued(queued) => self.turn_queued(queued),
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
            Body::TurnSilent(silent) => {
                if let Some(turn) = self.turn_mut().filter(|turn| turn.id == silent.turn) {
                    turn.silent = true;
                }
            }
            Body::EnvironmentRefreshed(_)
            | Body::PrerequisitesChecked(_)
            | Body::PrerequisitesChanged(_)
            | Body::PrerequisitesForced(_)
            | Body::SessionCreated(_)
            | Body::AgentNoise(_)
            | Body::AgentReplayed(_)
            | Body::DaemonRecovered(_)
            | Body::Unknown { .. } => {}
        }
    }

    /// Folds in lines of the agent that no rule looks at, by the last of them: the same as each of them in turn.
    pub(crate) fn said(&mut self, seq: u64, time: Timestamp) {
        (self.seq, self.updated) = (seq, time);
        self.heard();
    }

    fn launch_started(&mut self, started: &LaunchStarted) {
        self.launches = started.launch;
        self.conditions.clear();
        self.keeper = None;
        self.expires = None;
        self.stale.clear();
        self.prerequisites.clear();
        self.forced_by.clone_from(&started.forced_by);
        self.untold.launched(started.reason);
        if started.reason != LaunchReason::Restart {
            self.crashes.clear();
        }
        self.run = Run::Preparing(Preparing {
            launch: started.launch,
            reason: started.reason,
            fresh: started.fresh || self.conversation.is_none(),
            stop: false,
            wait_until: started.wait_until,
        });
    }

    fn launch_failed(&mut self, message: &str) {
        match &mut self.run {
            Run::Preparing(preparing) if preparing.stop => self.run = Run::Ended(Ended::Stopped),
            Run::Preparing(preparing) => {
                // A restart that cannot even begin is a crash more: tried again, after a longer pause, and not for ever.
                if preparing.reason == LaunchReason::Restart {
                    self.crashes.push(self.updated);
                }
                self.run = Run::Ended(Ended::Failed(message.to_owned()));
            }
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
            reason: preparing.reason,
            fresh: preparing.fresh,
            pid: agent.pid,
            start_time: agent.start_time,
            pending: BTreeMap::new(),
            asked: Vec::new(),
            opening: Opening::Initializing,
            turn: None,
            idle_since: self.seq,
            ending: preparing.stop.then_some(Ending::Stop),
        }));
    }

    fn agent_exited(&mut self, exited: &AgentExited) {
        let (ending, turn, lived) = match &mut self.run {
            Run::Running(running) => {
                let lived = running.opening == Opening::Open || running.reason == LaunchReason::Restart;
                (running.ending.take(), running.turn.take(), lived)
            }
            // It could not be executed: that is the end of the launch.
            Run::Preparing(preparing) if exited.exec_error.is_some() => {
                (None, None, preparing.reason == LaunchReason::Restart)
            }
            // A keeper that had no agent yet has ended, and the launch goes on without it.
            Run::Preparing(_) => {
                self.keeper = None;
                return;
            }
            Run::Ended(_) => return,
        };
        let how = describe_exit(exited);
        self.cut = turn.map(|turn| CutTurn {
            id: turn.id,
            tool_calls: turn.tool_calls.into_iter().collect(),
            detail: how.clone(),
            stderr: turn.stderr.into(),
        });
        if ending.is_none() && !exited.requested && exited.reason.is_none() && lived {
            let now = self.updated;
            self.crashes.retain(|crash| now.duration_since(*crash) < CRASH_WINDOW);
            self.crashes.push(now);
        } else {
            // An end that was wanted, a limit that was passed, or an agent that never got as far as a conversation: starting it
            // again would not help.
            self.crashes.clear();
        }
        self.run = Run::Ended(match ending {
            Some(Ending::Stop) => Ended::Stopped,
            Some(Ending::Failure(message)) => Ended::Failed(message),
            None if exited.requested => Ended::Stopped,
            None => Ended::Failed(how),
        });
    }

    fn conversation_opened(&mut self, opened: &ConversationOpened) {
        self.untold.opened(opened.by, self.conversation.is_some());
        if self.conversation.as_ref() != Some(&opened.conversation) {
            self.conversation_born = Some(self.updated);
            self.conversation_home.clone_from(&opened.home);
        }
        self.conversation = Some(opened.conversation.clone());
        let seq = self.seq;
        if let Run::Running(running) = &mut self.run {
            running.opening = Opening::Open;
            running.idle_since = seq;
        }
    }

    fn turn_queued(&mut self, queued: &TurnQueued) {
        if let Some(key) = &queued.key {
            if self.keys.len() == KEYS {
                self.keys.pop_front();
            }
            let digest = prompt_digest(&queued.prompt);
            self.keys.push_back(PromptKey { key: key.clone(), turn: queued.turn.clone(), digest, seq: self.seq });
        }
        self.queue.push_back(QueuedTurn { id: queued.turn.clone(), prompt: queued.prompt.clone() });
        self.next_turn += 1;
    }

    fn heard(&mut self) {
        let seq = self.seq;
        if let Some(turn) = self.turn_mut() {
            (turn.heard, turn.silent) = (seq, false);
        }
    }

    fn agent_stderr(&mut self, line: &str) {
        if let Some(turn) = self.turn_mut() {
            if turn.stderr.len() == LAST_WORDS {
                turn.stderr.pop_front();
            }
            turn.stderr.push_back(line.to_owned());
        }
    }

    fn turn_started(&mut self, started: &TurnStarted) {
        let Some(position) = self.queue.iter().position(|queued| queued.id == started.turn) else { return };
        let Run::Running(running) = &mut self.run else { return };
        let Some(queued) = self.queue.remove(position) else { return };
        self.untold.turn_started();
        running.turn = Some(RunningTurn {
            id: queued.id,
            prompt: queued.prompt,
            cancelling: false,
            heard: self.seq,
            silent: false,
            stderr: VecDeque::new(),
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
            running.idle_since = self.seq;
            // An answer that comes after the end belongs to nobody.
            running.pending.retain(|_, pending| !matches!(pending, Pending::Prompt(turn) if turn == id));
        }
    }

    fn permission_requested(&mut self, requested: &PermissionRequested) {
        self.next_permission += 1;
        self.permissions.push(OpenPermission { request: requested.request.clone(), rpc: requested.rpc.clone() });
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

/// How an agent ended, for people.
pub(crate) fn describe_exit(exited: &AgentExited) -> String {
    if let Some(reason) = &exited.reason {
        return format!("the agent was ended: {reason}");
    }
    match (&exited.exec_error, exited.status, exited.signal) {
        (Some(error), _, _) => format!("the agent could not be started: {error}"),
        (None, Some(status), _) => format!("the agent exited with status {status}"),
        (None, None, Some(signal)) => format!("the agent was ended by signal {signal}"),
        (None, None, None) => "the agent's keeper ended without a word, and the agent with it".to_owned(),
    }
}
