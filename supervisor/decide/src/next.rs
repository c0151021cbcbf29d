//! Decides the next step of a session from its state alone. Pure and level-triggered.
//!
//! Because only the state decides, a daemon that takes over a session continues exactly where the previous daemon
//! ended. Recovery has no separate code path. The caller carries out one step at a time, then asks again.

use std::time::Duration;

use agentd_api::editor::EditorTool;
use agentd_api::event::{
    AgentUnusable, AnsweredBy, Cause, ConversationOpened, LaunchFailed, OpenedBy, PermissionOutcome,
    PermissionRequested, Synthetic, SyntheticCause, TurnEnded, TurnStarted,
};
use agentd_api::hint;
use agentd_api::mcp::LaunchedServer;
use agentd_api::prompt::{PromptPart, digest_at};
use agentd_api::reason;
use agentd_api::session::{
    Condition, ConditionStatus, ConditionType, PermissionOrigin, PermissionPolicy, PermissionRequest, RestartPolicy,
    ResumeNote, SessionSpec,
};
use agentd_api::{Body, TurnId};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::acp;
use crate::batch::Batch;
use crate::completion;
use crate::editor;
use crate::exit::exit_reason;
use crate::limit;
use crate::login;
use crate::note::{Note, NoteTerms, note};
use crate::options;
use crate::placed;
use crate::replay;
use crate::repositories;
use crate::rules::{ALLOWING, REJECTING, STOPPED_WHILE_WAITING, choose, dropped, resolve};
use crate::staleness::{self, StalenessSettings};
use crate::state::{
    CutTurn, Ended, OpenPermission, OpenRefused, Opening, PromptAnswer, RESTARTING, Run, Running, STOPPED, State,
    WAS_STOPPED,
};
use crate::verdict::{FAILED, RequiredPrerequisites, TIMED_OUT, reevaluate};
use crate::waits::{SAME_MINUTE_MESSAGE, born_this_minute, is_parked, is_restarted};
use crate::workflow;
use agentd_note::Template;
use agentd_permission::{RequestingSession, Rule, policy};

/// The next step of a session.
#[derive(Debug)]
pub enum Step {
    /// Write these records, and send the lines among them.
    Append(Batch),
    /// Check prerequisites, build the environment and start the agent. Remains the next step until records report
    /// the result.
    BringUp { launch: u64 },
    /// Abandon the bring-up because a stop was requested.
    AbandonBringUp { launch: u64 },
    /// End the agent and its process tree. Remains the next step until `agent.exited` is recorded.
    StopAgent,
    /// Check the answer of a turn. Remains the next step until `answer.checked` is recorded.
    CheckAnswer(completion::DueCheck),
    /// Gather the result of a session that is not interactive. Remains the next step until `session.completed` is
    /// recorded.
    Conclude,
}

/// Inputs of the rules besides the state.
#[derive(Debug)]
pub struct Facts<'a> {
    pub spec: &'a SessionSpec,
    pub generation: u64,
    pub now: Timestamp,
    /// The time zone of times that an agent names without one.
    pub zone: &'a TimeZone,
    /// Time without history updates after which a loaded conversation counts as replayed.
    pub replay_quiet: Duration,
    /// Requests to an editor that the next agent is offered.
    pub editor: &'a [EditorTool],
    /// The agent's name, as permission rules spell it.
    pub agent: &'a str,
    pub rules: &'a [Rule],
    /// Whether a rule or the session's policy may allow a request. If false, agentd asks a client.
    pub may_allow: bool,
    pub restart: RestartPolicy,
    /// Whether the daemon is draining, which postpones restarts.
    pub drained: bool,
    /// Form of the note that the agent receives after a resume.
    pub note: ResumeNote,
    /// agentd's own MCP server, unless it is switched off or cannot be started.
    pub mcp: Option<&'a acp::OwnServer>,
    /// Template of that note.
    pub template: &'a Template,
    /// The session's prerequisites in the configuration in force.
    pub needed: &'a RequiredPrerequisites,
    /// Policies for a stale session.
    pub staleness: &'a StalenessSettings,
    /// Whether the launch still examines the environment and the directory beside the agent's start. No conversation is
    /// opened before that is done.
    pub is_examining: bool,
}

