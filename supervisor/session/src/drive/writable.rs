//! The condition `JournalWritable`: whether the session's journal can be written.
//!
//! The condition is published and never recorded, since a journal that cannot be written cannot contain it. It
//! appears with the first failure that this daemon sees, and later stays with the status True. While it is False
//! and no keeper holds the journal, the driver tests every [`PROBE`] for free space. A keeper tests that itself
//! and reports the result.

use std::io;
use std::time::Duration;

use agentd_api::hint;
use agentd_api::reason;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionView};
use agentd_api::{Code, Problem};
use jiff::Timestamp;
use tokio::time::Instant;

use super::recorder::Recorder;
use crate::journal_port::{Port, PortError, probe};

/// Interval between two tests for free space.
const PROBE: Duration = Duration::from_secs(1);

/// State of the journal's writability.
#[derive(Debug, Default)]
pub(super) struct Writable {
    /// `None` until a write has failed.
    condition: Option<Condition>,
    probe_at: Option<Instant>,
}

impl Writable {
    pub(super) fn is_refused(&self) -> bool {
        self.condition.as_ref().is_some_and(|condition| condition.status == ConditionStatus::False)
    }

    /// Time of the next [`Recorder::look_for_room`].
    pub(super) fn due(&self) -> Option<Instant> {
        self.probe_at
    }

    /// Sets the condition, and reports whether it changed.
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

impl Recorder {
    /// Handles a failed write, and reports whether the condition changed.
    pub(super) fn refused(&mut self, errno: Option<i32>) -> bool {
        let path = self.journal.directory.join(agentd_journal::JOURNAL);
        let message = format!("{}: cannot write {}; {}", why(errno), path.display(), hint::FREE_SPACE);
        let is_news = self.writable.set(ConditionStatus::False, reason(errno), message, self.document.generation);
        if is_news {
            tracing::error!(
                path = %path.display(),
                "cannot write the journal: {}",
                why(errno)
            );
        }
        self.look_for_room_later();
        is_news
    }

    /// Schedules a test for free space, unless a keeper reports it.
    pub(super) fn look_for_room_later(&mut self) {
        if self.writable.is_refused() && matches!(self.port, Port::Direct) {
            self.writable.probe_at.get_or_insert_with(|| Instant::now() + PROBE);
        }
    }

    /// Handles a successful ordinary write: the journal has room again. Reports whether the condition changed.
    pub(super) fn accepted(&mut self) -> bool {
        self.writable.probe_at = None;
        if !self.writable.is_refused() {
            return false;
        }
        let message = "the journal is writable again".to_owned();
        let is_news = self.writable.set(ConditionStatus::True, reason::WRITABLE, message, self.document.generation);
        if is_news {
            tracing::info!("the journal is writable again");
        }
        is_news
    }

    /// Takes over the keeper's report about the journal, and reports whether there is news to publish.
    pub(super) fn note_keeper(&mut self) -> bool {
        let Port::Keeper(link) = &self.port else { return false };
        let tail = link.tail();
        if tail.blocked {
            self.refused(tail.errno);
            // The agent's progress is published as well.
            return true;
        }
        // The last records of an ended agent may have used the reserve, so they prove no room for ordinary records.
        !tail.ended && !self.has_ended() && self.accepted()
    }

    /// Tests for free space when a test is due and no keeper holds the journal. Reports
    /// whether the condition changed.
    pub(super) async fn look_for_room(&mut self) -> bool {
        if self.writable.probe_at.is_none_or(|at| at > Instant::now()) {
            return false;
        }
        self.writable.probe_at = None;
        if !matches!(self.port, Port::Direct) {
            return false;
        }
        match probe(&self.journal).await {
            Ok(()) => self.accepted(),
            Err(error) => self.refused(error.errno()),
        }
    }

    /// Reports whether the agent ended after a stop, but the end cannot be recorded yet.
    pub(super) fn has_ended_unrecorded(&self, stop_sent: bool) -> bool {
        let ended = match &self.port {
            Port::Keeper(link) => link.tail().ended,
            Port::Silent(_) => false,
            // The keeper is gone, and with it every process of the session.
            Port::Direct => self.is_running(),
        };
        stop_sent && ended && self.writable.is_refused()
    }

    /// Adds the condition to the view, and the phase that the journal cannot record yet.
    pub(super) fn show_writable(&self, view: &mut SessionView, stop_sent: bool) {
        let Some(condition) = &self.writable.condition else { return };
        view.status.conditions.push(condition.clone());
        if self.has_ended_unrecorded(stop_sent) {
            view.status.phase = Phase::Stopped;
            view.status.message =
                Some("the agent has ended, but its end cannot be recorded: the journal cannot be written".to_owned());
            (view.status.agent_pid, view.status.turn) = (None, None);
        } else if stop_sent && self.writable.is_refused() && self.is_running() {
            view.status.phase = Phase::Stopping;
        }
    }

    /// Returns the refusal of a command that could not be recorded.
    pub(super) fn not_recorded(&self) -> Problem {
        let Some(condition) = self.writable.condition.as_ref().filter(|_| self.writable.is_refused()) else {
            return Problem::new(Code::TooBusy, "cannot write the session's journal now; nothing was changed")
                .hint(hint::SHOW_STATE);
        };
        let detail = condition.message.split("; ").next().unwrap_or_default();
        Problem::new(Code::JournalNotWritable, format!("{detail}; nothing was changed")).hint(hint::FREE_SPACE)
    }
}

/// Returns the error number of a failed write, from the error itself or from the keeper's report.
pub(super) fn errno_of(error: &PortError, port: &Port) -> Option<i32> {
    let from_keeper = || match port {
        Port::Keeper(link) => link.tail().errno,
        Port::Silent(_) | Port::Direct => None,
    };
    error.errno().or_else(from_keeper)
}

fn why(errno: Option<i32>) -> String {
    errno.map_or_else(
        || "the keeper reported no reason".to_owned(),
        |errno| io::Error::from_raw_os_error(errno).to_string(),
    )
}

/// Returns the reason of the condition.
fn reason(errno: Option<i32>) -> &'static str {
    match errno.map(io::Error::from_raw_os_error).map(|error| error.kind()) {
        Some(io::ErrorKind::StorageFull) => reason::DISK_FULL,
        Some(io::ErrorKind::QuotaExceeded) => reason::QUOTA_EXCEEDED,
        Some(io::ErrorKind::ReadOnlyFilesystem) => reason::READ_ONLY,
        _ => reason::WRITE_FAILED,
    }
}
