//! Sessions that are not interactive: when one is done and with which outcome, and the limits of time and cost. Pure.
//!
//! ```text
//!  last turn ends ─► session.completing ─► the agent is stopped ─► Step::Conclude ─► session.completed
//!  a failure, a stop or a limit ends the agent ───────────────────────┘
//! ```
//!
//! From its creation to `session.completed` the state is `is_batch`. It is interactive afterwards. Between the agent's
//! end and `session.completed` the phase is `stopping`, so that no client sees the end before the result.

use std::sync::Arc;

use agentd_api::completion::{AnswerChecked, Completion, Cost, Outcome, SessionCompleting, Usage};
use agentd_api::event::{Cause, StopRequested, Synthetic, SyntheticCause, TurnEnded};
use agentd_api::reason;
use agentd_api::session::{ConditionStatus, ConditionType, Phase};
use agentd_api::{Body, Event, TurnId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::acp;
use crate::batch::Batch;
use crate::next::{Facts, Step, condition};
use crate::placed::Placed;
use crate::state::{EndReason, Ended, Run, Running, State};

/// Number of answers that a turn with a schema may have.
const ATTEMPTS: u32 = 2;
/// Number of errors that the second prompt quotes.
const QUOTED: usize = 10;

/// Reason of a session whose prompts are done.
const DONE: &str = "the prompts are done";

/// Configuration keys of the limits, as causes of a stop.
const LIMIT_OF_SESSION: &str = "limits.session_seconds";
const LIMIT_OF_COST: &str = "limits.cost";

/// The part of a session's state about its completion, its limits and its usage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompletionState {
    /// Whether the session completes when its prompts are done.
    pub is_batch: bool,
    /// The turn that the agent works on.
    turn: Option<WatchedTurn>,
    /// The last turn that ended.
    pub last: Option<EndedTurn>,
    /// The outcome, if it does not follow from the agent's end.
    verdict: Option<SessionCompleting>,
    /// Exit status and signal of the agent of the last launch.
    pub agent: (Option<i32>, Option<i32>),
    /// Number of prompts that were queued when the agent ended.
    left: usize,
    /// The last result of the session.
    pub done: Option<Arc<Completion>>,
    /// Schemas of the turns that are queued or running.
    schemas: Vec<(TurnId, Arc<Value>)>,
    /// The cost and the tokens that the agent last reported.
    pub cost: Option<Cost>,
    pub usage: Usage,
    pub active: ActiveTime,
}

/// The parts of a running turn on which its outcome depends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct WatchedTurn {
    id: Option<TurnId>,
    /// Number of the record that sent the turn's last prompt.
    since: u64,
    /// Number of the answer that is expected.
    attempt: u32,
    is_cancelled: bool,
    /// The limit that cancelled the turn.
    limit: Option<String>,
    /// Result of the check of the last answer.
    checked: Option<AnswerChecked>,
}

/// A turn that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndedTurn {
    pub id: TurnId,
    /// Number of the record behind which the answer begins.
    pub since: u64,
    pub outcome: Outcome,
    reason: String,
    /// Whether the answer satisfies a schema.
    pub has_schema: bool,
}

impl EndedTurn {
    /// Reports whether the turn may have ended because its agent did.
    fn is_cut(&self) -> bool {
        matches!(self.outcome, Outcome::Failed | Outcome::Cancelled)
    }
}

/// Time for which a session was active: in each phase with an agent or a launch, except `idle` and `limited`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActiveTime {
    /// Milliseconds until the last change.
    pub spent: u64,
    /// Time since which the session has been active.
    pub since: Option<Timestamp>,
}

/// A check of an answer that is due.
#[derive(Debug, Clone, PartialEq)]
pub struct DueCheck {
    pub turn: TurnId,
    /// Number of the record behind which the answer begins.
    pub since: u64,
    pub attempt: u32,
    /// Whether the agent is gone or has had its second chance.
    pub is_last: bool,
    pub schema: Arc<Value>,
}

