//! Decides clients' commands for a session: refuses a command, or returns the records that carry it out. Pure.
//!
//! A refusal is an expected result, and therefore a value. It names the request, the reason and the remedy.

use agentd_api::context::{ContextChange, ProgressRequest, SessionObserved};
use agentd_api::editor::RequestAnswer;
use agentd_api::elicitation::{ACCEPT, DECLINE, Elicitation, Form, FormError, FormValues};
use agentd_api::event::{
    AnsweredBy, Cause, LaunchReason, LaunchStarted, PermissionOutcome, PermissionResolved, PlaceChanged, StopRequested,
    Synthetic, SyntheticCause, TurnCancelling, TurnEnded, TurnQueued,
};
use agentd_api::hint;
use agentd_api::prerequisite::Requester;
use agentd_api::prompt::{PromptPart, digest_at};
use agentd_api::scripts::{ProposedScript, ScriptProposed};
use agentd_api::session::{PermissionAnswer, PermissionOption, PermissionOrigin, Phase};
use agentd_api::spec::SpecChanged;
use agentd_api::{Body, Code, PermissionId, Problem, TurnId};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::acp;
use crate::batch::Batch;
use crate::context::{self, ContextRefusal};
use crate::editor;
use crate::limit;
use crate::placed;
use crate::spec::SpecRefusal;
use crate::staleness;
use crate::state::{OpenPermission, Run, RunningTurn, State, prompt_digest};

/// Command of a client.
#[derive(Debug, Clone)]
pub enum Command {
    /// `key` is the request's `Idempotency-Key`.
    Prompt {
        text: String,
        /// Parts that follow the text. Large contents are stored already.
        parts: Vec<PromptPart>,
        /// A JSON Schema that the answer must satisfy. The caller has validated it.
        schema: Option<Value>,
        key: Option<String>,
        requester: Option<Requester>,
    },
    /// Cancels `turn`. If it is `None`, the running turn, or the turn that waits for the end of a rate limit.
    Cancel {
        turn: Option<TurnId>,
        cause: Cause,
    },
    Stop {
        reason: String,
        cause: Cause,
    },
    Resume {
        fresh: bool,
        terms: LaunchTerms,
    },
    Answer {
        permission: PermissionId,
        answer: PermissionAnswer,
        cause: Cause,
    },
    /// Answers a request of the agent in place of an editor.
    AnswerRequest(RequestAnswer),
    /// Changes sets of the context.
    ChangeContext {
        change: ContextChange,
        requester: Option<Requester>,
    },
    /// Sets or removes the environment hint.
    SetHint {
        hint: Option<String>,
        requester: Option<Requester>,
    },
    /// Sets or removes the title.
    SetTitle {
        title: Option<String>,
        requester: Option<Requester>,
    },
    /// Records reported progress.
    ReportProgress {
        progress: ProgressRequest,
        requester: Option<Requester>,
    },
    /// Records that a script was proposed. The caller has stored the script.
    ProposeScript {
        digest: String,
        explanation: Option<String>,
        requester: Option<Requester>,
    },
    /// Replaces the specification. The caller has validated the new one.
    ChangeSpec(Box<SpecChanged>),
    /// Records that a person looked at the session at `now`.
    Observe {
        now: Timestamp,
        requester: Option<Requester>,
    },
    /// Records what the engine of a place reports about a launch.
    ReportPlace(Box<PlaceChanged>),
}

/// Terms of a launch in case of unmet prerequisites and of parts that cannot be provided.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaunchTerms {
    pub wait_until: Option<Timestamp>,
    pub forced_by: Option<Requester>,
    /// The caller that allowed the launch to leave out failed parts, unmet prerequisites included.
    pub degraded_by: Option<Requester>,
    /// The process that requested the launch.
    pub requester: Option<Requester>,
}

impl LaunchTerms {
    /// Reports whether the launch continues despite unmet prerequisites.
    pub fn is_forced(&self) -> bool {
        self.forced_by.is_some() || self.degraded_by.is_some()
    }
}

