//! Measures whether each session's driver makes progress, so that the watchdog can tell a stuck driver from a
//! waiting one.
//!
//! A driver is in a step from the moment it has work until it waits again. Waiting elsewhere is not part of the
//! step: for a client, a keeper or a manager ([`elsewhere`]), and for a free thread ([`blocking`]). The driver's
//! own work counts, and so does a hanging disk. This module takes no action.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use agentd_api::SessionId;
use tokio::task::JoinError;
use tokio::task::futures::TaskLocalFuture;

tokio::task_local! {
    /// The pulse of the driver that runs in this task.
    static OWN: Arc<Pulse>;
}

/// Progress of one driver.
#[derive(Debug)]
pub struct Pulse {
    state: Mutex<PulseState>,
}

#[derive(Debug)]
struct PulseState {
    /// Start of the current step, or time of its last progress.
    since: Instant,
    /// Number of operations elsewhere that the driver waits for. They may be nested.
    elsewhere: u32,
    /// Whether a write failed and is being retried.
    held_up: bool,
}

/// Progress of all drivers.
#[derive(Debug, Default)]
pub struct Pulses {
    known: Mutex<BTreeMap<SessionId, Weak<Pulse>>>,
}

impl Pulses {
    /// Registers a driver that starts, and returns its pulse.
    pub fn begin(&self, id: &SessionId) -> Arc<Pulse> {
        let pulse =
            Arc::new(Pulse { state: Mutex::new(PulseState { since: Instant::now(), elsewhere: 0, held_up: false }) });
        let mut known = lock(&self.known);
        // Drop the entries of ended drivers, so that they do not accumulate.
        known.retain(|_, pulse| pulse.strong_count() > 0);
        known.insert(id.clone(), Arc::downgrade(&pulse));
        pulse
    }

    /// Returns the sessions whose driver has been in one step for longer than `limit`.
    pub fn stuck(&self, limit: Duration, now: Instant) -> Vec<SessionId> {
        self.those(|state| state.elsewhere == 0 && now.saturating_duration_since(state.since) > limit)
    }

    /// Returns the sessions whose driver retries a failed write.
    pub fn held_up(&self) -> Vec<SessionId> {
        self.those(|state| state.held_up)
    }

    fn those(&self, is_meant: impl Fn(&PulseState) -> bool) -> Vec<SessionId> {
        let known = lock(&self.known);
        let meant = |pulse: &Weak<Pulse>| pulse.upgrade().is_some_and(|pulse| is_meant(&lock(&pulse.state)));
        known.iter().filter(|(_, pulse)| meant(pulse)).map(|(id, _)| id.clone()).collect()
    }
}

impl Pulse {
    /// Runs the driver with this pulse as its own.
    pub fn of<F: Future>(self: Arc<Self>, driver: F) -> TaskLocalFuture<Arc<Self>, F> {
        OWN.scope(self, driver)
    }

    fn leave(self: &Arc<Self>) -> Elsewhere {
        lock(&self.state).elsewhere += 1;
        Elsewhere(Arc::clone(self))
    }
}

/// Guard of a wait elsewhere: while it exists, the driver is in no step.
struct Elsewhere(Arc<Pulse>);

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.elsewhere = state.elsewhere.saturating_sub(1);
        state.since = Instant::now();
    }
}

/// Marks the driver as waiting for work. The future never completes.
pub async fn rest() -> Infallible {
    elsewhere(std::future::pending()).await
}

/// Waits for work that is not the driver's own.
pub async fn elsewhere<T>(work: impl Future<Output = T>) -> T {
    let _left = own().map(|pulse| pulse.leave());
    work.await
}

/// Runs `work` like `tokio::task::spawn_blocking`. The step begins when a thread runs the work. A panic of the
/// work is passed on.
pub fn blocking<T, W>(work: W) -> impl Future<Output = T>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    let queued = own().map(|pulse| pulse.leave());
    let span = tracing::Span::current();
    let begun = move || {
        drop(queued);
        span.in_scope(work)
    };
    let running = agentd_host::work::blocking(begun);
    async move {
        match running.await.map_err(JoinError::try_into_panic) {
            Ok(done) => done,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime is ending, and this task with it.
            Err(Err(_cancelled)) => std::future::pending().await,
        }
    }
}