impl State {
    /// Applies a record to the part about the completion, after the other parts.
    pub(crate) fn complete(&mut self, event: &Event) {
        let state = &mut self.completion;
        match &event.body {
            Body::SessionCreated(created) => state.is_batch = !created.spec.interactive,
            Body::SpecChanged(changed) if changed.changes.iter().any(|change| change.field == "interactive") => {
                state.is_batch = !changed.spec.interactive;
                (state.last, state.verdict) = (None, None);
            }
            Body::LaunchStarted(_) => (state.turn, state.verdict, state.agent) = (None, None, (None, None)),
            Body::TurnQueued(queued) => {
                let schema = queued.schema.clone().map(Arc::new);
                state.schemas.extend(schema.map(|schema| (queued.turn.clone(), schema)));
            }
            Body::TurnStarted(started) => {
                let id = Some(started.turn.clone());
                state.turn = Some(WatchedTurn { id, since: event.seq, attempt: 1, ..WatchedTurn::default() });
            }
            Body::TurnCancelling(cancelling) => {
                if let Some(turn) = state.watched(&cancelling.turn) {
                    (turn.is_cancelled, turn.limit) = (true, cancelling.cause.limit.clone());
                }
            }
            Body::AnswerChecked(checked) => self.checked(checked, event.seq),
            Body::TurnLimited(_) => state.turn = None,
            Body::TurnEnded(ended) => state.turn_ended(ended),
            Body::StopRequested(stop) if state.is_batch && state.verdict.is_none() => {
                let outcome = if stop.cause.limit.is_some() { Outcome::Limit } else { Outcome::Cancelled };
                state.verdict = Some(SessionCompleting { outcome, reason: format!("{}{}", stop.reason, stop.cause) });
            }
            Body::SessionCompleting(completing) => {
                state.verdict = Some(completing.clone());
                if let Run::Running(running) = &mut self.run {
                    running.ending = Some(EndReason::Stop);
                }
            }
            Body::AgentExited(exited) if exited.launch == self.launches => {
                state.agent = (exited.status, exited.signal);
                state.left = self.queue.len();
            }
            Body::SessionCompleted(done) => self.completed(done),
            Body::AgentOut(line) => {
                if let Some(reported) = acp::usage(line) {
                    reported.into(&mut state.cost, &mut state.usage);
                }
            }
            _ => {}
        }
        self.note_active();
    }

    fn completed(&mut self, done: &Completion) {
        let state = &mut self.completion;
        state.is_batch = false;
        state.done = Some(Arc::new(done.clone()));
        if !matches!(self.run, Run::Ended(_)) {
            return;
        }
        // Nothing restarts the agent after this.
        self.crashes.clear();
        self.run = Run::Ended(match done.outcome {
            Outcome::Completed => Ended::Completed,
            Outcome::Cancelled => Ended::Stopped,
            Outcome::Failed | Outcome::Limit | Outcome::Schema | Outcome::Unknown => Ended::Failed(done.reason.clone()),
        });
    }

    /// Applies the check of an answer. An invalid answer that does not fail the turn is not the turn's answer.
    fn checked(&mut self, checked: &AnswerChecked, seq: u64) {
        let Some(turn) = self.completion.watched(&checked.turn) else { return };
        if checked.errors.is_empty() || checked.fails {
            turn.checked = Some(checked.clone());
            return;
        }
        (turn.attempt, turn.since) = (checked.attempt + 1, seq);
        if let Some(turn) = self.turn_mut() {
            turn.answer = None;
        }
    }

    fn note_active(&mut self) {
        let (phase, now) = (self.phase(), self.updated);
        let is_active = phase.is_active() && !matches!(phase, Phase::Idle | Phase::Limited);
        let active = &mut self.completion.active;
        match active.since {
            None if is_active => active.since = Some(now),
            Some(since) if !is_active => {
                let span = now.duration_since(since).as_millis();
                active.spent = active.spent.saturating_add(u64::try_from(span).unwrap_or(0));
                active.since = None;
            }
            _ => {}
        }
    }

    /// Reports whether the session is not interactive and its result is not recorded yet.
    pub fn awaits_completion(&self) -> bool {
        self.completion.is_batch
    }

    /// Reports whether the prompts are done, so that the agent was stopped by agentd itself.
    pub(crate) fn has_done_its_prompts(&self) -> bool {
        self.completion.verdict.as_ref().is_some_and(|verdict| verdict.outcome == Outcome::Completed)
    }

    fn is_ended_by_place(&self) -> bool {
        self.placed.as_ref().is_some_and(Placed::is_over)
    }

    /// Reports whether queued prompts of an ended session are dropped: after a turn of a session that is not
    /// interactive. A launch that failed keeps them for the next launch.
    pub(crate) fn drops_its_queue(&self) -> bool {
        let state = &self.completion;
        state.is_batch && (state.last.is_some() || state.verdict.is_some())
    }