/// Facts beside the state: limits from the configuration, the session's restart state and its specification.
#[derive(Debug, Clone, Copy)]
pub struct LaunchBounds {
    pub queued_turns: usize,
    /// Generation of the specification.
    pub generation: u64,
    /// Whether the session's agent crashed and will be started again ([`crate::waits::is_restarted`]).
    pub restarts: bool,
}

/// Reason why a command is refused. A refused command changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the session is {} and has no agent to prompt", phase.as_str())]
    NotRunning { phase: Phase },
    #[error("the session is {} already", phase.as_str())]
    Active { phase: Phase },
    #[error("the session is {}; only an ended session can be removed", phase.as_str())]
    NotEnded { phase: Phase },
    #[error("the session is {} and has nothing to stop", phase.as_str())]
    NothingToStop { phase: Phase },
    #[error("the end of the session's last turn is not recorded yet: its journal cannot be written now")]
    Unclosed,
    #[error("no turn is running")]
    NoTurn,
    #[error("the session has no turn {turn:?} that is running or queued", turn = turn.as_str())]
    NoSuchTurn { turn: TurnId },
    #[error("{waiting} turns are queued already, which is the limit")]
    QueueFull { waiting: usize },
    #[error("the keeper of the session's agent was started by an older agentd, which cannot pass on large contents")]
    OldKeeper,
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("the idempotency key {key:?} was used for another prompt")]
    KeyReused { key: String },
    #[error("no permission request {permission:?} is open", permission = permission.as_str())]
    NoSuchPermission { permission: PermissionId },
    #[error("the agent has no open request {id} that an editor answers")]
    NoSuchRequest { id: String },
    #[error("permission request {permission:?} is already answered", permission = permission.as_str())]
    PermissionAnswered { permission: PermissionId },
    #[error("the asker of permission request {permission:?} has ended", permission = permission.as_str())]
    AgentEnded { permission: PermissionId },
    #[error("the agent offers no such answer to {permission:?}; it offers {offered}", permission = permission.as_str())]
    NoSuchOption { permission: PermissionId, offered: String },
    #[error("the answer to {permission:?} does not fit its form: {error}", permission = permission.as_str())]
    Form { permission: PermissionId, error: FormError },
    #[error("{permission:?} takes no values", permission = permission.as_str())]
    NoForm { permission: PermissionId },
    #[error(transparent)]
    Context(#[from] ContextRefusal),
    #[error(transparent)]
    Spec(#[from] SpecRefusal),
    #[error("the agent offers no answer to {permission:?}, so it cannot be allowed", permission = permission.as_str())]
    NoOptions { permission: PermissionId },
}

impl Refusal {
    pub fn problem(&self) -> Problem {
        let (code, hint) = match self {
            Self::Context(refusal) => return refusal.problem(),
            Self::Spec(refusal) => return refusal.problem(),
            Self::NotRunning { .. } => (Code::WrongPhase, Some(hint::RESUME)),
            Self::Active { .. } => (Code::WrongPhase, Some(hint::STOP_OR_ATTACH)),
            Self::NotEnded { .. } => (Code::WrongPhase, Some(hint::STOP_OR_REMOVE)),
            Self::NothingToStop { .. } | Self::NoTurn => (Code::WrongPhase, None),
            Self::Unclosed => (Code::TooBusy, Some("is the disk full? make room and try again")),
            Self::NoSuchTurn { .. } => (Code::NoSuchTurn, Some(hint::LIST_TURNS)),
            Self::QueueFull { .. } => {
                (Code::QueueFull, Some("wait for a turn to end, or drop one; limits.queued_turns sets the limit"))
            }
            Self::KeyReused { .. } => (Code::KeyReused, Some("a new prompt needs a new key")),
            Self::OldKeeper => (Code::InvalidRequest, Some("stop the session and resume it, then try again")),
            Self::EmptyPrompt => (Code::InvalidRequest, Some("send a prompt with text")),
            Self::NoSuchPermission { .. } => (Code::NoSuchPermission, Some(hint::LIST_REQUESTS)),
            Self::NoSuchRequest { .. } => (Code::NoSuchRequest, Some(hint::EDITOR_REQUESTS)),
            Self::PermissionAnswered { .. } | Self::AgentEnded { .. } => (Code::PermissionAnswered, None),
            Self::NoSuchOption { .. } => {
                (Code::InvalidRequest, Some("answer with one of those ids, or with allow or deny"))
            }
            Self::Form { .. } => (Code::InvalidRequest, Some(hint::FORM)),
            Self::NoForm { .. } => (Code::InvalidRequest, Some("answer with allow or deny, or with an option's id")),
            Self::NoOptions { .. } => (
                Code::InvalidRequest,
                Some("deny it: the agent learns that the request was not approved, and the turn continues"),
            ),
        };
        let problem = Problem::new(code, self.to_string());
        match hint {
            Some(hint) => problem.hint(hint),
            None => problem,
        }
    }
}

/// Records that carry out a command, and the data that its caller receives.
#[derive(Debug)]
pub struct Decision {
    pub batch: Batch,
    /// The turn that the prompt created.
    pub turn: Option<TurnId>,
    /// Sequence number before the first record of that turn, if an earlier request queued it.
    pub known_since: Option<u64>,
}

impl From<Batch> for Decision {
    fn from(batch: Batch) -> Self {
        Self { batch, turn: None, known_since: None }
    }
}

/// Returns the records that carry out `command`, or the refusal.
pub fn decide(state: &State, command: Command, bounds: LaunchBounds) -> Result<Decision, Refusal> {
    let phase = if bounds.restarts { Phase::BackingOff } else { state.phase() };
    match command {
        Command::Prompt { text, parts, schema, key, requester } => {
            let turn = TurnId::numbered(state.next_turn);
            let queued = TurnQueued { turn, prompt: text, parts, schema, is_startup: false, key, requester };
            prompt(state, phase, queued, bounds)
        }
        Command::Cancel { turn, cause } => cancel(state, turn, &cause).map(Decision::from),
        Command::Stop { reason, cause } => match phase {
            // A stop is already in progress, or the session has already ended.
            Phase::Stopped | Phase::Failed | Phase::Completed => Ok(Batch::default().into()),
            Phase::Stopping if !state.is_started_again() => Ok(Batch::default().into()),
            // A stop before the restart cancels the restart. The session is stopped at once, and its queued prompts
            // are dropped.
            Phase::BackingOff => {
                let batch = Batch::of(Body::StopRequested(StopRequested { reason, cause }));
                let waiting = state.queue.iter().map(|queued| dropped(queued.id.clone(), STOPPED_WHILE_WAITING));
                Ok(waiting.fold(batch, Batch::record).into())
            }
            Phase::Pending => Err(Refusal::NothingToStop { phase }),
            _ => Ok(Batch::of(Body::StopRequested(StopRequested { reason, cause })).into()),
        },
        Command::Resume { fresh, terms: LaunchTerms { wait_until, forced_by, degraded_by, requester } } => {
            match phase {
                Phase::Limited if !fresh => Ok(limit::release(state, requester).unwrap_or_default().into()),
                _ if phase.is_active() => Err(Refusal::Active { phase }),
                _ if state.is_unclosed() => Err(Refusal::Unclosed),
                _ => {
                    let reason = if state.launches == 0 { LaunchReason::Create } else { LaunchReason::Resume };
                    let launch = state.launches + 1;
                    let started = LaunchStarted {
                        launch,
                        reason,
                        fresh,
                        wait_until,
                        forced_by,
                        degraded_by,
                        requester,
                        trace_parent: None,
                    };
                    Ok(Batch::of(Body::LaunchStarted(started)).into())
                }
            }
        }
        Command::Answer { permission, answer, cause } => {
            answer_permission(state, permission, &answer, &cause).map(Decision::from)
        }
        Command::AnswerRequest(answer) => editor::answer(state, &answer).map(Decision::from),
        Command::ChangeContext { change, requester } => Ok(context::change(state, &change, requester)?.into()),
        Command::SetHint { hint, requester } => Ok(context::set_hint(state, hint.as_deref(), requester)?.into()),
        Command::SetTitle { title, requester } => Ok(context::set_title(state, title.as_deref(), requester)?.into()),
        Command::ReportProgress { progress, requester } => {
            Ok(context::report_progress(state, &progress, requester)?.into())
        }
        Command::ProposeScript { digest, explanation, requester } => {
            Ok(propose_script(state, digest, explanation, requester).into())
        }
        Command::ChangeSpec(changed) if changed.generation == bounds.generation + 1 => {
            Ok(Batch::of(Body::SpecChanged(*changed)).into())
        }
        Command::ChangeSpec(changed) => {
            let expected = changed.generation.saturating_sub(1).to_string();
            Err(SpecRefusal::Generation { present: bounds.generation, expected }.into())
        }
        Command::Observe { now, requester } => Ok(observe(state, now, requester).into()),
        Command::ReportPlace(changed) => Ok(placed::reported(state, *changed).unwrap_or_default().into()),
    }
}

fn prompt(state: &State, phase: Phase, queued: TurnQueued, bounds: LaunchBounds) -> Result<Decision, Refusal> {
    if let Some(known) = queued.key.as_ref().and_then(|key| state.keys.iter().find(|known| known.key == *key)) {
        // The client did not receive the first response and repeats the request. The prompt is not sent again.
        if known.digest != prompt_digest(&queued) {
            return Err(Refusal::KeyReused { key: known.key.clone() });
        }
        let (turn, known_since) = (Some(known.turn.clone()), Some(known.seq.saturating_sub(1)));
        return Ok(Decision { batch: Batch::default(), turn, known_since });
    }
    // A session that waits for the restart of its agent accepts prompts; they wait for the restart too.
    if phase.is_over() || (phase == Phase::Stopping && !state.is_started_again()) {
        return Err(Refusal::NotRunning { phase });
    }
    if queued.prompt.trim().is_empty() && queued.parts.is_empty() {
        return Err(Refusal::EmptyPrompt);
    }
    let has_contents = || queued.parts.iter().filter_map(PromptPart::content).any(|text| digest_at(text).is_some());
    if state.keeper.is_some_and(|keeper| !keeper.fills_contents) && phase.is_active() && has_contents() {
        return Err(Refusal::OldKeeper);
    }
    if state.queue.len() >= bounds.queued_turns {
        return Err(Refusal::QueueFull { waiting: state.queue.len() });
    }
    let turn = Some(queued.turn.clone());
    Ok(Decision { batch: Batch::of(Body::TurnQueued(queued)), turn, known_since: None })
}

/// Records a proposed script, unless it equals the last proposal.
fn propose_script(state: &State, digest: String, explanation: Option<String>, requester: Option<Requester>) -> Batch {
    let is_known = |known: &ProposedScript| (&known.digest, &known.explanation) == (&digest, &explanation);
    if state.proposal.as_ref().is_some_and(is_known) {
        return Batch::default();
    }
    Batch::of(Body::ScriptProposed(ScriptProposed { digest, explanation, requester }))
}

/// Minimum time between two records that a person looked at a session.
const OBSERVED_PAUSE: SignedDuration = SignedDuration::from_mins(1);

fn observe(state: &State, now: Timestamp, requester: Option<Requester>) -> Batch {
    let is_recent = |before: &Timestamp| now.duration_since(*before).abs() < OBSERVED_PAUSE;
    if state.observed.as_ref().is_some_and(is_recent) {
        return Batch::default();
    }
    Batch::of(Body::SessionObserved(SessionObserved { requester }))
}

fn running_turn(state: &State) -> Option<&RunningTurn> {
    match &state.run {
        Run::Running(running) => running.turn.as_ref(),
        Run::Ended(_) | Run::Preparing(_) => None,
    }
}

fn cancel(state: &State, turn: Option<TurnId>, cause: &Cause) -> Result<Batch, Refusal> {
    let running = running_turn(state);
    let limited = state.limited_turn().filter(|_| running.is_none());
    let wanted = match (turn.or_else(|| limited.cloned()), running) {
        (None, None) => return Err(Refusal::NoTurn),
        (None, Some(running)) => running.id.clone(),
        (Some(turn), _) => turn,
    };
    if let Some(running) = running.filter(|running| running.id == wanted) {
        if running.cancelling {
            return Ok(Batch::default());
        }
        let mut batch = Batch::of(Body::TurnCancelling(TurnCancelling { turn: wanted, cause: cause.clone() }));
        if let Some(conversation) = &state.conversation {
            batch = batch.send(acp::cancel(conversation));
        }
        // ACP, "Cancellation": the client must answer all pending permission requests with `cancelled`.
        return Ok(state.permissions.iter().fold(batch, |batch, open| {
            resolve(batch, open, PermissionOutcome::Cancelled, AnsweredBy::Cancel, cause, true)
        }));
    }
    if state.queue.iter().any(|queued| queued.id == wanted) {
        let state = if limited == Some(&wanted) { "waited for the end of a rate limit" } else { "was queued" };
        return Ok(Batch::of(dropped(wanted, &format!("the turn was cancelled while it {state}"))));
    }
    Err(Refusal::NoSuchTurn { turn: wanted })
}

/// Detail of dropped turns of a stopped session.
pub const STOPPED_WHILE_WAITING: &str = "the session was stopped while the turn was queued";

/// Builds the end of a turn that never reached the agent.
pub fn dropped(turn: TurnId, detail: &str) -> Body {
    Body::TurnEnded(TurnEnded {
        turn,
        stop_reason: None,
        synthetic: Some(Synthetic { cause: SyntheticCause::Dropped, detail: detail.to_owned(), stderr: Vec::new() }),
        interrupted_tool_calls: Vec::new(),
    })
}

fn answer_permission(
    state: &State,
    permission: PermissionId,
    answer: &PermissionAnswer,
    cause: &Cause,
) -> Result<Batch, Refusal> {
    let Some(open) = state.permissions.iter().find(|open| open.request.id == permission) else {
        let number = permission.as_str().strip_prefix('p').and_then(|n| n.parse::<u64>().ok());
        return Err(if number.is_some_and(|n| n >= 1 && n < state.next_permission) {
            Refusal::PermissionAnswered { permission }
        } else {
            Refusal::NoSuchPermission { permission }
        });
    };
    // The permission request is closed together with the turn. Until then no agent can receive an answer.
    if !is_answerable(state, open) {
        return Err(Refusal::AgentEnded { permission });
    }
    if let Some(elicitation) = &open.request.elicitation {
        return answer_question(open, elicitation, answer, cause);
    }
    let options = &open.request.options;
    let chosen = match answer {
        PermissionAnswer::Option(id) => options.iter().find(|option| option.id == *id),
        PermissionAnswer::Allow => choose(options, &ALLOWING),
        PermissionAnswer::Deny => choose(options, &REJECTING),
        PermissionAnswer::Form(_) => return Err(Refusal::NoForm { permission }),
    };
    let outcome = match (chosen, answer) {
        (Some(option), _) => PermissionOutcome::Selected(option.id.clone()),
        // ACP has the outcome `cancelled` for a request that no option rejects: "the request was not approved and
        // no option was selected".
        (None, PermissionAnswer::Deny) => PermissionOutcome::Cancelled,
        // ACP cannot approve a request without an option: an agent must treat the id of an option that it did not
        // offer as a refusal.
        (None, _) if options.is_empty() => return Err(Refusal::NoOptions { permission }),
        (None, _) => {
            let offered = options.iter().map(|option| format!("{:?} ({})", option.id, option.kind));
            let offered = offered.collect::<Vec<_>>().join(", ");
            return Err(Refusal::NoSuchOption { permission, offered });
        }
    };
    Ok(resolve(Batch::default(), open, outcome, AnsweredBy::Client, cause, true))
}

/// Answers a question with a form or a page.
fn answer_question(
    open: &OpenPermission,
    elicitation: &Elicitation,
    answer: &PermissionAnswer,
    cause: &Cause,
) -> Result<Batch, Refusal> {
    let permission = open.request.id.clone();
    let options = &open.request.options;
    let values = match answer {
        PermissionAnswer::Deny => None,
        PermissionAnswer::Option(id) if id == DECLINE => None,
        PermissionAnswer::Option(id) if id != ACCEPT || options.iter().all(|option| option.id != *id) => {
            let offered = options.iter().map(|option| format!("{:?}", option.id)).collect::<Vec<_>>().join(", ");
            return Err(Refusal::NoSuchOption { permission, offered });
        }
        PermissionAnswer::Option(_) | PermissionAnswer::Allow => Some(FormValues::new()),
        PermissionAnswer::Form(values) => Some(values.clone()),
    };
    let (option, form) = match (values, elicitation) {
        (None, _) => (DECLINE, None),
        (Some(values), Elicitation::Form { schema, order }) => {
            let checked = Form::of(schema, order).check(values);
            (ACCEPT, Some(checked.map_err(|error| Refusal::Form { permission, error })?))
        }
        (Some(values), Elicitation::Url { .. }) if values.is_empty() => (ACCEPT, None),
        (Some(_), _) => return Err(Refusal::NoForm { permission }),
    };
    let outcome = PermissionOutcome::Selected(option.to_owned());
    Ok(resolve_with(Batch::default(), open, Reply { outcome, form }, AnsweredBy::Client, cause, true))
}

/// Reports whether the asker still waits for the answer.
fn is_answerable(state: &State, open: &OpenPermission) -> bool {
    match open.request.origin {
        PermissionOrigin::Agentd => staleness::is_asking(state),
        PermissionOrigin::Agent | PermissionOrigin::Unknown => matches!(state.run, Run::Running(_)),
    }
}

/// Kinds of options that allow, the narrowest first (ACP `PermissionOptionKind`). Ids, order and number of options
/// differ by agent.
pub const ALLOWING: [&str; 2] = ["allow_once", "allow_always"];
/// Kinds of options that reject, the narrowest first.
pub const REJECTING: [&str; 2] = ["reject_once", "reject_always"];

/// Returns the first option of the narrowest kind offered.
pub fn choose<'a>(options: &'a [PermissionOption], kinds: &[&str]) -> Option<&'a PermissionOption> {
    kinds.iter().find_map(|kind| options.iter().find(|option| option.kind == *kind))
}