/// Returns the next step, or `None` if the session waits for an event.
pub fn next(state: &State, facts: &Facts<'_>) -> Option<Step> {
    if let Some(batch) = left_open(state) {
        return Some(Step::Append(batch));
    }
    if !matches!(state.run, Run::Ended(_))
        && let Some(batch) = repositories::report(state, facts)
    {
        return Some(Step::Append(batch));
    }
    if let Some(batch) = workflow::step(state, facts) {
        return Some(Step::Append(batch));
    }
    if let Some(due) = completion::due_check(state) {
        return Some(Step::CheckAnswer(due));
    }
    match &state.run {
        Run::Ended(ended) => {
            let batch = after_the_end(state, ended, facts).or_else(|| workflow::relaunch(state, facts));
            batch.map(Step::Append).or_else(|| completion::conclude(state))
        }
        Run::Preparing(preparing) if preparing.stop => Some(Step::AbandonBringUp { launch: preparing.launch }),
        // A client answers first whether the stale session is continued.
        Run::Preparing(_) if staleness::question(state).is_some() => None,
        Run::Preparing(preparing) => Some(match staleness::refusal(state, preparing.launch, facts) {
            Some(batch) => Step::Append(batch),
            None => Step::BringUp { launch: preparing.launch },
        }),
        Run::Running(running) => match running_step(state, running, facts) {
            Some(batch) => Some(Step::Append(batch)),
            None => running.ending.is_some().then_some(Step::StopAgent),
        },
    }
}

