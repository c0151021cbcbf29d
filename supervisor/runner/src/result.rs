//! The result of a run: the content of `result.json`.

use agentd_api::completion::Completion;
use serde::Serialize;

use crate::Created;
use crate::status::Status;

/// Maximum number of undelivered files that a result names.
const UNDELIVERED: usize = 20;

/// Result of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunResult {
    /// Id of the session. Absent if none was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<String>,
    /// Name of the session, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Name of the exit status.
    pub(crate) outcome: &'static str,
    /// Exit status of `agentd run-spec`.
    pub(crate) exit_status: u8,
    /// Description of the outcome for people.
    pub(crate) reason: String,
    /// Number of the signal that stopped the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<i32>,
    /// Whether the agent was killed because it did not end in order.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) killed: bool,
    /// The session's own result, as `status.completion` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completion: Option<Box<Completion>>,
    /// The parts that could not be delivered, for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) undelivered: Vec<String>,
    #[serde(skip)]
    pub(crate) created: Option<Created>,
    #[serde(skip)]
    pub(crate) status: Status,
}

impl RunResult {
    /// Makes the result of a run without a session.
    pub(crate) fn early(status: Status, reason: String) -> Self {
        Self {
            session: None,
            name: None,
            outcome: status.as_str(),
            exit_status: status.code(),
            reason,
            signal: if let Status::Signal(signal) = status { Some(signal) } else { None },
            killed: false,
            completion: None,
            undelivered: Vec::new(),
            created: None,
            status,
        }
    }

    /// Makes the result of a run whose session ended with this status.
    pub(crate) fn of(created: Created, status: Status, reason: String, completion: Option<Box<Completion>>) -> Self {
        Self {
            session: Some(created.id.to_string()),
            name: created.name.clone(),
            completion,
            created: Some(created),
            ..Self::early(status, reason)
        }
    }

    /// Notes a part that could not be delivered. A session that completed has no other failure to report.
    pub(crate) fn undelivered(&mut self, what: String) {
        if self.undelivered.len() < UNDELIVERED {
            self.undelivered.push(what);
        }
        if self.status == Status::Completed {
            self.set(Status::Results);
        }
    }

    /// Notes a signal. It changes the status only of a run that is not decided yet.
    pub(crate) fn signalled(&mut self, signal: i32) {
        self.signal.get_or_insert(signal);
    }

    fn set(&mut self, status: Status) {
        (self.status, self.outcome, self.exit_status) = (status, status.as_str(), status.code());
    }
}