/// Adds the end of a permission request, and the answer to the agent if the agent is alive.
pub fn resolve(
    batch: Batch,
    open: &OpenPermission,
    outcome: PermissionOutcome,
    by: AnsweredBy,
    cause: &Cause,
    agent_alive: bool,
) -> Batch {
    resolve_with(batch, open, Reply { outcome, form: None }, by, cause, agent_alive)
}

/// Answer to a permission request or a question.
struct Reply {
    outcome: PermissionOutcome,
    /// Values of the form of an accepted question.
    form: Option<FormValues>,
}

fn resolve_with(
    batch: Batch,
    open: &OpenPermission,
    Reply { outcome, form }: Reply,
    by: AnsweredBy,
    cause: &Cause,
    agent_alive: bool,
) -> Batch {
    // The agent knows nothing of agentd's own questions.
    let is_agents = open.request.origin != PermissionOrigin::Agentd;
    let answer = (agent_alive && is_agents).then(|| match &open.request.elicitation {
        Some(_) => acp::question_answer(&open.rpc, &outcome, form.as_ref()),
        None => acp::permission_answer(&open.rpc, &outcome),
    });
    let permission = open.request.id.clone();
    let cause = cause.clone();
    let batch = batch.record(Body::PermissionResolved(PermissionResolved { permission, outcome, form, by, cause }));
    match answer {
        Some(answer) => batch.send(answer),
        None => batch,
    }
}
