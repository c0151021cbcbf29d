//! One end of the line: its two file descriptors, the frames on them, and the times of both directions.
//!
//! This module does not decide when the line is lost. A closed direction and the silence are facts for the caller.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use serde::Serialize;

use super::flow::widen;
use super::frames::{Begin, Kind};
use super::wire::{Incoming, Outgoing};
use crate::spawn::nonblocking;
use crate::wait::Read;

/// Longest time between two frames of a side that has nothing to send.
const BEAT: Duration = Duration::from_secs(5);

/// End of the line.
#[derive(Debug)]
pub(super) struct Line {
    /// Received bytes. `None` after their end.
    from: Option<OwnedFd>,
    /// Bytes to send. `None` after a failed write.
    to: Option<OwnedFd>,
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    /// Bytes to send before all frames, and the number of those that were sent.
    early: (Vec<u8>, usize),
    /// Whether frames may be sent.
    is_open: bool,
    /// Whether no further frame follows.
    is_closing: bool,
    heard: Instant,
    said: Instant,
    silence: Option<Duration>,
    beat: Duration,
    is_wide: bool,
}

impl Line {
    /// Makes an end that sends nothing before it is opened.
    pub(super) fn new(from: OwnedFd, to: OwnedFd) -> io::Result<Self> {
        nonblocking(&from)?;
        nonblocking(&to)?;
        Ok(Self { from: Some(from), to: Some(to), ..Self::none() })
    }

    /// Makes an end without another end.
    pub(super) fn none() -> Self {
        let now = Instant::now();
        Self {
            from: None,
            to: None,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            early: (Vec::new(), 0),
            is_open: false,
            is_closing: false,
            heard: now,
            said: now,
            silence: None,
            beat: Duration::from_secs(1),
            is_wide: false,
        }
    }

    /// Sends bytes that are not a frame, before all frames.
    pub(super) fn say_early(&mut self, bytes: Vec<u8>) {
        self.early = (bytes, 0);
    }

    /// Returns the number of early bytes that wait to be written.
    pub(super) fn early_left(&self) -> usize {
        self.early.0.len() - self.early.1
    }

    /// Allows frames to be sent.
    pub(super) fn open(&mut self) {
        (self.is_open, self.said) = (true, Instant::now());
    }

    /// Sends the program before all other frames.
    pub(super) fn begin(&mut self, begin: &Begin) -> io::Result<()> {
        self.outgoing.begin(begin)?;
        self.open();
        Ok(())
    }

    /// Expects a byte within this time.
    pub(super) fn limit_silence(&mut self, silence: Duration) {
        (self.silence, self.heard) = (Some(silence), Instant::now());
    }

    /// Expects a frame within this time, and sends one often enough for the other side. Zero disables the limit.
    pub(super) fn expect(&mut self, silence_ms: u64) {
        let silence = Duration::from_millis(silence_ms);
        self.silence = Some(silence).filter(|silence| !silence.is_zero());
        self.beat = self.silence.map_or(BEAT, |silence| BEAT.min(silence / 3)).max(Duration::from_millis(1));
        self.heard = Instant::now();
    }

    /// Adds a frame.
    pub(super) fn say(&mut self, kind: Kind, content: &[u8]) {
        if self.to.is_some() && !self.is_closing {
            self.outgoing.push(kind, content);
        }
    }

    /// Adds a frame with JSON.
    pub(super) fn say_json(&mut self, kind: Kind, content: &impl Serialize) -> io::Result<()> {
        if self.to.is_some() && !self.is_closing { self.outgoing.push_json(kind, content) } else { Ok(()) }
    }

    /// Adds a frame with JSON that contains secrets.
    pub(super) fn say_secret(&mut self, kind: Kind, content: &impl Serialize) -> io::Result<()> {
        self.outgoing.keep_secret();
        self.say_json(kind, content)
    }

    /// Reports whether received bytes may still come.
    pub(super) fn can_hear(&self) -> bool {
        self.from.is_some()
    }

    /// Reports whether sent bytes may still arrive.
    pub(super) fn can_say(&self) -> bool {
        self.to.is_some()
    }

    /// Returns the file descriptors to wait for.
    pub(super) fn fds(&self) -> (Option<PollFd<'_>>, Option<PollFd<'_>>) {
        // Without a flag, poll(2) reports errors and the end of the other side.
        let wants = self.early_left() > 0 || (self.is_open && self.outgoing.waiting() > 0);
        let flags = if wants { PollFlags::POLLOUT } else { PollFlags::empty() };
        let from = self.from.as_ref().map(|from| PollFd::new(from.as_fd(), PollFlags::POLLIN));
        (from, self.to.as_ref().map(|to| PollFd::new(to.as_fd(), flags)))
    }

    /// Reads once.
    pub(super) fn read(&mut self) -> Read {
        let Some(from) = &self.from else { return Read::End };
        let read = self.incoming.read(from).unwrap_or(Read::End);
        match read {
            Read::Some(n) => {
                widen(from, n, &mut self.is_wide);
                self.heard = Instant::now();
            }
            Read::Nothing => {}
            Read::End => self.from = None,
        }
        read
    }

    /// Writes as much as the other side takes of the early bytes.
    fn write_early(&mut self) {
        while self.early_left() > 0 {
            let Some(to) = &self.to else { return };
            match nix::unistd::write(to, &self.early.0[self.early.1..]) {
                Ok(n) if n > 0 => self.early.1 += n,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                Ok(_) | Err(_) => return self.fail(),
            }
        }
        self.early = (Vec::new(), 0);
    }

    /// Writes as much as the other side takes.
    pub(super) fn write(&mut self) {
        self.write_early();
        let Some(to) = self.to.as_ref().filter(|_| self.is_open) else { return };
        match self.outgoing.write(to) {
            Ok(0) => {}
            Ok(_) => self.said = Instant::now(),
            Err(_) => self.fail(),
        }
        if self.is_closing && self.outgoing.waiting() == 0 {
            self.to = None;
        }
    }

    /// Notes that sent bytes no longer arrive.
    pub(super) fn fail(&mut self) {
        self.to = None;
        self.early = (Vec::new(), 0);
        self.outgoing.clear();
    }

    /// Notes that received bytes can no longer be understood.
    pub(super) fn deafen(&mut self) {
        self.from = None;
    }

    /// Closes the sending direction after the waiting bytes are written.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
        if self.is_open {
            self.write();
        } else {
            self.fail();
        }
    }

    /// Reports whether nothing waits to be sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.to.is_none() || self.outgoing.waiting() == 0
    }

    /// Returns the time of the last received byte.
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// Returns when the line counts as silent.
    pub(super) fn silent_at(&self) -> Option<Instant> {
        self.heard.checked_add(self.silence.filter(|_| self.from.is_some())?)
    }

    /// Returns when the next beat is due. A line on which bytes wait needs none.
    pub(super) fn beat_at(&self) -> Option<Instant> {
        let beats = self.is_open && !self.is_closing && self.to.is_some() && self.outgoing.waiting() == 0;
        if beats { self.said.checked_add(self.beat) } else { None }
    }

    /// Adds a beat if it is due.
    pub(super) fn beat(&mut self, now: Instant) {
        if self.beat_at().is_some_and(|at| at <= now) {
            self.say(Kind::Beat, b"");
        }
    }
}
