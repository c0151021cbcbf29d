//! Sessions that are set aside: what can be done for one whose document or journal cannot be read.
//!
//! Nothing is known of such a session but its id, and that is enough to end it: its keeper listens in its runtime directory, has its directory on
//! its command line, is in its unit, and whatever its agent started carries its mark. Its files are left as they are until it is removed.

use std::time::Duration;

use agentd_api::event::StopRequested;
use agentd_api::session::UnreadableSession;
use agentd_api::{Body, Code, Problem, SessionId};
use agentd_keeper::protocol::{Append, NewRecord, StopTimes, ToKeeper};

use super::ending;
use crate::launch::Link;
use crate::world::World;

/// Ends the session's keeper and agent, if they run: in order where the keeper answers, else by force. The keeper records the stop, so that
/// a daemon that can read the session one day does not take the end for a crash. Nobody else writes: that would repair the journal.
pub(super) async fn end(world: &World, id: &SessionId, times: StopTimes, stop: StopRequested) {
    let directory = world.directories.session(id);
    let is_recorded = ask(world, id, times, &Body::StopRequested(stop)).await;
    let ended = ending::end(world, id, &directory, None).await;
    tracing::info!(agentd.session = %id, killed = ended.killed, "the session is set aside, and its agent is ended");
    if !is_recorded && (ended.by_force || ended.killed > 0) {
        tracing::warn!(agentd.session = %id, "its keeper did not answer, so that the journal does not say that it was stopped");
    }
}

/// Asks the keeper to stop, and waits until it has. Whether the stop is in the journal.
async fn ask(world: &World, id: &SessionId, times: StopTimes, stop: &Body) -> bool {
    let patience = world.keeper_patience();
    let Ok(mut link) = Link::connect(&world.directories.keeper_socket(id), &patience).await else { return false };
    if link.hello.session != id.as_str() {
        return false;
    }
    let keeper = (link.hello.pid, link.hello.start_time);
    let record = NewRecord { kind: stop.kind().to_owned(), data: stop.to_data(), send: false };
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

/// The answer to what cannot be done for a session that is set aside.
pub(super) fn problem(unreadable: &UnreadableSession) -> Problem {
    let UnreadableSession { id, reason } = unreadable;
    Problem::new(Code::SessionUnreadable, format!("session {id:?} cannot be read and is set aside: {reason}")).hint(
        "its files are kept as they are; `agentctl stop` ends its agent, and `agentctl rm --force` removes it as well",
    )
}
