//! The end of the near side: the command `cancel`, the end of the client, the rest of the output, and the last report.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{EXIT, Name, Near, Outcome, REFUSED, State};
use crate::place::client::{self, Process};
use crate::place::frames::{Exited, Kind, Refused, Stream};
use crate::place::wire::Incoming;
use crate::protocol::PlaceReport;
use crate::signals;
use crate::tree;

/// Time limit for the command `cancel`.
const CANCEL: Duration = Duration::from_secs(10);
/// Time from SIGTERM to the kill of the client.
const TERM: Duration = Duration::from_secs(2);
/// Exit status for a lost line.
const LOST: u8 = 255;

impl Near {
    /// Ends the client, passes on the rest of the output, reports the outcome, and returns the exit status.
    pub(super) fn finish(mut self, outcome: Outcome) -> io::Result<u8> {
        let is_cancelled = match &outcome {
            Outcome::Ended(_) | Outcome::Refused(_) | Outcome::Orphaned => false,
            Outcome::Failed(_) => true,
            Outcome::Lost(_) => self.way.grace_ms == 0 || self.resident.is_some(),
        };
        if self.state == State::Greeted && is_cancelled {
            // A program that was started meanwhile ends without the grace of a lost line.
            self.line.say(Kind::Signal, &(Signal::SIGTERM as u32).to_le_bytes());
        }
        if matches!(outcome, Outcome::Ended(_) | Outcome::Refused(_)) {
            self.confirm_end(&outcome)?;
        }
        self.line.close();
        if let Outcome::Lost(message) = &outcome {
            // The engine shows the cancelled launch as ended. The report of the loss has to precede that.
            self.output.report(&PlaceReport::Lost { message: message.clone() });
        }
        let mut remark = String::new();
        if is_cancelled {
            remark = self.cancel()?;
        }
        if matches!(outcome, Outcome::Ended(_) | Outcome::Refused(_)) {
            self.linger(Some(Instant::now() + EXIT), true, |near| near.client.exit.is_some())?;
        }
        self.client.terminate();
        self.linger(Some(Instant::now() + TERM), false, |near| near.client.exit.is_some())?;
        self.client.kill();
        if self.resident.is_none() {
            tree::kill(self.client.pid, &mut self.family, |_, _| {});
        }
        self.pass();
        self.linger(None, true, |near| near.output.stdout.waiting() + near.output.stderr.waiting() == 0)?;
        let code = match outcome {
            Outcome::Ended(Exited { status, signal, killed, .. }) => {
                if self.resident.is_none() {
                    self.output.report(&PlaceReport::Ended { status, signal, killed });
                }
                if let Some(signal) = signal {
                    signals::die_by(signal);
                }
                status.or(signal.map(|signal| 128 + signal)).and_then(|code| u8::try_from(code).ok()).unwrap_or(LOST)
            }
            Outcome::Refused(Refused { code, message }) | Outcome::Failed(Refused { code, message }) => {
                self.output.report(&PlaceReport::Refused { code, message: message + &remark });
                REFUSED
            }
            Outcome::Orphaned => LOST,
            Outcome::Lost(message) => {
                if !remark.is_empty() {
                    self.output.report(&PlaceReport::Lost { message: message + &remark });
                }
                LOST
            }
        };
        Ok(code)
    }

    /// Runs the command `cancel`. Returns a remark for people if it fails.
    fn cancel(&mut self) -> io::Result<String> {
        let Some(command) = self.way.cancel.take() else { return Ok(String::new()) };
        match client::start(&command, &self.way.environment, false) {
            Ok(spawned) => {
                let pipes: Vec<OwnedFd> = spawned.stdout.into_iter().chain(spawned.stderr).collect();
                self.cancel = Some(Process::new(spawned.pid, pipes));
            }
            Err(error) => return Ok(format!("; the command that cancels it failed: {error}")),
        }
        self.linger(Some(Instant::now() + CANCEL), false, |near| {
            near.cancel.as_ref().is_none_or(|cancel| cancel.exit.is_some())
        })?;
        self.pass();
        let Some(cancel) = self.cancel.take() else { return Ok(String::new()) };
        cancel.kill();
        Ok(match cancel.exit {
            Some(exit) if exit.success() => String::new(),
            Some(_) => format!("; the command that cancels it {}", cancel.describe()),
            None => format!("; the command that cancels it did not end within {} s", CANCEL.as_secs()),
        })
    }

    /// Passes on output until the condition is met or the time has come. SIGTERM ends the wait if `yields`.
    pub(super) fn linger(
        &mut self,
        until: Option<Instant>,
        yields: bool,
        is_done: impl Fn(&Self) -> bool,
    ) -> io::Result<()> {
        // Bytes for the program are of no use any more.
        self.stdin.forget();
        while !is_done(self) && until.is_none_or(|until| until > Instant::now()) {
            self.line.write();
            let events = self.wait(until)?;
            if events.has(Name::Terminate) && self.signals.take_terminate() && yields {
                break;
            }
            if events.has(Name::From) {
                self.line.read();
                self.line.incoming = Incoming::default();
            }
            self.pump(&events);
        }
        Ok(())
    }

    /// Reports the bytes of the program's output that were passed on, so that the far side sends more.
    pub(super) fn report_taken(&mut self) {
        for (stream, sink) in [(Stream::Out, &mut self.output.stdout), (Stream::Err, &mut self.output.stderr)] {
            if let Some(n) = sink.report() {
                self.line.say(Kind::Taken(stream), &n.to_le_bytes());
            }
        }
    }
}
