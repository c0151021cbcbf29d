//! The clock that interrupts guests: while a call is in flight a thread raises wasmtime's epoch every few milliseconds, and
//! compiled code looks at the epoch at every loop and call. It is a thread and not a task because a guest that loops
//! holds the very thread a task would need. With no call in flight it sleeps and wakes nobody.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use wasmtime::Engine;

/// How long a guest runs before it lets others run, and how late a deadline may be noticed.
const TICK: Duration = Duration::from_millis(10);

/// Owns the thread.
#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    calls: usize,
    closed: bool,
    /// Whether the thread waits to be woken, and not for the next tick.
    asleep: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticker {
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

    /// The clock ticks until what this gives is dropped.
    pub(crate) fn running(&self) -> Running {
        let mut state = self.shared.lock();
        state.calls += 1;
        // A call that follows on another finds the clock still ticking: most calls are shorter than a tick.
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

/// A call in flight.
#[derive(Debug)]
pub(crate) struct Running {
    shared: Arc<Shared>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.lock().calls -= 1;
    }
}
