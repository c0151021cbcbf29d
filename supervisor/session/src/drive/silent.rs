//! A session whose keeper holds the journal and does not answer: it hangs, it is slow, or its socket is gone.
//!
//! The agent continues, and the driver waits for the keeper beside its other work. Nothing can be recorded
//! meanwhile: requests that need a record are refused at once ([`problem`]), and a condition gives the reason.
//! When the keeper answers again, the journal shows which of the abandoned requests it carried out. Only a stop or
//! a failed launch ends such a keeper ([`crate::ending`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentd_api::event::StopRequested;
use agentd_api::hint;
use agentd_api::reason;
use agentd_api::session::{Condition, ConditionStatus, ConditionType};
use agentd_api::{Code, Problem};
use tracing::Instrument as _;

use super::outside::Outside;
use super::recorder::Recorder;
use crate::journal_port::{Journal, Port, is_held};
use crate::keeper_search::KeeperSearch;
use crate::launch::{Connection, KeeperLimits};
use crate::pulse;

/// Interval between two attempts to reach the keeper.
const LOOK: Duration = Duration::from_millis(500);

/// Starts to look for the keeper.
pub(super) fn begin(
    outside: Arc<dyn Outside>,
    socket: PathBuf,
    journal: Journal,
    patience: KeeperLimits,
    reach: u64,
) -> KeeperSearch {
    let task = tokio::spawn(async move { look_for(&*outside, &socket, &journal, &patience).await }.in_current_span());
    KeeperSearch::new(task, reach)
}

async fn look_for(
    outside: &dyn Outside,
    socket: &Path,
    journal: &Journal,
    patience: &KeeperLimits,
) -> Option<Box<dyn Connection>> {
    let released = async {
        while is_held(journal).await {
            tokio::time::sleep(LOOK).await;
        }
    };
    let answers = async {
        loop {
            match outside.introduced(socket, patience).await {
                Ok(link) => return link,
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    };
    tokio::select! {
        link = answers => Some(link),
        () = released => None,
    }
}

/// A stop, requested or due, that the keeper could not be asked for.
#[derive(Debug)]
pub(super) struct ForcedStop {
    /// The stop request of a client, if there was one.
    pub(super) stop: Option<StopRequested>,
    /// The reason and the number of killed processes, after the keeper was killed.
    pub(super) ended: Option<(String, u32)>,
}

impl Recorder {
    /// Returns the condition that clients see. The condition is in no journal, since the journal cannot be
    /// written.
    pub(super) fn silence(&self) -> Option<Condition> {
        let Port::Silent(search) = &self.port else { return None };
        let keeper = self.state.keeper.map(|keeper| format!(" (process {})", keeper.pid)).unwrap_or_default();
        Some(Condition {
            kind: ConditionType::KeeperAnswers,
            status: ConditionStatus::False,
            reason: reason::SILENT.to_owned(),
            message: format!(
                "the session's keeper{keeper} does not answer; its agent keeps running and nothing is lost; \
                 stopping the session ends both"
            ),
            observed_generation: self.document.generation,
            last_transition_time: search.since,
        })
    }
}

/// Returns the refusal of a request that needs a record. The keeper may still carry out a request that it
/// received.
pub(super) fn problem() -> Problem {
    Problem::new(
        Code::KeeperSilent,
        "the session's keeper does not answer; its agent keeps running, and the request may still be carried out",
    )
    .hint(hint::STOP_KEEPER)
}

/// Waits for a keeper that does not answer, while the driver has nothing else to do.
pub(super) async fn search(search: &mut KeeperSearch) -> Option<Box<dyn Connection>> {
    pulse::elsewhere(search.found()).await
}
