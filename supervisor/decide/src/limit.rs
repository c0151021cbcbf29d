//! Turns that meet a rate limit of the agent's provider: they wait in the queue, and are sent again when the limit is
//! over. Pure.
//!
//! ```text
//!  turn.started ─► the agent answers with a rate limit ─► turn.limited ─► (time, or turn.released) ─► turn.started
//! ```
//!
//! The record has the time of the next attempt, so that it survives the daemon, the agent and the machine.

use agentd_api::event::{TurnLimited, TurnReleased};
use agentd_api::prerequisite::Requester;
use agentd_api::reason;
use agentd_api::session::{ConditionStatus, ConditionType};
use agentd_api::{Body, TurnId};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::acp;
use crate::batch::Batch;
use crate::next::{Facts, condition};
use crate::state::{Opening, Pending, QueuedTurn, Run, Running, RunningTurn, State};

const KIND: ConditionType = ConditionType::RateLimited;
/// First and longest pause behind a limit whose end the agent does not name. Each pause is twice the previous pause.
const FIRST: SignedDuration = SignedDuration::from_hours(1);
const LONGEST: SignedDuration = SignedDuration::from_hours(24);
/// Shortest pause behind the second limit in a row. It doubles too, up to `FIRST`.
const SECOND: SignedDuration = SignedDuration::from_mins(1);
/// A time that is farther away is a mistake of the agent.
const FARTHEST: SignedDuration = SignedDuration::from_hours(32 * 24);
/// The next attempt is later than the named time by this part of the wait, up to `MARGIN`. Clocks differ, and a
/// request at the very end of a limit would meet it again.
const PART: i32 = 60;
const MARGIN: SignedDuration = SignedDuration::from_mins(1);
/// Maximum number of characters of the agent's words.
const WORDS: usize = 400;

/// Note in front of a prompt that is sent again.
const AGAIN: &str = "A rate limit ended the earlier work on the following prompt. The prompt is sent again. Parts of \
    the work may be done already: look before you repeat anything, and continue.";

/// A turn that met a rate limit, until its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitedTurn {
    turn: TurnId,
    /// Time of the next attempt.
    pub until: Timestamp,
    /// Number of limits in a row.
    attempt: u32,
    message: String,
    /// Whether the prompt was sent again.
    is_sent: bool,
}

impl State {
    /// Returns the turn that waits for the end of a rate limit.
    pub fn limited(&self) -> Option<&LimitedTurn> {
        self.limit.as_ref().filter(|limit| !limit.is_sent)
    }

    /// Returns the id of that turn.
    pub(crate) fn limited_turn(&self) -> Option<&TurnId> {
        self.limited().map(|limit| &limit.turn)
    }

    /// Puts the running turn back to the front of the queue.
    pub(crate) fn turn_limited(&mut self, limited: &TurnLimited) {
        let seq = self.seq;
        let Run::Running(running) = &mut self.run else { return };
        let Some(turn) = running.turn.take_if(|turn| turn.id == limited.turn) else { return };
        running.calls.clear();
        running.idle_since = seq;
        running.pending.retain(|_, pending| !matches!(pending, Pending::Prompt(of) if *of == turn.id));
        self.facts.turn_ended(seq, self.updated);
        self.queue.push_front(QueuedTurn { id: turn.id, prompt: turn.prompt, parts: turn.parts });
        self.limit = Some(LimitedTurn {
            turn: limited.turn.clone(),
            until: limited.until,
            attempt: limited.attempt,
            message: limited.message.clone(),
            is_sent: false,
        });
    }

    /// Lets the prompt be sent again at once.
    pub(crate) fn turn_released(&mut self, released: &TurnReleased) {
        if let Some(limit) = self.limit.as_mut().filter(|limit| limit.turn == released.turn) {
            limit.until = self.updated;
        }
    }

    pub(crate) fn limit_started(&mut self, turn: &TurnId) {
        if let Some(limit) = self.limit.as_mut().filter(|limit| limit.turn == *turn) {
            limit.is_sent = true;
        }
    }

    pub(crate) fn limit_ended(&mut self, turn: &TurnId) {
        self.limit.take_if(|limit| limit.turn == *turn);
    }
}

/// Returns the record of a turn whose answer is a rate limit.
pub(crate) fn reached(state: &State, turn: &RunningTurn, facts: &Facts<'_>) -> Option<Batch> {
    let error = turn.answer.as_ref()?.as_ref().err().filter(|_| !turn.cancelling)?;
    let named = acp::rate_limit(error, facts.now, facts.zone)?;
    let before = state.limit.as_ref().filter(|limit| limit.turn == turn.id);
    let attempt = before.map_or(1, |limit| limit.attempt.saturating_add(1));
    let (until, is_named) = end(named, attempt, facts.now);
    let message: String = error.message.chars().filter(|c| !c.is_control()).take(WORDS).collect();
    let interrupted_tool_calls = turn.tool_calls.iter().cloned().collect();
    let turn = turn.id.clone();
    let said = condition(
        state,
        facts,
        KIND,
        ConditionStatus::True,
        reason::RATE_LIMIT_REACHED,
        described(&turn, &message, until),
    );
    let limited = TurnLimited { turn, until, is_named, attempt, message, interrupted_tool_calls };
    Some(Batch::of(Body::TurnLimited(limited)).record(said))
}

