//! The driver of a session at rest: it is created but has no task until a request starts it.
//!
//! This module does not define rest; see [`Driver::is_at_rest`]. A session never has two drivers: starting takes
//! the resting driver out.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use agentd_api::SessionId;
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::document::Document;
use super::drive::{Driver, Processes, Request, SessionOrigin};
use super::{Published, view};
use crate::generation::Generations;
use agentd_decide::state::State;

/// Maximum number of requests that wait for one session's driver.
const INBOX: usize = 16;

/// Returns the span of a session's driver and its bring-ups. Each log entry inside has the field `agentd.session`,
/// which journald stores as `AGENTD_SESSION`. The span has no parent: a driver outlives the request that starts it.
fn span_of(id: &SessionId) -> tracing::Span {
    tracing::error_span!(parent: None, "session", agentd.session = %id)
}

/// A session with its driver, before its registration.
pub(super) struct SessionParts {
    pub(super) driver: Box<Driver>,
    pub(super) inbox: mpsc::Sender<Box<Request>>,
    pub(super) published: watch::Receiver<Arc<Published>>,
}

impl SessionParts {
    /// Creates the driver of a session, and publishes the state that the document contains. Reads from the disk
    /// whether the session is at rest.
    pub(super) fn of(generations: &Generations, mut document: Document, origin: SessionOrigin) -> Self {
        let (inbox, receiver) = mpsc::channel(INBOX);
        let state = document.take_state();
        let first = Published::new(view(&document, &state, (state.phase(), None)), &document, &state, state.seq, false);
        let (publish, published) = watch::channel(Arc::new(first));
        let mut driver =
            Box::new(Driver::new(generations, document, receiver, state, publish, origin, Arc::new(Processes)));
        let _entered = span_of(driver.id()).entered();
        driver.recorder.current = driver.is_at_rest();
        if driver.recorder.current {
            driver.publish();
        } else {
            // Publish the stored state until the driver has read the journal.
            driver.show();
        }
        Self { driver, inbox, published }
    }
}

/// Holder of a session's driver that has not been started.
pub(super) struct Resting {
    driver: Mutex<Option<Box<Driver>>>,
    started: TaskTracker,
}

impl Resting {
    pub(super) fn new(driver: Box<Driver>, started: TaskTracker) -> Self {
        Self { driver: Mutex::new(Some(driver)), started }
    }

    /// Starts the driver, if it has not been started.
    pub(super) fn wake(&self) {
        // No code under this lock can leave the value inconsistent.
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(driver) = driver {
            let pulse = driver.terms.generation.daemon.pulses.begin(driver.id());
            let span = span_of(driver.id());
            self.started.spawn(pulse.of(driver.run()).instrument(span));
        }
    }

    /// Returns the state of a driver that has not been started, if the state is complete.
    pub(super) fn state(&self) -> Option<Box<State>> {
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        driver.as_ref().filter(|driver| driver.recorder.current).map(|driver| Box::new(driver.state().clone()))
    }

    /// Takes over the generation in force, so that a resting driver does not keep an old one loaded. A started
    /// driver does that itself.
    pub(super) fn renew(&self) {
        if let Some(driver) = self.driver.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            driver.renew();
        }
    }
}

impl fmt::Debug for Resting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Resting").finish_non_exhaustive()
    }
}
