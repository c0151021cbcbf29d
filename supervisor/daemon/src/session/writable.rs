//! Whether the session's journal can be written, as the condition `JournalWritable`.
//!
//! The condition is shown and never recorded: a journal that cannot be written cannot say so. It appears with the first failure that this
//! daemon sees, and stays, True again, when there is room. While it is False and no keeper holds the journal, the driver looks each
//! [`PROBE`] whether there is room; a keeper looks itself, and says what it finds.

use std::io;
use std::time::Duration;

use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionView};
use agentd_api::{Code, Problem};
use jiff::Timestamp;
use tokio::time::Instant;

use super::driver::Driver;
use super::journal_port::{Port, PortError, probe};
use super::state::Run;

/// How often it is looked whether there is room again.
const PROBE: Duration = Duration::from_secs(1);
const HINT: &str = "free some room where agentd keeps its state; `agentctl stop` and `agentctl rm` work meanwhile";

/// What is known of the journal.
#[derive(Debug, Default)]
pub(super) struct Writable {
    /// Absent until a write has failed.
    condition: Option<Condition>,
    probe_at: Option<Instant>,
}

impl Writable {
    pub(super) fn is_refused(&self) -> bool {
        self.condition.as_ref().is_some_and(|condition| condition.status == ConditionStatus::False)
    }

    /// When [`Driver::look_for_room`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.probe_at
    }

    /// Says whether that is news.
    fn set(&mut self, status: ConditionStatus, reason: &str, message: String, generation: u64) -> bool {
        let known = self.condition.as_ref().filter(|known| known.status == status);
        if known.is_some_and(|known| known.message == message) {
            return false;
        }
        self.condition = Some(Condition {
            kind: ConditionType::JournalWritable,
            status,
            reason: reason.to_owned(),
            message,
            observed_generation: generation,
            last_transition_time: known.map_or_else(Timestamp::now, |known| known.last_transition_time),
        });
        true
    }
}

impl Driver {
    /// A write failed. Where that is news it is shown.
    pub(super) fn refused(&mut self, errno: Option<i32>) -> bool {
        let path = self.journal.directory.join(agentd_journal::JOURNAL);
        let message = format!("{}: {} cannot be written; {HINT}", why(errno), path.display());
        let is_news = self.writable.set(ConditionStatus::False, reason(errno), message, self.document.generation);
        if is_news {
            tracing::error!(agentd.session = %self.document.id, path = %path.display(), "the journal cannot be written: {}", why(errno));
            self.publish();
        }
        self.look_for_room_later();
        is_news
    }

    /// Where no keeper says whether there is room, the driver looks itself.
    pub(super) fn look_for_room_later(&mut self) {
        if self.writable.is_refused() && matches!(self.port, Port::Direct) {
            self.writable.probe_at.get_or_insert_with(|| Instant::now() + PROBE);
        }
    }

    /// Ordinary records find room again.
    pub(super) fn accepted(&mut self) {
        self.writable.probe_at = None;
        if !self.writable.is_refused() {
            return;
        }
        let message = "the journal can be written again".to_owned();
        if self.writable.set(ConditionStatus::True, "Writable", message, self.document.generation) {
            tracing::info!(agentd.session = %self.document.id, "the journal can be written again");
            self.publish();
        }
    }

    /// What the keeper says of the journal.
    pub(super) fn note_keeper(&mut self) {
        let Port::Keeper(link) = &self.port else { return };
        let tail = link.tail();
        if tail.blocked {
            if !self.refused(tail.errno) {
                // What the agent has come to is shown with it.
                self.publish();
            }
        } else if !tail.ended && !matches!(self.state.run, Run::Ended(_)) {
            // The last records of an agent that has ended may have been written into the reserve.
            self.accepted();
        }
    }

    /// Looks whether there is room, where it is time to and nobody else does.
    pub(super) async fn look_for_room(&mut self) {
        if self.writable.probe_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        self.writable.probe_at = None;
        if !matches!(self.port, Port::Direct) {
            return;
        }
        match probe(&self.journal).await {
            Ok(()) => self.accepted(),
            Err(error) => drop(self.refused(error.errno())),
        }
    }

    /// Whether the agent was asked to end and has ended, and the journal cannot say so yet.
    pub(super) fn has_ended_unrecorded(&self) -> bool {
        let ended = match &self.port {
            Port::Keeper(link) => link.tail().ended,
            Port::Silent(_) => false,
            // The keeper is gone, and with it every process of the session.
            Port::Direct => matches!(self.state.run, Run::Running(_)),
        };
        self.stop_sent && ended && self.writable.is_refused()
    }

    /// Adds what the journal cannot say itself.
    pub(super) fn show_writable(&self, view: &mut SessionView) {
        let Some(condition) = &self.writable.condition else { return };
        view.status.conditions.push(condition.clone());
        if self.has_ended_unrecorded() {
            view.status.phase = Phase::Stopped;
            view.status.message =
                Some("its agent has ended; the journal cannot be written and does not say so".to_owned());
            (view.status.agent_pid, view.status.turn) = (None, None);
        } else if self.stop_sent && self.writable.is_refused() && matches!(self.state.run, Run::Running(_)) {
            view.status.phase = Phase::Stopping;
        }
    }

    /// What a client is told whose command could not be recorded.
    pub(super) fn not_recorded(&self) -> Problem {
        let Some(condition) = self.writable.condition.as_ref().filter(|_| self.writable.is_refused()) else {
            return Problem::new(Code::TooBusy, "the session's journal cannot be written now; nothing was changed")
                .hint("`agentctl show` has the session's state; try again");
        };
        let detail = condition.message.split("; ").next().unwrap_or_default();
        Problem::new(Code::JournalNotWritable, format!("{detail}; nothing was changed")).hint(HINT)
    }
}

/// The failure that [`PortError`] has of the system, or the keeper's words.
pub(super) fn errno_of(error: &PortError, driver: &Driver) -> Option<i32> {
    let from_keeper = || match &driver.port {
        Port::Keeper(link) => link.tail().errno,
        Port::Silent(_) | Port::Direct => None,
    };
    error.errno().or_else(from_keeper)
}

fn why(errno: Option<i32>) -> String {
    errno.map_or_else(
        || "the keeper does not say why".to_owned(),
        |errno| io::Error::from_raw_os_error(errno).to_string(),
    )
}

/// One word for programs.
fn reason(errno: Option<i32>) -> &'static str {
    match errno.map(io::Error::from_raw_os_error).map(|error| error.kind()) {
        Some(io::ErrorKind::StorageFull) => "DiskFull",
        Some(io::ErrorKind::QuotaExceeded) => "QuotaExceeded",
        Some(io::ErrorKind::ReadOnlyFilesystem) => "ReadOnly",
        _ => "WriteFailed",
    }
}
