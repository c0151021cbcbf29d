//! The exit statuses of a run.

use agentd_api::completion::{Completion, Outcome};

/// How a run ended. `docs/guide/containers.md` has the table of statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The agent ended the turns of all prompts itself.
    Completed,
    /// The agent or a turn failed.
    Failed,
    /// The command line, the specification or the prompt is wrong. Nothing was started.
    Usage,
    /// The daemon could not be started, or was lost.
    Daemon,
    /// The daemon refused the session in its present state, such as a name that is taken.
    Refused,
    /// The session reached one of its limits.
    Limit,
    /// The answer does not satisfy its schema.
    Schema,
    /// The launch failed: no prompt reached the agent.
    Launch,
    /// The results cannot be delivered.
    Results,
    /// A client stopped the session or cancelled a turn.
    Cancelled,
    /// This signal stopped the session.
    Signal(i32),
}

impl Status {
    /// Returns the exit status of the process.
    pub fn code(self) -> u8 {
        match self {
            Self::Completed => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Daemon => 3,
            Self::Refused => 4,
            Self::Limit => 5,
            Self::Schema => 6,
            Self::Launch => 7,
            Self::Results => 8,
            Self::Cancelled => 130,
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
        }
    }

    /// Returns the name in `result.json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Usage => "invalid",
            Self::Daemon => "daemon-failed",
            Self::Refused => "refused",
            Self::Limit => "limit",
            Self::Schema => "schema",
            Self::Launch => "launch-failed",
            Self::Results => "undelivered",
            Self::Cancelled => "cancelled",
            Self::Signal(_) => "stopped",
        }
    }

    /// Returns the status of a session with this result. `signal` stopped it, unless it had completed before.
    pub(crate) fn of(done: &Completion, signal: Option<i32>) -> Self {
        match (done.outcome, signal) {
            (Outcome::Completed, _) => Self::Completed,
            (_, Some(signal)) => Self::Signal(signal),
            (Outcome::Limit, _) => Self::Limit,
            (Outcome::Schema, _) => Self::Schema,
            (Outcome::Cancelled, _) => Self::Cancelled,
            (Outcome::Failed | Outcome::Unknown, _) if done.turn.is_none() => Self::Launch,
            (Outcome::Failed | Outcome::Unknown, _) => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(outcome: &str, turn: Option<&str>) -> Completion {
        let done = serde_json::json!({
            "outcome": outcome, "reason": "x", "exit_status": 1, "completed_at": "2026-01-01T00:00:00Z", "turn": turn,
        });
        serde_json::from_value(done).unwrap()
    }

    #[test]
    fn a_launch_that_failed_and_a_turn_that_failed_have_different_statuses() {
        assert_eq!(Status::of(&done("failed", None), None).code(), 7);
        assert_eq!(Status::of(&done("failed", Some("t1")), None).code(), 1);
        assert_eq!(Status::of(&done("limit", Some("t1")), None).code(), 5);
        assert_eq!(Status::of(&done("schema", Some("t1")), None).code(), 6);
        assert_eq!(Status::of(&done("something-new", Some("t1")), None).code(), 1);
    }

    #[test]
    fn a_signal_counts_unless_the_session_had_completed() {
        assert_eq!(Status::of(&done("cancelled", Some("t1")), Some(15)).code(), 143);
        assert_eq!(Status::of(&done("failed", None), Some(2)).code(), 130);
        assert_eq!(Status::of(&done("cancelled", Some("t1")), None).code(), 130);
        assert_eq!(Status::of(&done("completed", Some("t1")), Some(15)).code(), 0);
    }
}
