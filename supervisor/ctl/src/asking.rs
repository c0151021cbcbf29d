//! Answers to questions by one key: when a key answers, and which keys do.

use std::time::Duration;

use agentd_api::session::PermissionRequest;
use tokio::time::Instant;

use crate::form;

/// Time without a key after which a key answers the question. A key before was not meant as the answer.
const QUIET: Duration = Duration::from_millis(500);
/// Hint before that time.
pub(crate) const PAUSE: &str = "a key answers after a short pause in typing";

/// Time since the question or the last key. Keys answer a question only after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quiet(Instant);

impl Quiet {
    /// Begins with the question.
    pub(crate) fn since(begin: Instant) -> Self {
        Self(begin)
    }

    /// Returns the time from which keys answer.
    pub(crate) fn over_at(self) -> Instant {
        self.0 + QUIET
    }

    /// Reports whether keys answer.
    pub(crate) fn is_over(self, now: Instant) -> bool {
        now >= self.over_at()
    }

    /// Notes a key. Reports whether it can answer.
    pub(crate) fn key(&mut self, now: Instant) -> bool {
        let is_over = self.is_over(now);
        if !is_over {
            self.0 = now;
        }
        is_over
    }
}

/// Returns the keys that answer a question.
pub(crate) fn hint(request: &PermissionRequest) -> String {
    if let Some(choices) = form::choices(request) {
        return format!("press 1 to {}, or n declines", choices.min(9));
    }
    if request.elicitation.is_some() {
        return "press y to answer, or n declines".to_owned();
    }
    match request.options.len() {
        0 => "the agent offers no options: n denies".to_owned(),
        1 => "press 1, or y allows and n denies".to_owned(),
        more => format!("press 1 to {}, or y allows and n denies", more.min(9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_answers_only_after_a_pause_in_typing() {
        let begin = Instant::now();
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let mut quiet = Quiet(begin);
        let keys = [(100, false), (400, false), (890, false), (1389, false), (1889, true), (1900, true)];
        for (time, answers) in keys {
            assert_eq!(quiet.key(at(time)), answers, "{time}");
        }
        assert!(!Quiet(begin).is_over(at(499)) && Quiet(begin).is_over(at(500)));
    }
}
