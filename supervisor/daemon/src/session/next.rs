//! What is to be done next for a session, read off its state alone: pure, and level-triggered.
//!
//! Because nothing but the state decides, a daemon that takes a session over goes on exactly where the one before ended: there is
//! no recovery path beside the ordinary one. One step is carried out at a time; then the question is asked again.

use std::time::Duration;

use agentd_api::event::{
    AgentUnusable, AnsweredBy, Cause, ConversationOpened, LaunchFailed, OpenedBy, PermissionOutcome,
    PermissionRequested, Synthetic, SyntheticCause, TurnEnded, TurnStarted,
};
use agentd_api::session::{
    Condition, ConditionStatus, ConditionType, PermissionPolicy, PermissionRequest, RestartPolicy, ResumeNote,
    SessionSpec,
};
use agentd_api::{Body, TurnId};
use agentd_keeper::protocol::Mute;
use jiff::Timestamp;

use super::batch::Batch;
use super::exit::exit_reason;
use super::note::note;
use super::permission::{Asker, Rule, policy};
use super::rules::{ALLOWING, REJECTING, STOPPED_WHILE_WAITING, choose, dropped, resolve};
use super::state::{
    Answer, CutTurn, Ended, OpenPermission, OpenRefused, Opening, RESTARTING, Run, Running, STOPPED, State, WAS_STOPPED,
};
use super::verdict::{FAILED, Needed, TIMED_OUT, judged_anew};
use super::waits::{ITS_STDERR, MINUTE, born_this_minute, is_parked, is_restarted};
use crate::acp;

/// One thing to do.
#[derive(Debug)]
pub(crate) enum Step {
    /// Write this (and send what is to be sent).
    Append(Batch),
    /// Check the world, build the environment, start the agent. Stays the next step until records say that it is done.
    BringUp { launch: u64 },
    /// Give the bring-up up: a stop was asked for.
    AbandonBringUp { launch: u64 },
    /// End the agent and its tree. Stays the next step until `agent.exited` is there.
    StopAgent,
}

/// What the rules need besides the state.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) spec: &'a SessionSpec,
    pub(crate) generation: u64,
    pub(crate) now: Timestamp,
    /// How long no history may come before a loaded conversation counts as replayed.
    pub(crate) replay_quiet: Duration,
    /// The agent's name, as rules know it.
    pub(crate) agent: &'a str,
    pub(crate) rules: &'a [Rule],
    /// Whether a rule or the session's policy may allow anything; if not, a client is asked.
    pub(crate) may_allow: bool,
    pub(crate) restart: RestartPolicy,
    /// Whether the daemon is drained, which puts restarts off.
    pub(crate) drained: bool,
    /// What the agent is told after a resume.
    pub(crate) note: ResumeNote,
    /// What the session needs now.
    pub(crate) needed: &'a Needed,
}

/// What is to be done next, if anything.
pub(crate) fn next(state: &State, facts: &Facts<'_>) -> Option<Step> {
    if let Some(batch) = left_open(state) {
        return Some(Step::Append(batch));
    }
    match &state.run {
        Run::Ended(ended) => after_the_end(state, ended, facts).map(Step::Append),
        Run::Preparing(preparing) if preparing.stop => Some(Step::AbandonBringUp { launch: preparing.launch }),
        Run::Preparing(preparing) => Some(Step::BringUp { launch: preparing.launch }),
        Run::Running(running) => match running_step(state, running, facts) {
            Some(batch) => Some(Step::Append(batch)),
            None => running.ending.is_some().then_some(Step::StopAgent),
        },
    }
}

/// A condition as it is recorded; the transition time is kept where the status stays.
pub(crate) fn condition(
    state: &State,
    facts: &Facts<'_>,
    kind: ConditionType,
    status: ConditionStatus,
    reason: &str,
    message: impl Into<String>,
) -> Body {
    let last_transition_time = match state.condition(kind) {
        Some(known) if known.status == status => known.last_transition_time,
        _ => facts.now,
    };
    Body::Condition(Condition {
        kind,
        status,
        reason: reason.to_owned(),
        message: message.into(),
        observed_generation: facts.generation,
        last_transition_time,
    })
}

