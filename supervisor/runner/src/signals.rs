//! Receives the signals that stop a run.

use std::io;

use nix::libc::{SIGINT, SIGTERM};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals SIGTERM and SIGINT, counted.
#[derive(Debug)]
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    count: u32,
}

impl StopSignals {
    /// Installs the handlers.
    pub(crate) fn install() -> io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, count: 0 })
    }

    /// Waits for the next signal and returns its number. Cancel-safe.
    pub(crate) async fn next(&mut self) -> i32 {
        let number = tokio::select! {
            _ = self.terminate.recv() => SIGTERM,
            _ = self.interrupt.recv() => SIGINT,
        };
        self.count += 1;
        number
    }

    /// Returns the number of signals so far.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}
