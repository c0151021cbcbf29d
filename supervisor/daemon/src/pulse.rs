//! Whether each session's driver gets on with what it does, so that the watchdog can tell a driver that is stuck from one that waits.
//!
//! A driver is in a step from when it has something to do until it waits again. What takes its time elsewhere is no step of its own: a client,
//! a keeper or a manager that does not answer ([`elsewhere`]), and a thread that is not free yet ([`blocking`]). What the driver itself does is, and so is a
//! disk that hangs. Nothing here decides what follows.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use agentd_api::SessionId;
use tokio::task::JoinError;

tokio::task_local! {
    /// Of the driver whose task this is.
    static OWN: Arc<Pulse>;
}

/// One driver's.
#[derive(Debug)]
pub(crate) struct Pulse {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the step began that it is in, or it was last seen to get on.
    since: Instant,
    /// How many things it waits for that are done elsewhere; one waits for another.
    elsewhere: u32,
    /// What it wrote could not be written, and is tried again.
    held_up: bool,
}

/// Of all drivers.
#[derive(Debug, Default)]
pub(crate) struct Pulses {
    known: Mutex<BTreeMap<SessionId, Weak<Pulse>>>,
}

impl Pulses {
    /// That of a session's driver, which begins.
    pub(crate) fn begin(&self, id: &SessionId) -> Arc<Pulse> {
        let pulse =
            Arc::new(Pulse { state: Mutex::new(State { since: Instant::now(), elsewhere: 0, held_up: false }) });
        let mut known = lock(&self.known);
        // Those of drivers that have ended, so that they do not gather.
        known.retain(|_, pulse| pulse.strong_count() > 0);
        known.insert(id.clone(), Arc::downgrade(&pulse));
        pulse
    }

    /// The sessions whose driver has been in one step for longer than that.
    pub(crate) fn stuck(&self, limit: Duration, now: Instant) -> Vec<SessionId> {
        self.those(|state| state.elsewhere == 0 && now.saturating_duration_since(state.since) > limit)
    }

    /// The sessions that have something to write and cannot.
    pub(crate) fn held_up(&self) -> Vec<SessionId> {
        self.those(|state| state.held_up)
    }

    fn those(&self, is_meant: impl Fn(&State) -> bool) -> Vec<SessionId> {
        let known = lock(&self.known);
        let meant = |pulse: &Weak<Pulse>| pulse.upgrade().is_some_and(|pulse| is_meant(&lock(&pulse.state)));
        known.iter().filter(|(_, pulse)| meant(pulse)).map(|(id, _)| id.clone()).collect()
    }
}

impl Pulse {
    /// The driver's whole life.
    pub(crate) async fn of<T>(self: Arc<Self>, driver: impl Future<Output = T>) -> T {
        OWN.scope(self, driver).await
    }

    fn leave(self: &Arc<Self>) -> Elsewhere {
        lock(&self.state).elsewhere += 1;
        Elsewhere(Arc::clone(self))
    }
}

/// While it is there, the driver waits for something that is done elsewhere.
struct Elsewhere(Arc<Pulse>);

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.elsewhere = state.elsewhere.saturating_sub(1);
        state.since = Instant::now();
    }
}

/// Never comes; while it is there, the driver waits for something to do.
pub(crate) async fn rest() -> Infallible {
    elsewhere(std::future::pending()).await
}

/// Waits for what is not the driver's own doing.
pub(crate) async fn elsewhere<T>(work: impl Future<Output = T>) -> T {
    let _left = own().map(|pulse| pulse.leave());
    work.await
}

/// As `tokio::task::spawn_blocking`: a step of the driver's own from when a thread does it. A panic of the work's goes on here.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let queued = own().map(|pulse| pulse.leave());
    let begun = move || {
        drop(queued);
        work()
    };
    match tokio::task::spawn_blocking(begun).await.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime ends, and with it whoever waits here.
        Err(Err(_cancelled)) => std::future::pending().await,
    }
}

/// A step of many parts has done one.
pub(crate) fn gets_on() {
    if let Some(pulse) = own() {
        lock(&pulse.state).since = Instant::now();
    }
}

/// Whether what the driver has to write cannot be written now.
pub(crate) fn is_held_up(held_up: bool) {
    if let Some(pulse) = own() {
        lock(&pulse.state).held_up = held_up;
    }
}

fn own() -> Option<Arc<Pulse>> {
    OWN.try_with(Arc::clone).ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is done under these locks can leave them half done.
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

    /// Whether a driver would be found stuck that is where it is for two hours more.
    fn is_stuck(pulses: &Pulses) -> bool {
        !pulses.stuck(HOUR, Instant::now() + 2 * HOUR).is_empty()
    }

    #[tokio::test]
    async fn a_driver_that_waits_elsewhere_is_not_stuck_and_one_in_a_step_of_its_own_is() {
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
            // What is given up was waited for all the same.
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
        assert!(!is_stuck(&pulses), "a driver that has ended is nobody's");
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
            assert!(!is_stuck(&pulses), "it waits for the thread");
            drop(release);
            first.await.unwrap();
            has_begun.await.unwrap();
            assert!(is_stuck(&pulses), "the thread is at it");
            drop(end);
            driver.await.unwrap();
        });
    }

    #[tokio::test]
    async fn who_cannot_write_is_told() {
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
