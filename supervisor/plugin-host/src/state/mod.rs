//! What a guest's store holds while a call lasts, and the imports that are always granted: the log and the clocks.
//!
//! The others are in the modules below: what is asked is judged ([`permit`]), the services do it, what they answer is bounded once more,
//! and both are put into the words of the interface.

mod around;
mod command;
mod file;
mod machine;
mod network;
mod permit;
mod script;
#[cfg(test)]
mod tests;
mod words;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::bindings::provider::agentd::plugin::{clock, log, types};
use crate::call::{Failure, Level};
use crate::grant::{Led, Places};
use crate::limits::{Accountant, Limits, Seconds};
use crate::services::Services;
use crate::text::escaped;

pub(crate) use around::Around;
pub(crate) use permit::Bounds;
pub(crate) use words::variables;

/// What the host's side of an import answers.
type Answer<T> = wasmtime::Result<Result<T, types::Failure>>;

/// Bytes of one message.
const MESSAGE: usize = 4096;

/// What is left to the guest after a host call took all the time it could: a tenth of the call's time, and at most this. In
/// it a guest can say what took so long, which is worth more than the bare fact.
const GRACE: Duration = Duration::from_millis(200);

/// How long after its deadline a service is waited for: it ends what it started, and says more than the host can.
const SLACK: Duration = Duration::from_millis(100);

/// A longer time than this is this: a clock's end must not be reached.
const LONGEST: Duration = Duration::from_hours(24);

/// One call's state.
pub(crate) struct State {
    pub(crate) accountant: Accountant,
    pub(crate) deadline: Instant,
    /// When the host calls of this call must have ended.
    host_deadline: Instant,
    started: Instant,
    bounds: Arc<Bounds>,
    places: Places,
    around: Around,
    /// Where the links in the patterns lead, once that was asked.
    led: Option<Arc<Led>>,
    services: Arc<dyn Services>,
    messages: u32,
    most_messages: u32,
    /// The last message at the level of an error: a panic's text comes this way, before the trap.
    pub(crate) last_error: Option<String>,
}

impl State {
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
            around: Around::default(),
            led: None,
            services,
            messages: 0,
            most_messages: limits.log,
            last_error: None,
        }
    }

    /// A call begins in an instance that was made before it: its time, its services and its limits are the call's own.
    pub(crate) fn begin(&mut self, limits: &Limits, services: Arc<dyn Services>, places: Places) {
        let mut accountant = std::mem::replace(&mut self.accountant, Accountant::new(limits));
        accountant.limit(limits);
        *self = Self { accountant, ..Self::new(limits, Arc::clone(&self.bounds), services, places) };
    }

    /// What the plugin was given of the environment, which it may pass on.
    pub(crate) fn surround(&mut self, around: Around) {
        self.around = around;
    }

    /// Says how many messages were not passed on.
    pub(crate) fn finish(&mut self) {
        let most = self.most_messages;
        if let Some(lost) = self.messages.checked_sub(most).filter(|&lost| lost > 0) {
            self.services.log(Level::Warn, &format!("{lost} more messages were dropped; a call may write {most}"));
        }
    }

    /// The time that a plugin asked for, as far as the call has it.
    fn until(&self, milliseconds: u64) -> Instant {
        let asked = Instant::now().checked_add(Duration::from_millis(milliseconds));
        asked.map_or(self.host_deadline, |asked| asked.min(self.host_deadline))
    }

    /// A host call that may take all that is left.
    async fn bounded<T, E: From<Failure>>(&self, what: &str, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.bounded_by(self.host_deadline, what, work).await
    }

    /// A host call, ended at a deadline of its own: by the service that does it, and by the host where that does not. Nothing is
    /// begun once the time for host calls is over, however often a guest asks.
    async fn bounded_by<T, E: From<Failure>>(
        &self,
        deadline: Instant,
        what: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let now = Instant::now();
        if self.host_deadline <= now {
            let time = Seconds(self.host_deadline.saturating_duration_since(self.started));
            return Err(Failure::TimedOut(format!("{what} was not begun: the {time} for it are over")).into());
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

impl types::Host for State {}

impl log::Host for State {
    async fn write(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        self.messages = self.messages.saturating_add(1);
        let level = match level {
            log::Level::Error => Level::Error,
            log::Level::Warn => Level::Warn,
            log::Level::Info => Level::Info,
            log::Level::Debug => Level::Debug,
        };
        let passed_on = self.messages <= self.most_messages;
        if passed_on || level == Level::Error {
            let message = escaped(&message, MESSAGE);
            if passed_on {
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