/// Closes what an earlier launch left open while another one goes on, which only journals of older daemons have.
fn left_open(state: &State) -> Option<Batch> {
    let is_asked = |open: &OpenPermission| match &state.run {
        Run::Running(running) => running.asked.iter().any(|asked| asked.rpc == open.rpc),
        Run::Preparing(_) => false,
        // Closed together with the rest.
        Run::Ended(_) => true,
    };
    let orphaned = state.permissions.iter().filter(|open| !is_asked(open));
    let batch = orphaned.fold(Batch::default(), |batch, open| {
        resolve(batch, open, PermissionOutcome::Cancelled, AnsweredBy::Cancel, &Cause::default(), false)
    });
    let batch = match &state.cut {
        Some(cut) if !matches!(state.run, Run::Ended(_)) => batch.record(end_of_cut(cut)),
        _ => batch,
    };
    (!batch.entries.is_empty()).then_some(batch)
}

/// The end of a turn whose agent is gone: as the agent answered, else as agentd knows it.
fn end_of_cut(cut: &CutTurn) -> Body {
    if let Some(answer) = &cut.answer {
        return answered(&cut.id, answer, cut.stderr.clone(), cut.tool_calls.clone());
    }
    let CutTurn { id, tool_calls, detail, stderr, .. } = cut.clone();
    let synthetic = Synthetic { cause: SyntheticCause::AgentExited, detail, stderr };
    let (stop_reason, synthetic) = (None, Some(synthetic));
    Body::TurnEnded(TurnEnded { turn: id, stop_reason, synthetic, interrupted_tool_calls: tool_calls })
}

/// The reason of a condition that is false since the agent crashed too often.
const PARKED: &str = "Parked";

/// Closes what an agent left open: its turn, its questions, the conditions that held while it ran.
fn after_the_end(state: &State, ended: &Ended, facts: &Facts<'_>) -> Option<Batch> {
    let mut batch = Batch::default();
    for open in &state.permissions {
        batch = resolve(batch, open, PermissionOutcome::Cancelled, AnsweredBy::Cancel, &Cause::default(), false);
    }
    if let Some(cut) = &state.cut {
        batch = batch.record(end_of_cut(cut));
    }
    let (reason, message) = match ended {
        Ended::Pending => return None,
        Ended::Stopped => {
            // Whoever stops a session does not want its waiting prompts sent at some later resume.
            for queued in &state.queue {
                batch = batch.record(dropped(queued.id.clone(), STOPPED_WHILE_WAITING));
            }
            (STOPPED, WAS_STOPPED)
        }
        Ended::Failed(message) if is_parked(state, facts) => (PARKED, message.as_str()),
        Ended::Failed(message) if is_restarted(state, facts) => (RESTARTING, message.as_str()),
        Ended::Failed(message) => (exit_reason(state.exceeded), message.as_str()),
    };
    for kind in [ConditionType::AgentStarted, ConditionType::ConversationReady] {
        if state.holds(kind) {
            batch = batch.record(condition(state, facts, kind, ConditionStatus::False, reason, message));
        }
    }
    if state.is_waiting() {
        let (kind, message) = (ConditionType::PrerequisitesMet, "the launch ended while it waited for what is missing");
        batch = batch.record(condition(state, facts, kind, ConditionStatus::False, reason, message));
    }
    let missing = state.condition(ConditionType::PrerequisitesMet);
    let is_missing = missing.is_some_and(|condition| [FAILED, TIMED_OUT].contains(&condition.reason.as_str()));
    let got_that_far = state.holds(ConditionType::EnvironmentReady) && !is_missing;
    if got_that_far && state.condition(ConditionType::AgentStarted).is_none() && matches!(ended, Ended::Failed(_)) {
        let kind = ConditionType::AgentStarted;
        batch = batch.record(condition(state, facts, kind, ConditionStatus::False, "NotExecuted", message)).record(
            Body::LaunchFailed(LaunchFailed {
                launch: state.launches,
                reason: "NotExecuted".to_owned(),
                message: message.to_owned(),
            }),
        );
    } else if [RESTARTING, PARKED].contains(&reason) && batch.entries.is_empty() && !state.says_of_agent(reason) {
        // A restart that failed before it had an agent is told like any other crash.
        let kind = ConditionType::AgentStarted;
        batch = batch.record(condition(state, facts, kind, ConditionStatus::False, reason, message));
    }
    (!batch.entries.is_empty()).then_some(batch)
}

