//! Finds out what became of a run: from the records of its turn, else from the phase of its session.

use std::path::Path;

use agentd_api::completion::Outcome;
use agentd_api::event::TurnEnded;
use agentd_api::schedule::RunOutcome;
use agentd_api::session::{Phase, SessionView};
use agentd_api::{Body, Event, TurnId};
use agentd_journal::Reader;

use crate::{Session, pulse};

/// The end of a run, with a description of a failure.
pub(super) type RunEnd = (RunOutcome, Option<String>);

fn failed(reason: impl Into<String>) -> RunEnd {
    (RunOutcome::Failed, Some(reason.into()))
}

/// Waits until the turn has ended, or without a turn until the session has. `after` is the sequence number before the
/// first record of the turn.
pub(super) async fn wait_for_end(session: &Session, turn: Option<&TurnId>, after: u64) -> RunEnd {
    let mut published = session.watch();
    loop {
        let view = session.view();
        let is_read = published.borrow_and_update().current && view.status.last_seq > after;
        if is_read && let Some(end) = end(session, &view, turn, after).await {
            return end;
        }
        if published.changed().await.is_err() {
            return failed("the session was removed");
        }
    }
}

/// Returns the end of a run, if it has ended.
async fn end(session: &Session, view: &SessionView, turn: Option<&TurnId>, after: u64) -> Option<RunEnd> {
    let phase = view.status.phase;
    if after == 0 && !view.spec.interactive {
        // The session was created by the run, and its result decides.
        return match &view.status.completion {
            Some(done) if done.outcome == Outcome::Completed => Some((RunOutcome::Succeeded, None)),
            Some(done) => Some(failed(done.reason.clone())),
            None => None,
        };
    }
    let Some(turn) = turn else {
        return match phase {
            Phase::Failed => Some(failed(view.status.message.clone().unwrap_or_else(|| "the session failed".into()))),
            _ if phase.is_over() => Some((RunOutcome::Succeeded, None)),
            _ => None,
        };
    };
    let is_at_work = view.status.turn.as_ref().is_some_and(|running| running.id == *turn);
    let is_queued = view.status.queue.iter().any(|queued| queued.id == *turn);
    if is_at_work || (is_queued && !phase.is_over()) {
        return None;
    }
    if is_queued {
        // The prompt waits for a resume, which may never come.
        return Some(failed(view.status.message.clone().unwrap_or_else(|| "the session was stopped".into())));
    }
    let (directory, turn) = (session.directory().clone(), turn.clone());
    match pulse::blocking(move || turn_end(&directory, &turn, after)).await {
        Ok(Some(ended)) => Some(of_turn(&ended)),
        // The state is ahead of the records that this look has read, or the turn is not closed yet.
        Ok(None) => None,
        Err(reason) => Some((RunOutcome::Unknown, Some(reason))),
    }
}

/// Reads the end of a turn from the journal.
fn turn_end(directory: &Path, turn: &TurnId, after: u64) -> Result<Option<TurnEnded>, String> {
    let text = |error: &dyn std::fmt::Display| format!("the end of the turn cannot be read: {error}");
    let mut reader = Reader::open(directory, after).map_err(|error| text(&error))?;
    while let Some(line) = reader.next().map_err(|error| text(&error))? {
        if line.parts().is_none_or(|parts| parts.kind != "turn.ended") {
            continue;
        }
        if let Ok(Event { body: Body::TurnEnded(ended), .. }) = Event::parse(line.bytes)
            && ended.turn == *turn
        {
            return Ok(Some(ended));
        }
    }
    Ok(None)
}

fn of_turn(ended: &TurnEnded) -> RunEnd {
    match (&ended.synthetic, ended.stop_reason.as_deref()) {
        (Some(synthetic), _) => failed(synthetic.detail.clone()),
        (None, Some("end_turn") | None) => (RunOutcome::Succeeded, None),
        (None, Some(reason)) => failed(format!("the agent ended the turn with {reason:?}")),
    }
}