    /// Returns the outcome of a session whose agent has ended.
    pub fn verdict(&self) -> SessionCompleting {
        let state = &self.completion;
        if let Some(verdict) = &state.verdict {
            return verdict.clone();
        }
        match (&self.run, &state.last) {
            // The place's reason explains the end of a turn that its end cut.
            (Run::Ended(Ended::Failed(message)), Some(last)) if last.is_cut() && self.is_ended_by_place() => {
                SessionCompleting { outcome: Outcome::Failed, reason: message.clone() }
            }
            (_, Some(last)) if last.outcome != Outcome::Completed => {
                SessionCompleting { outcome: last.outcome, reason: last.reason.clone() }
            }
            // An agent that exits by itself after its work does not undo the work.
            (_, Some(_)) if state.left == 0 => {
                SessionCompleting { outcome: Outcome::Completed, reason: DONE.to_owned() }
            }
            (Run::Ended(Ended::Failed(message)), _) => {
                SessionCompleting { outcome: Outcome::Failed, reason: message.clone() }
            }
            _ => SessionCompleting { outcome: Outcome::Cancelled, reason: "the session was stopped".to_owned() },
        }
    }
}

impl CompletionState {
    fn watched(&mut self, turn: &TurnId) -> Option<&mut WatchedTurn> {
        self.turn.as_mut().filter(|watched| watched.id.as_ref() == Some(turn))
    }

    fn schema(&self, turn: &TurnId) -> Option<&Arc<Value>> {
        self.schemas.iter().find(|(of, _)| of == turn).map(|(_, schema)| schema)
    }

    fn turn_ended(&mut self, ended: &TurnEnded) {
        let schema = self.schemas.iter().position(|(turn, _)| *turn == ended.turn);
        let has_schema = schema.map(|at| self.schemas.swap_remove(at)).is_some();
        let watched = self.turn.take_if(|watched| watched.id.as_ref() == Some(&ended.turn));
        if watched.is_none() && self.last.is_some() {
            // A queued prompt was dropped behind a turn that decides.
            return;
        }
        let watched = watched.unwrap_or_default();
        let (outcome, reason) = outcome(ended, &watched);
        self.last = Some(EndedTurn { id: ended.turn.clone(), since: watched.since, outcome, reason, has_schema });
    }
}

fn outcome(ended: &TurnEnded, watched: &WatchedTurn) -> (Outcome, String) {
    if let Some(limit) = &watched.limit {
        return (Outcome::Limit, format!("the turn was cancelled ({limit} was reached)"));
    }
    let cancelled = || (Outcome::Cancelled, "the turn was cancelled".to_owned());
    match (&ended.synthetic, ended.stop_reason.as_deref()) {
        (Some(synthetic), _) if synthetic.cause == SyntheticCause::AnswerInvalid => {
            (Outcome::Schema, synthetic.detail.clone())
        }
        (Some(synthetic), _) if synthetic.cause == SyntheticCause::Dropped => {
            (Outcome::Cancelled, synthetic.detail.clone())
        }
        _ if watched.is_cancelled => cancelled(),
        (Some(synthetic), _) => (Outcome::Failed, synthetic.detail.clone()),
        (None, Some("end_turn") | None) => (Outcome::Completed, String::new()),
        (None, Some("cancelled")) => cancelled(),
        (None, Some(reason)) => (Outcome::Failed, format!("the agent ended the turn with {reason:?}")),
    }
}

/// Returns the check that is due: of the answer of the running turn, or of the turn whose agent has exited.
pub fn due_check(state: &State) -> Option<DueCheck> {
    let (id, answer, is_alive) = match (&state.run, &state.cut) {
        (Run::Running(running), _) if running.ending.is_none() => {
            let turn = running.turn.as_ref()?;
            (&turn.id, turn.answer.as_ref()?, true)
        }
        (Run::Ended(_), Some(cut)) => (&cut.id, cut.answer.as_ref()?, false),
        _ => return None,
    };
    let watched = state.completion.turn.as_ref().filter(|watched| watched.id.as_ref() == Some(id))?;
    let is_final = matches!(answer, Ok(Some(reason)) if reason == "end_turn");
    if !is_final || watched.is_cancelled || watched.checked.is_some() {
        return None;
    }
    let (attempt, schema) = (watched.attempt, Arc::clone(state.completion.schema(id)?));
    let is_last = attempt >= ATTEMPTS || !is_alive;
    Some(DueCheck { turn: id.clone(), since: watched.since, attempt, is_last, schema })
}

/// Returns the records for the result of a check: the result, and the second prompt after a first invalid answer.
pub fn checked(state: &State, checked: AnswerChecked) -> Batch {
    let asks_again = !checked.errors.is_empty() && !checked.fails;
    let line = state.conversation.as_ref().filter(|_| asks_again).map(|conversation| {
        let schema = state.completion.schema(&checked.turn).map(ToString::to_string).unwrap_or_default();
        let errors: Vec<String> = checked.errors.iter().take(QUOTED).map(|error| format!("- {error}")).collect();
        let text = format!(
            "Your answer does not satisfy the JSON Schema that it must satisfy:\n\n{}\n\nThe schema is:\n\n```json\n\
             {schema}\n```\n\nAnswer again. The last block of your answer must be the JSON document, and nothing else.",
            errors.join("\n"),
        );
        acp::prompt(state.next_rpc, conversation, std::iter::empty(), (&text, &[]), acp::Capabilities::default())
    });
    let batch = Batch::of(Body::AnswerChecked(checked));
    match line {
        Some(line) => batch.send(line),
        None => batch,
    }
}

