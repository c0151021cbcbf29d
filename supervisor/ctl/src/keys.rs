//! Reads keys of the terminal in a thread.
//!
//! A read of a terminal cannot be cancelled. The thread therefore waits for at most [`PERIOD`] at a time, and takes no
//! key once its [`Keys`] was dropped. The next reader gets that key.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossterm::event::Event;
use tokio::sync::mpsc;

/// Number of keys that may wait.
const AHEAD: usize = 256;
/// Longest wait of the thread for a key.
const PERIOD: Duration = Duration::from_millis(100);

/// Keys, pastes and changes of size of the terminal. Dropping it ends the reading.
#[derive(Debug)]
pub(crate) struct Keys {
    events: mpsc::Receiver<io::Result<Event>>,
    is_over: Arc<AtomicBool>,
}

impl Keys {
    /// Starts to read. The terminal should be in raw mode.
    pub(crate) fn open() -> io::Result<Self> {
        let (sender, events) = mpsc::channel(AHEAD);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        thread::Builder::new().name("keys".into()).spawn(move || {
            loop {
                let polled = crossterm::event::poll(PERIOD);
                // A key that has arrived stays in crossterm's queue, for the next reader.
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let event = match polled {
                    Ok(false) => continue,
                    Ok(true) => crossterm::event::read(),
                    Err(error) => Err(error),
                };
                let failed = event.is_err();
                if sender.blocking_send(event).is_err() || failed {
                    return;
                }
            }
        })?;
        Ok(Self { events, is_over })
    }

    /// Returns the next event, or `None` if the terminal is gone. Cancel-safe.
    pub(crate) async fn event(&mut self) -> Option<io::Result<Event>> {
        self.events.recv().await
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}
