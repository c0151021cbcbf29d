//! What a guest's store holds, and the host's side of each import.

mod imports;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::bindings::provider::agentd::plugin::{clock, log, network, types};
use crate::call::{Failure, Level};
use crate::grant::Grant;
use crate::limits::{Accountant, Limits, Seconds};
use crate::services::{NetworkProblem, Services};

/// Messages of one call, and bytes of one message.
const MESSAGES: u32 = 200;
const MESSAGE: usize = 4096;

/// What is left to the guest after a host call took all the time it could: a tenth of the call's time, and at most this. In
/// it a guest can say what took so long, which is worth more than the bare fact.
const GRACE: Duration = Duration::from_millis(200);

/// A longer time than this is this: a clock's end must not be reached.
const LONGEST: Duration = Duration::from_hours(24);

/// One call's state.
pub(crate) struct State {
    pub(crate) accountant: Accountant,
    pub(crate) deadline: Instant,
    /// When the host calls of this call must have ended.
    host_deadline: Instant,
    started: Instant,
    grant: Arc<Grant>,
    services: Arc<dyn Services>,
    messages: u32,
    /// The last message at the level of an error: a panic's text comes this way, before the trap.
    pub(crate) last_error: Option<String>,
}

impl State {
    pub(crate) fn new(limits: &Limits, grant: Arc<Grant>, services: Arc<dyn Services>) -> Self {
        let started = Instant::now();
        let time = limits.time.min(LONGEST);
        Self {
            accountant: Accountant::new(limits),
            deadline: started + time,
            host_deadline: started + time.saturating_sub(GRACE.min(time / 10)),
            started,
            grant,
            services,
            messages: 0,
            last_error: None,
        }
    }

    /// A call begins in an instance that was made before it: its time, its services and its limits are the call's own.
    pub(crate) fn begin(&mut self, limits: &Limits, services: Arc<dyn Services>) {
        let mut accountant = std::mem::replace(&mut self.accountant, Accountant::new(limits));
        accountant.limit(limits);
        *self = Self { accountant, ..Self::new(limits, Arc::clone(&self.grant), services) };
    }

    /// Says how many messages were not passed on.
    pub(crate) fn finish(&mut self) {
        if let Some(lost) = self.messages.checked_sub(MESSAGES).filter(|&lost| lost > 0) {
            self.services.log(Level::Warn, &format!("{lost} more messages were dropped; a call may write {MESSAGES}"));
        }
    }

    /// A host call, ended a little before the deadline of the whole call.
    async fn bounded<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, types::Failure> {
        self.bounded_by(self.host_deadline, what, work).await.map_err(Into::into)
    }

    /// A host call, ended at a deadline of its own.
    async fn bounded_by<T, E: From<Failure>>(
        &self,
        deadline: Instant,
        what: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        let time = if deadline == self.host_deadline { self.started } else { begun };
        let late = |_| {
            let time = deadline.saturating_duration_since(time);
            Err(Failure::TimedOut(format!("{what} did not end within the {} that it has", Seconds(time))).into())
        };
        tokio::time::timeout_at(deadline.into(), work).await.unwrap_or_else(late)
    }

    /// The same for what goes over the network, where to take too long is an answer of its own.
    async fn contact<T>(
        &self,
        deadline: Instant,
        what: &str,
        work: impl Future<Output = Result<T, NetworkProblem>>,
    ) -> Result<T, network::Problem> {
        self.bounded_by(deadline, what, work).await.map_err(|problem| match problem {
            NetworkProblem::Other(Failure::TimedOut(text)) => network::Problem::TimedOut(text),
            other => other.into(),
        })
    }
}

/// Cut to length, and without what would disturb a terminal or forge a line of a log.
fn presentable(message: &str) -> String {
    let mut text: String = message
        .chars()
        .map(|c| if c.is_control() && c != '\n' && c != '\t' { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if text.len() > MESSAGE {
        text.truncate(text.floor_char_boundary(MESSAGE));
        text.push_str(" ...");
    }
    text
}

impl log::Host for State {
    async fn write(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        self.messages = self.messages.saturating_add(1);
        let level = match level {
            log::Level::Error => Level::Error,
            log::Level::Warn => Level::Warn,
            log::Level::Info => Level::Info,
            log::Level::Debug => Level::Debug,
        };
        if self.messages <= MESSAGES || level == Level::Error {
            let message = presentable(&message);
            if self.messages <= MESSAGES {
                self.services.log(level, &message);
            }
            if level == Level::Error {
                self.last_error = Some(message);
            }
        }
        Ok(())
    }
}

impl clock::Host for State {
    async fn wall(&mut self) -> wasmtime::Result<u64> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    async fn monotonic(&mut self) -> wasmtime::Result<u64> {
        Ok(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl types::Host for State {}

pub(crate) fn variables(environment: Vec<(String, Vec<u8>)>) -> Vec<types::Variable> {
    environment.into_iter().map(|(name, value)| types::Variable { name, value }).collect()
}

impl From<Failure> for types::Failure {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Configuration { key, message } => Self::Configuration(types::SettingError { key, message }),
            Failure::NotGranted(text) => Self::NotGranted(text),
            Failure::NotApproved(text) => Self::NotApproved(text),
            Failure::NotFound(text) => Self::NotFound(text),
            Failure::TimedOut(text) => Self::TimedOut(text),
            Failure::TooLarge(text) => Self::TooLarge(text),
            Failure::Unavailable(text) => Self::Unavailable(text),
            Failure::Failed(text) => Self::Failed(text),
        }
    }
}

impl From<types::Failure> for Failure {
    fn from(failure: types::Failure) -> Self {
        match failure {
            types::Failure::Configuration(error) => Self::Configuration { key: error.key, message: error.message },
            types::Failure::NotGranted(text) => Self::NotGranted(text),
            types::Failure::NotApproved(text) => Self::NotApproved(text),
            types::Failure::NotFound(text) => Self::NotFound(text),
            types::Failure::TimedOut(text) => Self::TimedOut(text),
            types::Failure::TooLarge(text) => Self::TooLarge(text),
            types::Failure::Unavailable(text) => Self::Unavailable(text),
            types::Failure::Failed(text) => Self::Failed(text),
        }
    }
}

impl From<NetworkProblem> for network::Problem {
    fn from(problem: NetworkProblem) -> Self {
        match problem {
            NetworkProblem::NoSuchHost(text) => Self::NoSuchHost(text),
            NetworkProblem::NotResolved(text) => Self::NotResolved(text),
            NetworkProblem::Refused(text) => Self::Refused(text),
            NetworkProblem::Unreachable(text) => Self::Unreachable(text),
            NetworkProblem::TimedOut(text) => Self::TimedOut(text),
            NetworkProblem::Other(failure) => Self::Other(failure.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_at_a_character_and_cannot_move_the_cursor() {
        assert_eq!(presentable("a\tb\nc"), "a\tb\nc");
        assert_eq!(presentable("\x1b[31mred\r"), "\u{fffd}[31mred\u{fffd}");
        let long = presentable(&"é".repeat(MESSAGE));
        assert!(long.len() <= MESSAGE + 4 && long.ends_with(" ..."), "{}", long.len());
    }
}