fn running_step(state: &State, running: &Running, facts: &Facts<'_>) -> Option<Batch> {
    if !state.holds(ConditionType::AgentStarted) {
        let message = format!("pid {}", running.pid);
        return Some(Batch::of(condition(
            state,
            facts,
            ConditionType::AgentStarted,
            ConditionStatus::True,
            "Started",
            message,
        )));
    }
    if let Some(batch) = answer_agent(state, running, facts) {
        return Some(batch);
    }
    if running.ending.is_some() {
        return None;
    }
    match &running.opening {
        Opening::Initializing => {
            running.pending.is_empty().then(|| Batch::default().send(acp::initialize(state.next_rpc)))
        }
        Opening::Initialized(_) if !running.pending.is_empty() => None,
        Opening::Initialized(capabilities) => {
            let loads = state.conversation.is_some() && capabilities.load && !capabilities.resume;
            if loads && born_this_minute(state, running, facts.now) {
                return wait_for_the_minute(state, facts);
            }
            Some(open(state, running, *capabilities, facts))
        }
        Opening::Answered { conversation, by } => Some(opened(state, running, conversation, *by, facts)),
        Opening::Refused(refused) => Some(refuse(state, running, refused, facts)),
        Opening::Open => judged_anew(state, facts).or_else(|| turn_step(state, running, facts)),
    }
}

/// Every request of the agent gets an answer: the one kind that is offered, or −32601.
fn answer_agent(state: &State, running: &Running, facts: &Facts<'_>) -> Option<Batch> {
    for asked in &running.asked {
        let Some(draft) = &asked.permission else {
            return Some(Batch::default().send(acp::unknown_method(&asked.rpc, &asked.method)));
        };
        let known = state.permissions.iter().find(|open| open.rpc == asked.rpc);
        let (batch, open) = if let Some(open) = known {
            (Batch::default(), open.clone())
        } else {
            let request = PermissionRequest {
                id: state.next_permission_id(),
                title: draft.title.clone(),
                tool_kind: draft.tool_kind.clone(),
                details: draft.details.clone(),
                options: draft.options.clone(),
            };
            let requested = PermissionRequested { request: request.clone(), rpc: asked.rpc.clone() };
            (Batch::of(Body::PermissionRequested(requested)), OpenPermission { request, rpc: asked.rpc.clone() })
        };
        let cancelling = running.ending.is_some() || running.turn.as_ref().is_none_or(|turn| turn.cancelling);
        let asker = Asker { agent: facts.agent, directory: &facts.spec.directory, home: state.home.as_deref() };
        let answer = match policy(facts.rules, facts.spec.permissions, asker, draft) {
            _ if cancelling => Some((PermissionOutcome::Cancelled, AnsweredBy::Cancel)),
            PermissionPolicy::Ask => None,
            // A rule that denies it may be among those that could not be read.
            PermissionPolicy::Allow if !facts.may_allow => None,
            PermissionPolicy::Allow => Some((by_policy(draft, &ALLOWING), AnsweredBy::Policy)),
            PermissionPolicy::Deny => Some((by_policy(draft, &REJECTING), AnsweredBy::Policy)),
        };
        match answer {
            Some((outcome, by)) => return Some(resolve(batch, &open, outcome, by, &Cause::default(), true)),
            None if known.is_none() => return Some(batch),
            None => {}
        }
    }
    None
}

