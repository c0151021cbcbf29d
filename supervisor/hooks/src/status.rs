//! The state of a hook for people: its last attempt and its position.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agentd_api::hook::{HookAttempt, HookFault, HookOutcome, HookState, HookView};
use agentd_config::{Hook, HookAddress};
use agentd_metrics::Metrics;
use jiff::Timestamp;

/// The shown state of one hook. The worker changes it.
#[derive(Debug)]
pub(crate) struct HookStatus {
    name: String,
    metrics: Arc<Metrics>,
    facts: Mutex<Facts>,
}

#[derive(Debug)]
struct Facts {
    state: HookState,
    position: Option<u64>,
    delivered: u64,
    dropped: u64,
    last: Option<HookAttempt>,
    next_attempt: Option<Timestamp>,
}

impl HookStatus {
    pub(crate) fn new(name: String, metrics: Arc<Metrics>) -> Self {
        let (state, position, last, next_attempt) = (HookState::Working, None, None, None);
        let facts = Facts { state, position, delivered: 0, dropped: 0, last, next_attempt };
        Self { name, metrics, facts: Mutex::new(facts) }
    }

    /// Reports whether the last delivery succeeded, or there was none.
    pub(crate) fn is_working(&self) -> bool {
        self.lock().state == HookState::Working
    }

    /// Notes an attempt, and logs each change between success and failure.
    pub(crate) fn note(&self, attempt: HookAttempt) {
        self.metrics.hook_deliveries.count([self.metrics.hook(&self.name), attempt.outcome.as_str()]);
        let mut facts = self.lock();
        facts.next_attempt = None;
        let before = facts.state;
        facts.state = match (attempt.outcome, attempt.code) {
            (HookOutcome::Delivered, _) => HookState::Working,
            (_, Some(HookFault::HookGone)) => HookState::Disabled,
            _ => HookState::Failing,
        };
        match attempt.outcome {
            HookOutcome::Delivered => facts.delivered += 1,
            HookOutcome::Dropped => facts.dropped += 1,
            HookOutcome::Failed | HookOutcome::Unknown => {}
        }
        let (code, detail) = (attempt.code.map(HookFault::code), attempt.detail.clone());
        let is_change = before != facts.state;
        let is_first_drop = attempt.outcome == HookOutcome::Dropped
            && facts.last.as_ref().is_none_or(|last| last.outcome != HookOutcome::Dropped);
        if facts.state == HookState::Working && is_change {
            tracing::info!(hook = %self.name, "the hook delivers again");
        } else if is_first_drop {
            tracing::warn!(hook = %self.name, code, event = %attempt.event, detail, "dropped an event");
        } else if facts.state != HookState::Working && is_change {
            tracing::warn!(hook = %self.name, code, event = %attempt.event, detail, "the hook fails");
        }
        facts.last = Some(attempt);
    }

    /// Notes a failure that concerns no event: of the position or of the feed.
    pub(crate) fn trouble(&self, detail: String) {
        let (code, remedy) = (HookFault::HookPositionFailed, HookFault::HookPositionFailed.remedy().to_owned());
        let (id, event, outcome) = (String::new(), String::new(), HookOutcome::Failed);
        let mut facts = self.lock();
        let is_known = facts.last.as_ref().is_some_and(|last| last.detail.as_ref() == Some(&detail));
        if !is_known {
            tracing::warn!(hook = %self.name, code = code.code(), detail, "the hook cannot continue");
        }
        facts.state = HookState::Failing;
        facts.last = Some(HookAttempt {
            time: Timestamp::now(),
            id,
            event,
            attempt: 1,
            duration_ms: 0,
            outcome,
            code: Some(code),
            status: None,
            detail: Some(detail),
            remedy: Some(remedy),
        });
    }

    /// Notes that the position and the feed can be used again.
    pub(crate) fn no_trouble(&self) {
        let mut facts = self.lock();
        let is_of_position = facts.last.as_ref().is_some_and(|last| last.code == Some(HookFault::HookPositionFailed));
        if is_of_position {
            (facts.state, facts.last) = (HookState::Working, None);
        }
    }

    pub(crate) fn wait_until(&self, next: Timestamp) {
        self.lock().next_attempt = Some(next);
    }

    pub(crate) fn reach(&self, cursor: u64) {
        self.lock().position = Some(cursor);
    }

    /// Returns the number of events behind the position. `last` is the cursor of the last event.
    pub(crate) fn lag(&self, last: u64) -> u64 {
        self.lock().position.map_or(0, |position| last.saturating_sub(position))
    }

    pub(crate) fn view(&self, hook: &Hook, last: u64) -> HookView {
        let lag = self.lag(last);
        let facts = self.lock();
        HookView {
            name: self.name.clone(),
            on: hook.on.iter().map(ToString::to_string).collect(),
            target: target(hook),
            state: facts.state,
            position: facts.position,
            lag,
            delivered: facts.delivered,
            dropped: facts.dropped,
            last: facts.last.clone(),
            next_attempt: facts.next_attempt,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Facts> {
        // No code under this lock can leave the facts inconsistent.
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Describes the receiver, without the path of an address, which may contain a token.
fn target(hook: &Hook) -> String {
    if let Some(program) = hook.command.first() {
        return program.clone();
    }
    let address = hook.url.as_ref().and_then(|url| HookAddress::parse(url).ok());
    address.map_or_else(|| "desktop".to_owned(), |address| address.shown())
}