/// Builds the record of a condition. `last_transition_time` is kept while the status stays unchanged.
pub fn condition(
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

/// Closes items of an earlier launch that are still open during a later launch. Only journals of older daemons have
/// such items.
fn left_open(state: &State) -> Option<Batch> {
    let is_asked = |open: &OpenPermission| match &state.run {
        // Each launch closes its own question.
        _ if open.request.origin == PermissionOrigin::Agentd => true,
        Run::Running(running) => running.asked.iter().any(|asked| asked.rpc == open.rpc),
        Run::Preparing(_) => false,
        // `after_the_end` closes these requests.
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

/// Builds the end of a turn whose agent has exited: from the agent's answer if it arrived, otherwise a synthetic
/// end.
fn end_of_cut(cut: &CutTurn) -> Body {
    if let Some(answer) = &cut.answer {
        return answered(&cut.id, answer, cut.stderr.clone(), cut.tool_calls.clone());
    }
    let CutTurn { id, tool_calls, detail, stderr, .. } = cut.clone();
    let synthetic = Synthetic { cause: SyntheticCause::AgentExited, detail, stderr };
    let (stop_reason, synthetic) = (None, Some(synthetic));
    Body::TurnEnded(TurnEnded { turn: id, stop_reason, synthetic, interrupted_tool_calls: tool_calls })
}

/// Reason of a condition that is false because the agent crashed too often.
const PARKED: &str = reason::PARKED;

/// Closes the items that an ended agent left open: its turn, its permission requests, and the conditions that are
/// still true.
fn after_the_end(state: &State, ended: &Ended, facts: &Facts<'_>) -> Option<Batch> {
    let mut batch = Batch::default();
    for open in &state.permissions {
        batch = resolve(batch, open, PermissionOutcome::Cancelled, AnsweredBy::Cancel, &Cause::default(), false);
    }
    if let Some(cut) = &state.cut {
        batch = batch.record(completion::judged(state, end_of_cut(cut)));
    }
    if state.drops_its_queue() && matches!(ended, Ended::Failed(_)) {
        for queued in &state.queue {
            batch = batch.record(dropped(queued.id.clone(), STOPPED_WHILE_WAITING));
        }
    }
    let (reason, message) = match ended {
        Ended::Pending => return None,
        Ended::Stopped => {
            // The user who stops a session does not expect its queued prompts to be sent after a later resume.
            for queued in &state.queue {
                batch = batch.record(dropped(queued.id.clone(), STOPPED_WHILE_WAITING));
            }
            if state.has_done_its_prompts() {
                (reason::COMPLETED, "the session has done its prompts")
            } else {
                (STOPPED, WAS_STOPPED)
            }
        }
        Ended::Switching => (RESTARTING, "the agent is started again for another workflow"),
        Ended::Completed => (reason::COMPLETED, "the session has done its prompts"),
        Ended::Failed(message) if is_parked(state, facts) => (PARKED, message.as_str()),
        Ended::Failed(message) if is_restarted(state, facts) => (RESTARTING, message.as_str()),
        Ended::Failed(message) => (exit_reason(state.exceeded), message.as_str()),
    };
    for kind in [ConditionType::Placed, ConditionType::AgentStarted, ConditionType::ConversationReady] {
        if state.holds(kind) || (kind == ConditionType::Placed && placed::is_open(state)) {
            batch = batch.record(condition(state, facts, kind, ConditionStatus::False, reason, message));
        }
    }
    if state.is_waiting() {
        let (kind, message) = (ConditionType::PrerequisitesMet, "the launch ended while it waited for prerequisites");
        batch = batch.record(condition(state, facts, kind, ConditionStatus::False, reason, message));
    }
    let missing = state.condition(ConditionType::PrerequisitesMet);
    let is_missing = missing.is_some_and(|condition| [FAILED, TIMED_OUT].contains(&condition.reason.as_str()));
    let got_that_far = state.holds(ConditionType::EnvironmentReady) && !is_missing && !state.staleness.forbids();
    if got_that_far && state.condition(ConditionType::AgentStarted).is_none() && matches!(ended, Ended::Failed(_)) {
        let kind = ConditionType::AgentStarted;
        batch = batch
            .record(condition(state, facts, kind, ConditionStatus::False, reason::NOT_EXECUTED, message))
            .record(Body::LaunchFailed(LaunchFailed {
                launch: state.launches,
                reason: reason::NOT_EXECUTED.to_owned(),
                message: message.to_owned(),
            }));
    } else if [RESTARTING, PARKED].contains(&reason)
        && batch.entries.is_empty()
        && !state.agent_started_reason_is(reason)
    {
        // A restart that failed before the agent ran is reported like a crash.
        let kind = ConditionType::AgentStarted;
        batch = batch.record(condition(state, facts, kind, ConditionStatus::False, reason, message));
    }
    (!batch.entries.is_empty()).then_some(batch)
}

fn running_step(state: &State, running: &Running, facts: &Facts<'_>) -> Option<Batch> {
    if let Some(batch) = placed::report(state, facts) {
        return Some(batch);
    }
    if placed::is_awaited(state) {
        return None;
    }
    if !state.holds(ConditionType::AgentStarted) {
        let message = format!("pid {}", running.pid);
        return Some(Batch::of(condition(
            state,
            facts,
            ConditionType::AgentStarted,
            ConditionStatus::True,
            reason::STARTED,
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
            running.pending.is_empty().then(|| Batch::default().send(acp::initialize(state.next_rpc, facts.editor)))
        }
        Opening::Initialized(_) if !running.pending.is_empty() || facts.is_examining => None,
        Opening::Initialized(capabilities) => {
            if let Some(batch) = staleness::introduced(state, facts) {
                return Some(batch);
            }
            if staleness::question(state).is_some() {
                return None;
            }
            if let Some(batch) = staleness::refusal(state, running.launch, facts) {
                return Some(batch);
            }
            if let Some(batch) = login::step(state, running) {
                return Some(batch);
            }
            let forks = state.is_taken_over && capabilities.fork;
            let loads = state.conversation.is_some() && capabilities.load && !capabilities.resume && !forks;
            if loads && born_this_minute(state, running, facts.now) {
                return wait_for_the_minute(state, facts);
            }
            Some(open(state, running, *capabilities, facts))
        }
        Opening::Answered { conversation, by } => Some(opened(state, running, conversation, *by, facts)),
        Opening::Refused(OpenRefused::Open { by: OpenedBy::Load | OpenedBy::Resume | OpenedBy::Fork, .. })
            if workflow::is_tried_again(state, running, facts.spec) =>
        {
            let again = Running { is_second_attempt: true, ..running.clone() };
            Some(open(state, &again, running.capabilities, facts))
        }
        Opening::Refused(refused) => Some(refuse(state, running, refused, facts)),
        Opening::Open => options::step(state, running, facts)
            .or_else(|| limit::report(state, facts))
            .or_else(|| reevaluate(state, facts))
            .or_else(|| completion::step(state, running, facts))
            .or_else(|| turn_step(state, running, facts)),
    }
}

/// Answers each request of the agent: permission requests by rules and policy, and all unknown requests with −32601.
/// Questions are answered by clients, unless the policy denies everything.
fn answer_agent(state: &State, running: &Running, facts: &Facts<'_>) -> Option<Batch> {
    for asked in &running.asked {
        if editor::is_offered(running, &asked.method) {
            // An editor answers it.
            continue;
        }
        let Some(draft) = &asked.permission else {
            return Some(Batch::default().send(acp::unknown_method(&asked.rpc, &asked.method)));
        };
        let known = state.permissions.iter().find(|open| open.rpc == asked.rpc);
        let (batch, open) = if let Some(open) = known {
            (Batch::default(), open.clone())
        } else {
            let request = PermissionRequest {
                id: state.next_permission_id(),
                origin: PermissionOrigin::Agent,
                title: draft.title.clone(),
                tool_kind: draft.tool_kind.clone(),
                details: draft.details.clone(),
                options: draft.options.clone(),
                elicitation: asked.elicitation.clone(),
            };
            let requested = PermissionRequested { request: request.clone(), rpc: asked.rpc.clone() };
            (Batch::of(Body::PermissionRequested(requested)), OpenPermission { request, rpc: asked.rpc.clone() })
        };
        let is_question = asked.elicitation.is_some();
        // An agent may have a question before the conversation is open. A permission belongs to a turn.
        let is_over = running.turn.as_ref().map_or(!is_question, |turn| turn.cancelling);
        let cancelling = running.ending.is_some() || is_over;
        let works_in = workflow::certain_directory(state, running, facts.spec);
        let asker = RequestingSession {
            agent: facts.agent,
            directory: &facts.spec.directory,
            works_in: works_in.as_deref(),
            home: state.home.as_deref(),
        };
        let answer = match policy(facts.rules, facts.spec.permissions, asker, draft) {
            _ if cancelling => Some((PermissionOutcome::Cancelled, AnsweredBy::Cancel)),
            _ if is_question && facts.spec.permissions != PermissionPolicy::Deny => None,
            _ if is_question => Some((by_policy(draft, &REJECTING), AnsweredBy::Policy)),
            PermissionPolicy::Ask => None,
            // A rule that would deny the request may be among the rules that could not be read.
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

/// Returns the outcome that the policy selects. Returns `cancelled` if the agent offers no option of the wanted
/// kinds.
fn by_policy(draft: &agentd_permission::PermissionDraft, kinds: &[&str]) -> PermissionOutcome {
    match choose(&draft.options, kinds) {
        Some(option) => PermissionOutcome::Selected(option.id.clone()),
        None => PermissionOutcome::Cancelled,
    }
}

/// Records once that the conversation waits for the next UTC minute, and why.
fn wait_for_the_minute(state: &State, facts: &Facts<'_>) -> Option<Batch> {
    let (kind, reason) = (ConditionType::ConversationReady, reason::WAITING_FOR_THE_MINUTE);
    let said = state.condition(kind).is_some_and(|condition| condition.reason == reason);
    (!said).then(|| Batch::of(condition(state, facts, kind, ConditionStatus::Unknown, reason, SAME_MINUTE_MESSAGE)))
}

/// Opens the conversation by the agent's capabilities. Prefers `session/resume`, which replays no history. Copies the
/// conversation of another session if the agent can, so that the other session keeps its own.
fn open(state: &State, running: &Running, capabilities: acp::Capabilities, facts: &Facts<'_>) -> Batch {
    let id = state.next_rpc;
    let (directory, further) = workflow::directories(state, running, facts.spec);
    let further = if capabilities.directories { further } else { Vec::new() };
    let with =
        acp::Surroundings { directory: &directory, further: &further, own: facts.mcp, mcp: &state.mcp, capabilities };
    let batch = given_directories(state, capabilities, facts).and(given_servers(state, capabilities, facts));
    match &state.conversation {
        Some(conversation) if !running.fresh && state.is_taken_over && capabilities.fork => {
            batch.send_filled(acp::fork(id, conversation, with))
        }
        // The history that the agent replays is not in the journal yet.
        Some(conversation) if !running.fresh && state.is_adopting() && capabilities.load => {
            batch.send_filled(acp::load(id, conversation, with))
        }
        Some(conversation) if !running.fresh && capabilities.resume => {
            batch.send_filled(acp::resume(id, conversation, with))
        }
        Some(conversation) if !running.fresh && capabilities.load => {
            batch.send_filled(acp::load(id, conversation, with)).mute(replay::rule(id, facts.replay_quiet))
        }
        _ => batch.send_filled(acp::new_conversation(id, with)),
    }
}

/// Records whether the agent gets the additional directories of the session, if it has any.
fn given_directories(state: &State, capabilities: acp::Capabilities, facts: &Facts<'_>) -> Batch {
    let directories = &facts.spec.directories;
    if directories.is_empty() {
        return Batch::default();
    }
    let names = directories.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let (status, reason, message) = if capabilities.directories {
        (ConditionStatus::True, reason::DIRECTORIES_GIVEN, names)
    } else {
        let message = format!("the agent takes no additional directories, so it does not know of {names}");
        (ConditionStatus::False, reason::DIRECTORIES_LEFT_OUT, message)
    };
    Batch::of(condition(state, facts, ConditionType::DirectoriesGiven, status, reason, &message))
}

/// Records which MCP servers the agent gets, if the session has any.
fn given_servers(state: &State, capabilities: acp::Capabilities, facts: &Facts<'_>) -> Batch {
    if state.mcp.is_empty() {
        return Batch::default();
    }
    let obstacle = |one: &LaunchedServer| Some(format!("{}: {}", one.name, acp::obstacle(one, capabilities)?));
    let missing: Vec<String> = state.mcp.iter().filter_map(obstacle).collect();
    let (status, reason, message) = if missing.is_empty() {
        let names: Vec<&str> = state.mcp.iter().map(|one| one.name.as_str()).collect();
        (ConditionStatus::True, reason::SERVERS_GIVEN, names.join(", "))
    } else {
        (ConditionStatus::False, reason::SERVER_LEFT_OUT, missing.join("; "))
    };
    Batch::of(condition(state, facts, ConditionType::McpServersGiven, status, reason, message))
}

fn opened(state: &State, running: &Running, conversation: &str, by: OpenedBy, facts: &Facts<'_>) -> Batch {
    let (reason, message) = match by {
        OpenedBy::NewAfterLoss => (
            reason::HISTORY_LOST,
            "the agent can neither load nor resume a conversation: it created a new conversation without the earlier \
             history",
        ),
        OpenedBy::New if state.conversation.is_some() => (reason::NEW_CONVERSATION, "a new conversation, as requested"),
        OpenedBy::New => (reason::NEW_CONVERSATION, "a new conversation"),
        OpenedBy::Load => (reason::LOADED, "the agent loaded the conversation"),
        OpenedBy::Fork => (reason::FORKED, "the agent copied the conversation of the other session"),
        OpenedBy::Resume | OpenedBy::Unknown => (reason::RESUMED, "the agent resumed the conversation"),
    };
    Batch::of(Body::ConversationOpened(ConversationOpened {
        launch: running.launch,
        conversation: conversation.to_owned(),
        by,
        directory: workflow::directories(state, running, facts.spec).0,
        home: state.home.clone(),
        places: state.places.clone(),
    }))
    .record(condition(state, facts, ConditionType::ConversationReady, ConditionStatus::True, reason, message))
}

/// Fails the launch of an agent that cannot open the conversation. The agent never gets a new conversation
/// silently; the message names the remedy.
fn refuse(state: &State, running: &Running, refused: &OpenRefused, facts: &Facts<'_>) -> Batch {
    let mut login = Batch::default();
    let (reason, message) = match refused {
        OpenRefused::Initialize(error) => {
            (reason::INITIALIZE_FAILED, format!("initialize failed: {error}; {}", hint::SHOW_STDERR))
        }
        OpenRefused::Open { error, code: acp::AUTHENTICATION_REQUIRED, .. } => {
            let tried = running.login.error();
            let tried = tried.map(|error| format!("; its own login failed: {error}")).unwrap_or_default();
            let remedy = login::remedy(state, facts);
            let message = format!("the agent requires a login first: {error}{tried}; {remedy}");
            login = login::required(state, &message, facts);
            (agentd_api::reason::AUTHENTICATION_REQUIRED, message)
        }
        OpenRefused::Open { by: OpenedBy::Load | OpenedBy::Resume | OpenedBy::Fork, error, .. } => (
            reason::CONVERSATION_LOST,
            format!(
                "the agent could not restore the conversation {:?}: {error}; {}{}",
                state.conversation.as_deref().unwrap_or_default(),
                other_home(state),
                hint::RESUME_WITH_NEW_CONVERSATION
            ),
        ),
        OpenRefused::Open { error, .. } => (
            reason::CONVERSATION_REFUSED,
            format!("the agent refused to create a conversation: {error}; {}", hint::SHOW_STDERR),
        ),
    };
    login.and(fail_launch(state, running.launch, ConditionType::ConversationReady, reason, &message, facts))
}

/// Explains the likeliest reason why an agent does not find its conversation: `HOME` changed. Returns an empty text
/// otherwise.
fn other_home(state: &State) -> String {
    match (&state.conversation_home, &state.home) {
        (Some(then), Some(now)) if then != now => format!("it was created with HOME={then}, and HOME is now {now}; "),
        _ => String::new(),
    }
}

/// Returns the records that fail a launch: the false condition, then `launch.failed`.
pub fn fail_launch(
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

/// Ends the turn that the agent has answered, or starts the next queued turn.
fn turn_step(state: &State, running: &Running, facts: &Facts<'_>) -> Option<Batch> {
    if let Some(turn) = &running.turn {
        let answer = turn.answer.as_ref()?;
        if let Some(batch) = limit::reached(state, turn, facts) {
            return Some(batch);
        }
        // After a cancel, most agents end the turn without reporting the end of its open tool calls.
        let (stderr, open) = (turn.stderr.iter().cloned().collect(), turn.tool_calls.iter().cloned().collect());
        let ended = Batch::of(completion::judged(state, answered(&turn.id, answer, stderr, open)));
        // A client that reads the end of the turn knows the state of the login.
        let ended = login::after_turn(state, answer.as_ref().map(drop), facts).and(ended);
        return Some(match answer {
            Err(error) if error.code == acp::RESOURCE_NOT_FOUND => ended.record(unusable(running.launch, error)),
            _ => ended,
        });
    }
    let queued = state
        .queue
        .front()
        .filter(|_| !options::holds_turn(running) && !limit::holds_turn(state, facts.now))
        .filter(|_| !repositories::holds_turn(state, facts.spec) && !workflow::holds_turn(state, facts.spec))?;
    let conversation = state.conversation.as_deref()?;
    let rpc = state.next_rpc;
    let terms = NoteTerms { directory: state.workflow.directory(facts.spec), ..facts.into() };
    let Note { text: note, error: note_error } = note(state, &terms);
    let again = limit::is_again(state, &queued.id);
    let note = if again && facts.note != ResumeNote::Off { Some(limit::note(note)) } else { note };
    let instructions = workflow::instructions(state);
    let notes = [&instructions, &note].into_iter().filter_map(Option::as_deref);
    let line = acp::prompt(rpc, conversation, notes, (&queued.prompt, &queued.parts), running.capabilities);
    let has_contents = queued.parts.iter().filter_map(PromptPart::content).any(|text| digest_at(text).is_some());
    let started = TurnStarted { turn: queued.id.clone(), rpc, again, note, instructions, note_error };
    let batch = Batch::of(Body::TurnStarted(started));
    Some(if has_contents { batch.send_with_contents(line) } else { batch.send(line) })
}

/// Builds the record of an agent that does not know its own open conversation and would refuse every prompt.
/// Adapters behave so when the program behind them has died (claude-agent-acp).
fn unusable(launch: u64, error: &acp::RpcError) -> Body {
    let message = format!("the agent has lost its open conversation and answered the prompt with: {error}");
    Body::AgentUnusable(AgentUnusable { launch, reason: reason::CONVERSATION_GONE.to_owned(), message })
}

/// Builds the end of a turn from the agent's answer to the prompt.
fn answered(turn: &TurnId, answer: &PromptAnswer, stderr: Vec<String>, interrupted_tool_calls: Vec<String>) -> Body {
    let (stop_reason, synthetic) = match answer {
        Ok(stop_reason) => (stop_reason.clone(), None),
        Err(error) => {
            let detail = format!("the agent answered the prompt with an error: {error}");
            (None, Some(Synthetic { cause: SyntheticCause::AgentError, detail, stderr }))
        }
    };
    Body::TurnEnded(TurnEnded { turn: turn.clone(), stop_reason, synthetic, interrupted_tool_calls })
}