/// Returns the end of a turn with the result of its check.
pub(crate) fn judged(state: &State, body: Body) -> Body {
    let Body::TurnEnded(mut ended) = body else { return body };
    let checked = state.completion.turn.as_ref().and_then(|turn| turn.checked.as_ref());
    if let Some(checked) = checked.filter(|checked| checked.turn == ended.turn && checked.fails) {
        let errors: Vec<String> = checked.errors.iter().map(ToString::to_string).collect();
        let detail = format!("the answer does not satisfy its schema: {}", errors.join("; "));
        let cause = SyntheticCause::AnswerInvalid;
        ended.synthetic.get_or_insert(Synthetic { cause, detail, stderr: Vec::new() });
    }
    Body::TurnEnded(ended)
}

/// Returns the records of a session between two turns, and of a session that costs too much.
pub(crate) fn step(state: &State, running: &Running, facts: &Facts<'_>) -> Option<Batch> {
    over_cost(state, facts).or_else(|| limits_checked(state, running, facts)).or_else(|| completing(state, running))
}

fn completing(state: &State, running: &Running) -> Option<Batch> {
    let last = state.completion.last.as_ref().filter(|_| state.completion.is_batch && running.turn.is_none())?;
    let (outcome, reason) = match last.outcome {
        Outcome::Completed if state.queue.is_empty() => (Outcome::Completed, DONE.to_owned()),
        Outcome::Completed => return None,
        outcome => (outcome, last.reason.clone()),
    };
    Some(Batch::of(Body::SessionCompleting(SessionCompleting { outcome, reason })))
}

fn over_cost(state: &State, facts: &Facts<'_>) -> Option<Batch> {
    let (limit, cost) = (facts.spec.limits.cost?, state.completion.cost.as_ref()?);
    if limit.is_exceeded(cost) != Some(true) {
        return None;
    }
    let reason = format!("the session cost {cost}, and its limit is {limit}");
    Some(Batch::of(Body::StopRequested(StopRequested { reason, cause: Cause::limit(LIMIT_OF_COST) })))
}

/// Records whether the limit of cost can be checked, after a turn.
fn limits_checked(state: &State, running: &Running, facts: &Facts<'_>) -> Option<Batch> {
    const KIND: ConditionType = ConditionType::LimitsChecked;
    let known = state.condition(KIND);
    let (status, reason, message) = match (facts.spec.limits.cost, &state.completion.cost) {
        (Some(limit), Some(cost)) if limit.is_exceeded(cost).is_none() => (
            ConditionStatus::False,
            reason::CURRENCY_DIFFERS,
            format!("limits.cost is {limit} and cannot be checked: the agent reports its cost as {cost}"),
        ),
        (Some(_), None) if running.turn.is_none() && state.turn_ended_at.is_some() => (
            ConditionStatus::False,
            reason::COST_UNKNOWN,
            "limits.cost cannot be checked: the agent reports no cost; limits.turn_seconds and limits.session_seconds \
             bound the session"
                .to_owned(),
        ),
        (Some(_), None) => return None,
        _ if known.is_none() => return None,
        _ => (ConditionStatus::True, reason::LIMITS_CHECKED, "the limits of the session can be checked".to_owned()),
    };
    if known.is_some_and(|known| known.status == status && known.reason == reason) {
        return None;
    }
    Some(Batch::of(condition(state, facts, KIND, status, reason, message)))
}

/// Returns the record for a session that reached its limit of active time.
pub(crate) fn over_time(facts: &Facts<'_>) -> Batch {
    let seconds = facts.spec.limits.session_seconds.unwrap_or_default();
    let reason = format!("the session was active for {seconds} s");
    Batch::of(Body::StopRequested(StopRequested { reason, cause: Cause::limit(LIMIT_OF_SESSION) }))
}

/// Returns the next step of an ended session whose result is not recorded, if its turn is closed.
pub(crate) fn conclude(state: &State) -> Option<Step> {
    let is_due = state.completion.is_batch && !matches!(state.run, Run::Ended(Ended::Pending | Ended::Switching));
    is_due.then_some(Step::Conclude)
}
