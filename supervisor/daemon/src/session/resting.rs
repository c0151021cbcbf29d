//! A session at rest has no task: its driver lies here, made and not started, until somebody asks it something.
//!
//! Not its job: what rest is; see [`Driver::is_at_rest`]. There is never a second driver: the one that lies here is taken out to be started.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tokio_util::task::TaskTracker;

use super::driver::Driver;

/// Where a session's driver lies.
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
        // Nothing that is done under this lock can leave it half done.
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(driver) = driver {
            let pulse = driver.world.pulses.begin(driver.id());
            self.started.spawn(pulse.of(driver.run()));
        }
    }

    /// Lets go of a world that is not in force any more; a driver that was started sees to that itself.
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
