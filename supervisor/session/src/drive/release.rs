//! Gives up a session whose files are about to be removed.

use agentd_api::{Code, Problem};

use super::Driver;
use crate::ending;
use agentd_decide::rules::Refusal;

impl Driver {
    /// Gives up the session, or refuses: while the session is active, and if it has other events than the caller saw.
    /// `seen` is the sequence number of the last event that the caller saw.
    pub(super) async fn release(&self, seen: Option<u64>) -> Result<(), Problem> {
        if let Some(seen) = seen.filter(|seen| *seen != self.recorder.state.seq) {
            let detail = format!("the session has changed: its last event is {}, not {seen}", self.recorder.state.seq);
            return Err(Problem::new(Code::WrongPhase, detail).hint("look at it again, and repeat the request"));
        }
        let has_ended = self.recorder.has_ended_unrecorded(self.stop.sent);
        if !self.phase().is_over() && !has_ended {
            return Err(Refusal::NotEnded { phase: self.phase() }.problem());
        }
        if has_ended {
            // The keeper only waits for room in the journal, which is about to be removed.
            ending::discard(&self.terms.generation, self.id(), &self.recorder.journal.directory).await;
        }
        Ok(())
    }
}
