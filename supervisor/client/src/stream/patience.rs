//! Waits for a daemon that is away.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::Absence;

/// Maximum time for which the daemon may be unreachable.
pub(super) const AWAY: Duration = Duration::from_secs(30);
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(20);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Repeats a call until the daemon answers, for as long as a stream waits for the daemon.
pub async fn patiently<T, E: Absence>(ask: impl AsyncFn() -> Result<T, E>) -> Result<T, E> {
    let mut patience = Patience::default();
    loop {
        match ask().await {
            Err(error) => patience.wait(error).await?,
            answer => return answer,
        }
    }
}

/// Pauses between attempts to reach a daemon that is away.
#[derive(Debug)]
pub struct Patience {
    since: Instant,
    pause: Duration,
    longest: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self::endless(LONGEST_PAUSE)
    }
}

impl Patience {
    /// Makes pauses of at most `longest`.
    pub fn endless(longest: Duration) -> Self {
        Self { since: Instant::now(), pause: FIRST_PAUSE, longest }
    }

    /// Begins again: the daemon has answered.
    pub fn reset(&mut self) {
        *self = Self::endless(self.longest);
    }

    /// Pauses after a failed attempt. Each pause is twice as long as the pause before.
    pub async fn pause(&mut self) {
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(self.longest);
    }

    /// Pauses, if the error is the absence of the daemon and the daemon was not away for too long. Otherwise returns
    /// the error.
    pub async fn wait<E: Absence>(&mut self, error: E) -> Result<(), E> {
        if !error.is_absence() || self.since.elapsed() >= AWAY {
            return Err(error);
        }
        self.pause().await;
        Ok(())
    }
}
