//! The driver of a session at rest: it is created but has no task until a request starts it.
//!
//! This module does not define rest; see [`Driver::is_at_rest`]. A session never has two drivers: starting takes
//! the resting driver out.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tokio_util::task::TaskTracker;

use super::driver::Driver;

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
            let pulse = driver.generation.daemon.pulses.begin(driver.id());
            self.started.spawn(pulse.of(driver.run()));
        }
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
