//! Derives the condition `NeedsAttention`: whether a session needs a person, and for which reason. Pure.
//!
//! No other code defines the need. Lists, metrics and notifications read the condition.

use agentd_api::reason;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, PermissionOrigin, PermissionRequest, Phase};

use crate::state::{Ended, Run, State};
use crate::waits::CRASHES;

/// A need that only a person can meet.
enum Need<'a> {
    /// An open question, and the number of further ones.
    Question(&'a PermissionRequest, usize),
    /// The agent's message about the lack of a login.
    Login(&'a str),
    /// The message of the failure, and whether the agent crashed too often to be started again.
    Failure { message: &'a str, is_parked: bool },
}

impl State {
    /// Returns the condition `NeedsAttention` of a session that needs a person. `phase` includes restarts.
    pub fn attention(&self, generation: u64, phase: Phase) -> Option<Condition> {
        let need = self.need(phase)?;
        let message = match need {
            Need::Question(request, 0) => request.title.clone(),
            Need::Question(request, more) => format!("{} (and {more} more)", request.title),
            Need::Login(message) | Need::Failure { message, .. } => message.to_owned(),
        };
        Some(Condition {
            kind: ConditionType::NeedsAttention,
            status: ConditionStatus::True,
            reason: need.reason().to_owned(),
            message,
            observed_generation: generation,
            last_transition_time: self.times.needed.unwrap_or(self.updated),
        })
    }

    /// Notes whether the session needs a person after the last record.
    pub(crate) fn note_need(&mut self) {
        let is_needed = self.need(self.phase()).is_some();
        self.times.needed = is_needed.then(|| self.times.needed.unwrap_or(self.updated));
    }

    fn need(&self, phase: Phase) -> Option<Need<'_>> {
        match phase {
            // agentd itself ends or restarts the session, or a person has decided.
            Phase::Pending
            | Phase::Stopping
            | Phase::Stopped
            | Phase::Completed
            | Phase::BackingOff
            | Phase::Unknown => return None,
            Phase::Preparing
            | Phase::Waiting
            | Phase::Starting
            | Phase::Idle
            | Phase::Busy
            | Phase::Limited
            | Phase::Failed => {}
        }
        let has_failed = phase == Phase::Failed;
        if let Some(open) = self.permissions.first().filter(|_| !has_failed) {
            return Some(Need::Question(&open.request, self.permissions.len() - 1));
        }
        if self.holds(ConditionType::AuthenticationRequired) {
            return self.condition(ConditionType::AuthenticationRequired).map(|known| Need::Login(&known.message));
        }
        let message = match &self.run {
            Run::Ended(Ended::Failed(message)) => message.as_str(),
            _ => "the session's files cannot be read",
        };
        // Only restarts leave more crashes than this: each other launch begins to count again.
        has_failed.then_some(Need::Failure { message, is_parked: self.crashes.len() > CRASHES })
    }
}

impl Need<'_> {
    fn reason(&self) -> &'static str {
        match self {
            Self::Question(request, _) if request.origin == PermissionOrigin::Agentd => reason::SESSION_STALE,
            Self::Question(request, _) if request.elicitation.is_some() => reason::QUESTION_ASKED,
            Self::Question(..) => reason::PERMISSION_REQUESTED,
            Self::Login(_) => reason::LOGIN_REQUIRED,
            Self::Failure { is_parked: true, .. } => reason::PARKED,
            Self::Failure { is_parked: false, .. } => reason::FAILED,
        }
    }
}
