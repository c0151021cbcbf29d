//! Notifies the service manager of the daemon's state (`sd_notify(3)`) and of its watchdog
//! (`sd_watchdog_enabled(3)`).
//!
//! Apart from `platform`, which takes the sockets that the manager passes on, nothing else in agentd communicates
//! with the manager. Without a manager the notifications have no effect, and that is no error.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::platform;

/// Interval at which the manager is asked for more time.
const EXTENSION_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which the manager then waits.
const EXTENSION_TIME: Duration = Duration::from_secs(20);

/// Time limit of a service without a watchdog.
const ORDINARY: Duration = Duration::from_secs(30);

/// Returns the systemd unit or the launchd job of this process. `None` means that no manager started it.
pub fn own_unit() -> Option<String> {
    platform::own_unit()
}

/// Notifies the manager that the daemon is ready.
pub fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Sets the line that `systemctl status` shows.
pub fn status(line: &str) {
    notify(&[NotifyState::Status(line)]);
}

/// Notifies the manager that a reload has begun. [`ready`] ends the reload. systemd 253 and later require the time.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "cannot notify the service manager of the reload"),
    }
}

/// Notifies the manager that the daemon is stopping.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Pings the manager's watchdog.
pub fn alive() {
    notify(&[NotifyState::Watchdog]);
}

/// Returns the time without a ping after which the manager kills the daemon.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Returns the maximum duration of a driver's step: half of the watchdog's time.
pub fn longest_step() -> Duration {
    watchdog().unwrap_or(ORDINARY) / 2
}

/// Runs work that may take long at the start or at the end of the daemon, and extends the manager's timeout
/// meanwhile.
pub async fn extending<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(EXTENSION_INTERVAL, &mut work).await {
            Ok(done) => return done,
            Err(_) => {
                notify(&[NotifyState::ExtendTimeoutUsec(
                    u32::try_from(EXTENSION_TIME.as_micros()).unwrap_or(u32::MAX),
                )]);
            }
        }
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}
