//! The state of one call, and the capabilities that are always granted: `log` and `clock`.
//!
//! The other capabilities are in the modules below. Each decides about the request ([`permit`]), calls the
//! service and checks the size of its result. Requests and results are converted from and to the types of the
//! interface.

mod command;
mod file;
mod machine;
mod network;
mod pass_through;
mod permit;
mod script;
#[cfg(test)]
mod tests;
mod transcript;
mod words;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::bindings::provider::agentd::plugin::{clock, log, types};
use crate::call::{Failure, LogLevel};
use crate::grant::{Places, ResolvedFronts};
use crate::limits::{Accountant, Limits, Seconds};
use crate::services::Services;
use crate::text::escaped;

pub(crate) use pass_through::PassThrough;
pub(crate) use permit::Bounds;
pub(crate) use transcript::HostCall;
use transcript::Transcript;
pub(crate) use words::variables;

/// Result of an imported function.
type Answer<T> = wasmtime::Result<Result<T, types::Failure>>;

/// Maximum length of a log message in bytes.
const MESSAGE: usize = 4096;

/// Time that remains for the plugin after a host call used all available time: a tenth of the call's time, at
/// most this value. In this time the plugin can report what took so long.
const GRACE: Duration = Duration::from_millis(200);

/// Time to wait for a service after its deadline, because the service ends what it started and gives a better
/// error.
const SLACK: Duration = Duration::from_millis(100);

/// Maximum time of a call, to stay within the clock's range.
const LONGEST: Duration = Duration::from_hours(24);

/// State of one call.
pub(crate) struct CallState {
    pub(crate) accountant: Accountant,
    pub(crate) deadline: Instant,
    /// Deadline of host calls.
    host_deadline: Instant,
    started: Instant,
    bounds: Arc<Bounds>,
    places: Places,
    around: PassThrough,
    /// The resolved links of the patterns, after the first use.
    led: Option<Arc<ResolvedFronts>>,
    services: Arc<dyn Services>,
    messages: u32,
    most_messages: u32,
    /// The last message of level error. The text of a panic arrives this way before the trap.
    pub(crate) last_error: Option<String>,
    pub(crate) transcript: Transcript,
}

impl CallState {
    pub(crate) fn new(limits: &Limits, bounds: Arc<Bounds>, services: Arc<dyn Services>, places: Places) -> Self {
        let started = Instant::now();
        let time = limits.time.min(LONGEST);
        Self {
            accountant: Accountant::new(limits),
            deadline: started + time,
            host_deadline: started + time.saturating_sub(GRACE.min(time / 10)),
            started,
            bounds,
            places,
            around: PassThrough::default(),
            led: None,
            services,
            messages: 0,
            most_messages: limits.log,
            last_error: None,
            transcript: Transcript::default(),
        }
    }

    /// Starts a call in an instance that was created in advance. The call has its own time, services and limits.
    pub(crate) fn begin(&mut self, limits: &Limits, call: Self) {
        let mut accountant = std::mem::replace(&mut self.accountant, Accountant::new(limits));
        accountant.limit(limits);
        *self = Self { accountant, ..call };
    }

    /// Sets the variables that the plugin may pass on to programs.
    pub(crate) fn set_pass_through(&mut self, around: PassThrough) {
        self.around = around;
    }

    /// Logs how many messages were dropped.
    pub(crate) fn finish(&mut self) {
        let most = self.most_messages;
        if let Some(lost) = self.messages.checked_sub(most).filter(|&lost| lost > 0) {
            self.services.log(LogLevel::Warn, &format!("{lost} more messages were dropped; a call may write {most}"));
        }
    }

    /// Returns the deadline of a host call that requests this time, limited by the deadline of the call.
    fn until(&self, milliseconds: u64) -> Instant {
        let asked = Instant::now().checked_add(Duration::from_millis(milliseconds));
        asked.map_or(self.host_deadline, |asked| asked.min(self.host_deadline))
    }

    /// Runs a host call that may take all the remaining time.
    async fn bounded<T, E: From<Failure>>(&self, what: &str, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.bounded_by(self.host_deadline, what, work).await
    }

    /// Runs a host call with its own deadline. The service should end at the deadline, and the host ends it
    /// otherwise. No host call starts after the deadline for host calls.
    async fn bounded_by<T, E: From<Failure>>(
        &self,
        deadline: Instant,
        what: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let now = Instant::now();
        if self.host_deadline <= now {
            let time = Seconds(self.host_deadline.saturating_duration_since(self.started));
            return Err(Failure::TimedOut(format!("{what} was not started: its time limit of {time} is over")).into());
        }
        let begun = if deadline == self.host_deadline { self.started } else { now };
        let last = self.host_deadline + self.deadline.saturating_duration_since(self.host_deadline) / 2;
        let end = (deadline + SLACK).min(last);
        let late = |_| {
            let time = deadline.saturating_duration_since(begun);
            Err(Failure::TimedOut(format!("{what} did not end within the {} that it has", Seconds(time))).into())
        };
        tokio::time::timeout_at(end.into(), work).await.unwrap_or_else(late)
    }
}

impl types::Host for CallState {}

impl log::Host for CallState {
    async fn write(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        let is_written = matches!(self.transcript.next(), Some(HostCall::Log { .. }));
        self.transcript.note(|| HostCall::Log { level, message: message.clone() });
        if is_written {
            return Ok(());
        }
        self.messages = self.messages.saturating_add(1);
        let level = match level {
            log::Level::Error => LogLevel::Error,
            log::Level::Warn => LogLevel::Warn,
            log::Level::Info => LogLevel::Info,
            log::Level::Debug => LogLevel::Debug,
        };
        let passed_on = self.messages <= self.most_messages;
        if passed_on || level == LogLevel::Error {
            let message = escaped(&message, MESSAGE);
            if passed_on {
                self.services.log(level, &message);
            }
            if level == LogLevel::Error {
                self.last_error = Some(message);
            }
        }
        Ok(())
    }
}

impl clock::Host for CallState {
    async fn wall(&mut self) -> wasmtime::Result<u64> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    async fn monotonic(&mut self) -> wasmtime::Result<u64> {
        Ok(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
