//! Handles sessions that are set aside because their document or journal cannot be read.
//!
//! Only the id of such a session is known, and the id is enough to end it. The keeper listens in the session's
//! runtime directory, names its directory on the command line, and runs in its unit. Processes of the agent carry
//! the session's mark. The files stay unchanged until the session is removed.

use std::time::Duration;

use agentd_api::event::StopRequested;
use agentd_api::hint;
use agentd_api::session::UnreadableSession;
use agentd_api::{Body, Code, Problem, SessionId};
use agentd_keeper::protocol::{Append, NewRecord, StopTimes, ToKeeper};

use super::ending;
use crate::generation::Generation;
use crate::launch::Link;

/// Ends the session's keeper and agent, gracefully if the keeper answers, else by force. The keeper records the
/// stop, so that a later reader does not take it for a crash. No other process writes the journal, since opening
/// it for writing would repair it.
pub(super) async fn end(generation: &Generation, id: &SessionId, times: StopTimes, stop: StopRequested) {
    let directory = generation.daemon.directories.session(id);
    let is_recorded = ask(generation, id, times, &Body::StopRequested(stop)).await;
    let ended = ending::end(generation, id, &directory, None).await;
    tracing::info!(agentd.session = %id, killed = ended.killed, "ended the agent of a session that is set aside");
    if !is_recorded && (ended.by_force || ended.killed > 0) {
        tracing::warn!(agentd.session = %id, "the keeper did not answer, so the journal does not record the stop");
    }
}

/// Asks the keeper to stop, and waits until it has ended. Returns whether the stop is in the journal.
async fn ask(generation: &Generation, id: &SessionId, times: StopTimes, stop: &Body) -> bool {
    let patience = generation.keeper_patience();
    let Ok(mut link) = Link::connect(&generation.daemon.directories.keeper_socket(id), &patience).await else {
        return false;
    };
    if link.hello.session != id.as_str() {
        return false;
    }
    let keeper = (link.hello.pid, link.hello.start_time);
    let record =
        NewRecord { kind: stop.kind().to_owned(), data: stop.to_data(), send: false, fill: false, contents: false };
    let append =
        ToKeeper::Append(Append { request: 0, records: vec![record], durable: true, from_reserve: true, mute: None });
    let is_recorded = link.call(&append).await.is_ok();
    if link.call(&ToKeeper::Stop(times)).await.is_err() {
        return is_recorded;
    }
    drop(link);
    let limit = Duration::from_millis(times.close_ms.saturating_add(times.term_ms)) + patience.answer;
    ending::gone(&[keeper], limit, false).await;
    is_recorded
}

/// Returns the refusal for a session that is set aside.
pub(super) fn problem(unreadable: &UnreadableSession) -> Problem {
    let UnreadableSession { id, reason } = unreadable;
    Problem::new(Code::SessionUnreadable, format!("session {id:?} cannot be read and is set aside: {reason}"))
        .hint(hint::STOP_UNREADABLE)
}
