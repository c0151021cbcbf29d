//! The clock that interrupts running plugins.
//!
//! While a call is in flight, a thread increments wasmtime's epoch every [`TICK`]. Compiled code checks the
//! epoch at every loop and call. This is a thread and not a task, because a looping plugin occupies the thread
//! that a task would need. Without a call in flight the thread sleeps.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use wasmtime::Engine;

/// Time slice of a plugin before it yields. Also the maximum delay with which a deadline is noticed.
const TICK: Duration = Duration::from_millis(10);

/// Owner of the clock thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<EpochState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct EpochState {
    calls: usize,
    closed: bool,
    /// Whether the thread waits for a notification rather than for the next tick.
    asleep: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, EpochState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticker {
    /// Starts the thread.
    pub(crate) fn start(engine: Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name("plugin-epoch".to_owned()).stack_size(64 << 10).spawn(move || {
            let mut state = theirs.lock();
            while !state.closed {
                if state.calls == 0 {
                    state.asleep = true;
                    state = theirs.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                state = theirs.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
                engine.increment_epoch();
            }
        })?;
        Ok(Self { shared })
    }

    /// Keeps the clock ticking until the returned value is dropped.
    pub(crate) fn running(&self) -> Running {
        let mut state = self.shared.lock();
        state.calls += 1;
        // If the previous call has just ended, the clock still ticks. Most calls are shorter than a tick.
        if std::mem::take(&mut state.asleep) {
            self.shared.changed.notify_one();
        }
        drop(state);
        Running { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

/// A call in flight, which keeps the clock ticking.
#[derive(Debug)]
pub(crate) struct Running {
    shared: Arc<Shared>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.lock().calls -= 1;
    }
}
