//! What a guest's store holds, and the host's side of each import.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::bindings::provider::agentd::plugin::{clock, log, script, shell_environment, types};
use crate::call::{Failure, Level, ScriptOutcome, Services};
use crate::grant::Grant;
use crate::limits::{Accountant, Limits, Seconds};

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
        let done = tokio::time::timeout_at(self.host_deadline.into(), work).await;
        let late = |_| {
            let time = self.host_deadline.duration_since(self.started);
            Err(Failure::TimedOut(format!("{what} did not end within the {} that this call has for it", Seconds(time))))
        };
        done.unwrap_or_else(late).map_err(Into::into)
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

impl shell_environment::Host for State {
    async fn login(&mut self) -> wasmtime::Result<Result<Vec<types::Variable>, types::Failure>> {
        let work = self.services.login_environment(self.host_deadline);
        Ok(self.bounded("the login shell", work).await.map(variables))
    }
}

impl script::Host for State {
    async fn source(
        &mut self,
        path: String,
        environment: Vec<types::Variable>,
    ) -> wasmtime::Result<Result<script::Outcome, types::Failure>> {
        if !self.grant.allows_script(&path) {
            let refusal = format!("the script {path:?} is outside of what this plugin is granted");
            return Ok(Err(types::Failure::Refused(refusal)));
        }
        let environment = environment.into_iter().map(|variable| (variable.name, variable.value)).collect();
        let work = self.services.source_script(&path, environment, self.host_deadline);
        Ok(self.bounded(&format!("the script {path:?}"), work).await.map(|outcome| match outcome {
            ScriptOutcome::Absent => script::Outcome::Absent,
            ScriptOutcome::Sourced { path, environment } => {
                script::Outcome::Sourced(script::Sourced { path, environment: variables(environment) })
            }
        }))
    }
}

pub(crate) fn variables(environment: Vec<(String, Vec<u8>)>) -> Vec<types::Variable> {
    environment.into_iter().map(|(name, value)| types::Variable { name, value }).collect()
}

impl From<Failure> for types::Failure {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Configuration(text) => Self::Configuration(text),
            Failure::Refused(text) => Self::Refused(text),
            Failure::TimedOut(text) => Self::TimedOut(text),
            Failure::Failed(text) => Self::Failed(text),
        }
    }
}

impl From<types::Failure> for Failure {
    fn from(failure: types::Failure) -> Self {
        match failure {
            types::Failure::Configuration(text) => Self::Configuration(text),
            types::Failure::Refused(text) => Self::Refused(text),
            types::Failure::TimedOut(text) => Self::TimedOut(text),
            types::Failure::Failed(text) => Self::Failed(text),
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
