//! Sessions that are set aside: what can be done for one whose document or journal cannot be read.
//!
//! Nothing is known of such a session but its id, and that is enough to end it: its keeper listens in its runtime directory, has its directory on
//! its command line, is in its unit, and whatever its agent started carries its mark. Its files are left as they are until it is removed.

use std::path::Path;
use std::time::Duration;

use agentd_api::event::StopRequested;
use agentd_api::session::UnreadableSession;
use agentd_api::{Body, Code, Problem, SessionId};
use agentd_keeper::protocol::{Append, NewRecord, StopTimes, ToKeeper};

use super::batch::Batch;
use super::ending;
use super::journal_port::{Journal, Port};
use crate::env::chain;
use crate::launch::Link;
use crate::pulse;
use crate::world::World;

const PAUSE: Duration = Duration::from_millis(20);

/// Ends the session's keeper and agent, if they run: in order where the keeper answers, else by force.
pub(super) async fn end(world: &World, id: &SessionId, times: StopTimes, reason: &str) {
    let directory = world.directories.session(id);
    // A daemon that can read the session one day is not to take the end for a crash.
    let stop = Body::StopRequested(StopRequested { reason: reason.to_owned() });
    let was_asked = ask(world, id, &directory, times, &stop).await;
    let ended = ending::end(world, id, &directory, None).await;
    tracing::info!(agentd.session = %id, killed = ended.killed, "the session is set aside, and its agent is ended");
    if !was_asked && (ended.by_force || ended.killed > 0) {
        let journal = Journal { directory, options: world.config.journal.options() };
        if let Err(error) = Port::Direct.append(&journal, 0, u64::MAX, Batch::of(stop)).await {
            tracing::warn!(agentd.session = %id, error = %chain(&error), "the stop cannot be recorded");
        }
    }
}

/// Asks the keeper to stop, and waits until it has. Whether the stop is in the journal.
async fn ask(world: &World, id: &SessionId, directory: &Path, times: StopTimes, stop: &Body) -> bool {
    let patience = world.keeper_patience();
    let Ok(mut link) = Link::connect(&world.directories.keeper_socket(id), &patience).await else { return false };
    if link.hello.session != id.as_str() {
        return false;
    }
    let record = NewRecord { kind: stop.kind().to_owned(), data: stop.to_data(), send: false };
    let append =
        ToKeeper::Append(Append { request: 0, records: vec![record], durable: true, from_reserve: true, mute: None });
    let was_recorded = link.call(&append).await.is_ok();
    if link.call(&ToKeeper::Stop(times)).await.is_err() {
        return was_recorded;
    }
    drop(link);
    let limit = Duration::from_millis(times.close_ms.saturating_add(times.term_ms)) + patience.answer;
    let waiting = async {
        while ending::has_keeper(directory).await {
            tokio::time::sleep(PAUSE).await;
        }
    };
    let _ = pulse::elsewhere(tokio::time::timeout(limit, waiting)).await;
    was_recorded
}

/// The answer to what cannot be done for a session that is set aside.
pub(super) fn problem(unreadable: &UnreadableSession) -> Problem {
    let UnreadableSession { id, reason } = unreadable;
    Problem::new(Code::SessionUnreadable, format!("session {id:?} cannot be read and is set aside: {reason}")).hint(
        "its files are kept as they are; `agentctl stop` ends its agent, and `agentctl rm --force` removes it as well",
    )
}