/// An agent that offers nothing of the wanted kind is told `cancelled`: the policy cannot say what it was set to say.
fn by_policy(draft: &super::state::PermissionDraft, kinds: &[&str]) -> PermissionOutcome {
    match choose(&draft.options, kinds) {
        Some(option) => PermissionOutcome::Selected(option.id.clone()),
        None => PermissionOutcome::Cancelled,
    }
}

/// Says once that the conversation is not opened yet, and why.
fn wait_for_the_minute(state: &State, facts: &Facts<'_>) -> Option<Batch> {
    let (kind, reason) = (ConditionType::ConversationReady, "WaitingForTheMinute");
    let said = state.condition(kind).is_some_and(|condition| condition.reason == reason);
    (!said).then(|| Batch::of(condition(state, facts, kind, ConditionStatus::Unknown, reason, MINUTE)))
}

/// Opens the conversation as the agent's capabilities allow; `session/resume` first, since it replays nothing.
fn open(state: &State, running: &Running, capabilities: acp::Capabilities, facts: &Facts<'_>) -> Batch {
    let id = state.next_rpc;
    let directory = &facts.spec.directory;
    match &state.conversation {
        Some(conversation) if !running.fresh && capabilities.resume => {
            Batch::default().send(acp::resume(id, conversation, directory))
        }
        Some(conversation) if !running.fresh && capabilities.load => {
            let updates = acp::HISTORY.iter().map(|&kind| kind.to_owned()).collect();
            let quiet_ms = u64::try_from(facts.replay_quiet.as_millis()).unwrap_or(u64::MAX);
            let mute = Mute { response_to: id, updates, quiet_ms };
            Batch::default().send(acp::load(id, conversation, directory)).mute(mute)
        }
        _ => Batch::default().send(acp::new_conversation(id, directory)),
    }
}

fn opened(state: &State, running: &Running, conversation: &str, by: OpenedBy, facts: &Facts<'_>) -> Batch {
    let (reason, message) = match by {
        OpenedBy::NewAfterLoss => (
            "HistoryLost",
            "the agent can neither load nor resume a conversation: it began a new one and knows nothing of what was said before",
        ),
        OpenedBy::New if state.conversation.is_some() => ("NewConversation", "a new conversation, as was asked"),
        OpenedBy::New => ("NewConversation", "a new conversation"),
        OpenedBy::Load => ("Loaded", "the agent loaded the conversation"),
        OpenedBy::Resume | OpenedBy::Unknown => ("Resumed", "the agent resumed the conversation"),
    };
    Batch::of(Body::ConversationOpened(ConversationOpened {
        launch: running.launch,
        conversation: conversation.to_owned(),
        by,
        directory: facts.spec.directory.clone(),
        home: state.home.clone(),
    }))
    .record(condition(state, facts, ConditionType::ConversationReady, ConditionStatus::True, reason, message))
}

/// Never silently fresh: an agent that cannot give the conversation back ends the launch, and the message says how to go on.
fn refuse(state: &State, running: &Running, refused: &OpenRefused, facts: &Facts<'_>) -> Batch {
    let (reason, message) = match refused {
        OpenRefused::Initialize(error) => ("InitializeFailed", format!("initialize failed: {error}; {ITS_STDERR}")),
        OpenRefused::Open { error, code: acp::AUTHENTICATION_REQUIRED, .. } => (
            agentd_api::reason::AUTHENTICATION_REQUIRED,
            format!("the agent wants to be signed in first: {error}; {}", sign_in(state)),
        ),
        OpenRefused::Open { by: OpenedBy::Load | OpenedBy::Resume, error, .. } => (
            "ConversationLost",
            format!(
                "the agent could not restore the conversation {:?}: {error}; {}\
                 `agentctl resume --new-conversation` begins a new one in its place",
                state.conversation.as_deref().unwrap_or_default(),
                other_home(state)
            ),
        ),
        OpenRefused::Open { error, .. } => {
            ("ConversationRefused", format!("the agent refused to begin a conversation: {error}; {ITS_STDERR}"))
        }
    };
    fail_launch(state, running.launch, ConditionType::ConversationReady, reason, &message, facts)
}