/// Reports progress inside a long step.
pub fn gets_on() {
    if let Some(pulse) = own() {
        lock(&pulse.state).since = Instant::now();
    }
}

/// Sets whether the driver retries a failed write.
pub fn is_held_up(held_up: bool) {
    if let Some(pulse) = own() {
        lock(&pulse.state).held_up = held_up;
    }
}

fn own() -> Option<Arc<Pulse>> {
    OWN.try_with(Arc::clone).ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks can leave the values inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::Notify;

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn begin(pulses: &Pulses) -> Arc<Pulse> {
        pulses.begin(&"abcdefghjkmn".parse().unwrap())
    }

    /// Reports whether a driver is found stuck when two more hours pass in its present place.
    fn is_stuck(pulses: &Pulses) -> bool {
        !pulses.stuck(HOUR, Instant::now() + 2 * HOUR).is_empty()
    }

    #[tokio::test]
    async fn a_driver_that_waits_elsewhere_is_not_stuck_and_a_driver_in_its_own_step_is() {
        let (pulses, go, there) = (Pulses::default(), Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (on, at) = (Arc::clone(&go), Arc::clone(&there));
        let driver = tokio::spawn(begin(&pulses).of(async move {
            at.notify_one();
            on.notified().await;
            elsewhere(async {
                elsewhere(async { at.notify_one() }).await;
                on.notified().await;
            })
            .await;
            at.notify_one();
            on.notified().await;
            // An abandoned wait elsewhere has ended the step as well.
            tokio::select! { biased; () = elsewhere(std::future::pending()) => {}, () = std::future::ready(()) => {} }
            at.notify_one();
            on.notified().await;
        }));
        for expected in [true, false, true, true] {
            there.notified().await;
            assert_eq!(is_stuck(&pulses), expected);
            go.notify_one();
        }
        driver.await.unwrap();
        assert!(!is_stuck(&pulses), "an ended driver is not stuck");
    }

    #[tokio::test]
    async fn a_step_of_many_parts_is_as_old_as_its_last_one() {
        let pulses = Pulses::default();
        let begun = begin(&pulses);
        let before = Instant::now();
        begun
            .of(async {
                assert_eq!(pulses.stuck(Duration::ZERO, before + HOUR).len(), 1);
                gets_on();
                assert!(pulses.stuck(HOUR, before + HOUR).is_empty());
            })
            .await;
    }

    #[test]
    fn work_that_waits_for_a_thread_is_not_stuck_and_work_that_a_thread_does_is() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let pulses = Pulses::default();
            let (release, held) = mpsc::channel::<()>();
            let first = tokio::task::spawn_blocking(move || held.recv().is_err());
            let (begun, has_begun) = tokio::sync::oneshot::channel();
            let (end, ended) = mpsc::channel::<()>();
            let work = move || {
                begun.send(()).unwrap();
                let _ = ended.recv();
            };
            let driver = tokio::spawn(begin(&pulses).of(async { blocking(work).await }));
            tokio::task::yield_now().await;
            assert!(!is_stuck(&pulses), "the work waits for a thread");
            drop(release);
            first.await.unwrap();
            has_begun.await.unwrap();
            assert!(is_stuck(&pulses), "a thread runs the work");
            drop(end);
            driver.await.unwrap();
        });
    }

    #[tokio::test]
    async fn a_driver_that_retries_a_failed_write_is_listed() {
        let pulses = Pulses::default();
        begin(&pulses)
            .of(async {
                is_held_up(true);
                assert_eq!(pulses.held_up().len(), 1);
                is_held_up(false);
                assert!(pulses.held_up().is_empty());
            })
            .await;
    }
}
