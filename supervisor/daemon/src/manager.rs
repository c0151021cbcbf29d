//! The service manager, as far as it listens: what it is told (`sd_notify(3)`), and the watchdog that it keeps (`sd_watchdog_enabled(3)`).
//!
//! Nothing else in agentd speaks to it but `platform`, which takes the sockets that it hands over. Without a manager nobody listens, and that
//! is no error.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::platform;

/// How often a manager that waits is told to wait on, and for how long from then.
const EXTENSION: Duration = Duration::from_secs(5);
const EXTENDED: Duration = Duration::from_secs(20);

/// The unit or the job that this process is; nothing where no manager started it.
pub(crate) fn own_unit() -> Option<String> {
    platform::own_unit()
}

/// The socket answers.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The line that `systemctl status` shows.
pub(crate) fn status(line: &str) {
    tell(&[NotifyState::Status(line)]);
}

/// A reload has begun; [`ready`] says that it has ended. systemd 253 and later want the time with it.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "the service manager was not told of the reload"),
    }
}

pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// The daemon does its work.
pub(crate) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How long the manager may hear nothing of that before it kills the daemon.
pub(crate) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Does work that may take long at the start or at the end, and has the manager wait for it.
pub(crate) async fn extending<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(EXTENSION, &mut work).await {
            Ok(done) => return done,
            Err(_) => tell(&[NotifyState::ExtendTimeoutUsec(u32::try_from(EXTENDED.as_micros()).unwrap_or(u32::MAX))]),
        }
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager was not told");
    }
}