/// Describes a limit for people.
fn described(turn: &TurnId, message: &str, until: Timestamp) -> String {
    let until = until.round(jiff::Unit::Second).unwrap_or(until);
    format!("the agent met a rate limit: {message}; {turn} is sent again at {until}, or now by `agentctl resume`")
}

/// Returns the time of the next attempt, and whether it follows from the time that the agent named.
fn end(named: Option<Timestamp>, attempt: u32, now: Timestamp) -> (Timestamp, bool) {
    let wait = named.map(|end| end.duration_since(now)).filter(|wait| wait.is_positive() && *wait <= FARTHEST);
    let pause = match wait {
        Some(wait) => {
            let shortest = if attempt == 1 { SignedDuration::ZERO } else { doubled(SECOND, attempt - 1).min(FIRST) };
            (wait + (wait / PART).min(MARGIN)).max(shortest)
        }
        None => doubled(FIRST, attempt).min(LONGEST),
    };
    (now.checked_add(pause).unwrap_or(Timestamp::MAX), wait.is_some())
}

/// Returns the n-th pause.
fn doubled(first: SignedDuration, n: u32) -> SignedDuration {
    first.saturating_mul(1 << n.saturating_sub(1).min(16))
}

/// Reports whether the next turn waits for the end of a rate limit.
pub(crate) fn holds_turn(state: &State, now: Timestamp) -> bool {
    state.limited().is_some_and(|limit| now < limit.until)
}

/// Reports whether this turn is sent again.
pub(crate) fn is_again(state: &State, turn: &TurnId) -> bool {
    state.limit.as_ref().is_some_and(|limit| limit.turn == *turn)
}

/// Adds to the note in front of a prompt that the prompt is sent again.
pub(crate) fn note(note: Option<String>) -> String {
    note.map_or(AGAIN.to_owned(), |note| format!("{note}\n\n{AGAIN}"))
}

/// Returns the record of the condition `RateLimited` if the condition is not recorded yet: in a new launch, and after
/// the limit.
pub(crate) fn report(state: &State, facts: &Facts<'_>) -> Option<Batch> {
    let (status, reason, message) = match state.limited() {
        Some(_) if state.holds(KIND) => return None,
        Some(LimitedTurn { turn, message, until, .. }) => {
            (ConditionStatus::True, reason::RATE_LIMIT_REACHED, described(turn, message, *until))
        }
        None if state.holds(KIND) => {
            let message = "no prompt waits for the end of a rate limit";
            (ConditionStatus::False, reason::RATE_LIMIT_OVER, message.to_owned())
        }
        None => return None,
    };
    Some(Batch::of(condition(state, facts, KIND, status, reason, message)))
}

/// Returns the record that lets a limited turn be sent again at once.
pub(crate) fn release(state: &State, requester: Option<Requester>) -> Option<Batch> {
    let turn = state.limited_turn()?.clone();
    Some(Batch::of(Body::TurnReleased(TurnReleased { turn, requester })))
}

/// Returns the time at which a ready agent gets the prompt again that met a rate limit.
pub(crate) fn next_attempt(state: &State, running: &Running) -> Option<Timestamp> {
    state.limited().filter(|_| running.opening == Opening::Open).map(|limit| limit.until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_follows_the_named_time_or_doubles() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let of = |named: Option<&str>, attempt| {
            let (until, is_named) = end(named.map(|named| named.parse().unwrap()), attempt, now);
            (until.duration_since(now).as_secs(), is_named)
        };
        let hours: Vec<i64> = [1, 2, 3, 4, 5, 6, 60].map(|attempt| of(None, attempt).0 / 3600).to_vec();
        assert_eq!(hours, [1, 2, 4, 8, 16, 24, 24]);
        assert_eq!(of(Some("2026-01-01T01:00:00Z"), 1), (3660, true));
        assert_eq!(of(Some("2026-01-01T00:00:06Z"), 1), (6, true), "a tenth of a second more");
        assert_eq!(of(Some("2026-01-08T00:00:00Z"), 9), (7 * 86_400 + 60, true));
        let soon: Vec<i64> = [2, 3, 4, 9, 60].map(|attempt| of(Some("2026-01-01T00:00:06Z"), attempt).0).to_vec();
        assert_eq!(soon, [60, 120, 240, 3600, 3600]);
        for no_use in ["2025-12-31T23:59:59Z", "2026-01-01T00:00:00Z", "2026-03-01T00:00:00Z"] {
            assert_eq!(of(Some(no_use), 1), (3600, false), "{no_use}");
        }
    }
}