/// What a person does about an agent that wants to be signed in.
fn sign_in(state: &State) -> String {
    let offers = match state.sign_in.as_slice() {
        [] => String::new(),
        ways => format!(" (it offers: {})", ways.join(", ")),
    };
    format!(
        "sign in with the agent's own program{offers}, or give its key as a secret in agentd.toml, then `agentctl resume`"
    )
}

/// The likeliest reason why an agent does not find a conversation any more.
fn other_home(state: &State) -> String {
    match (&state.conversation_home, &state.home) {
        (Some(then), Some(now)) if then != now => format!("it was begun with HOME={then}, and HOME is now {now}; "),
        _ => String::new(),
    }
}

/// A launch that ends here: the condition, then the end.
pub(crate) fn fail_launch(
    state: &State,
    launch: u64,
    kind: ConditionType,
    reason: &str,
    message: &str,
    facts: &Facts<'_>,
) -> Batch {
    Batch::of(condition(state, facts, kind, ConditionStatus::False, reason, message))
        .record(Body::LaunchFailed(LaunchFailed { launch, reason: reason.to_owned(), message: message.to_owned() }))
}

/// Ends the turn that is answered, or begins the next that waits.
fn turn_step(state: &State, running: &Running, facts: &Facts<'_>) -> Option<Batch> {
    if let Some(turn) = &running.turn {
        let answer = turn.answer.as_ref()?;
        // An agent that ends a turn with tool calls open (after a cancel, most do) says no more of them.
        let (stderr, open) = (turn.stderr.iter().cloned().collect(), turn.tool_calls.iter().cloned().collect());
        let ended = Batch::of(answered(&turn.id, answer, stderr, open));
        return Some(match answer {
            Err(error) if error.code == acp::RESOURCE_NOT_FOUND => ended.record(unusable(running.launch, error)),
            _ => ended,
        });
    }
    let queued = state.queue.front()?;
    let conversation = state.conversation.as_deref()?;
    let rpc = state.next_rpc;
    let note = note(&state.untold, &state.prerequisites, facts.note, &facts.spec.directory);
    let line = acp::prompt(rpc, conversation, note.as_deref(), &queued.prompt);
    Some(Batch::of(Body::TurnStarted(TurnStarted { turn: queued.id.clone(), rpc, note })).send(line))
}

/// An agent that does not know the conversation it has open: it would answer every prompt like this. Adapters do so when the program
/// behind them has died (claude-agent-acp).
fn unusable(launch: u64, error: &acp::RpcError) -> Body {
    let message =
        format!("the agent does not know its own conversation any more, it answered the prompt with: {error}");
    Body::AgentUnusable(AgentUnusable { launch, reason: "ConversationGone".to_owned(), message })
}

/// The end of a turn as its agent answered the prompt.
fn answered(turn: &TurnId, answer: &Answer, stderr: Vec<String>, interrupted_tool_calls: Vec<String>) -> Body {
    let (stop_reason, synthetic) = match answer {
        Ok(stop_reason) => (stop_reason.clone(), None),
        Err(error) => {
            let detail = format!("the agent answered the prompt with an error: {error}");
            (None, Some(Synthetic { cause: SyntheticCause::AgentError, detail, stderr }))
        }
    };
    Body::TurnEnded(TurnEnded { turn: turn.clone(), stop_reason, synthetic, interrupted_tool_calls })
}
