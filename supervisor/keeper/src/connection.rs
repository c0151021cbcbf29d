//! The connection to the daemon: frames in, frames out, never blocking.
//!
//! Answers are written in order. How far the journal reaches is written only when there is nothing else to write, and then the
//! newest: a daemon that does not read gets one such frame however long it takes. While the agent prints as fast as it can the daemon is told
//! every [`PACE`] and not after each read, since waking it costs more than what it learns.

use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use crate::frame::{self, Decoder, FrameError};
use crate::protocol::{FromKeeper, Tail, ToKeeper};
use crate::wait::{self, Read};

/// More unread answers than this, and no request is read.
const UNREAD: usize = 64 << 10;

/// How often a daemon is told of a journal that does not stop growing.
const PACE: Duration = Duration::from_millis(2);

/// One daemon.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
    /// The daemon was told.
    told: Option<Tail>,
    told_at: Instant,
    ended: bool,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (decoder, told_at) = (Decoder::default(), Instant::now());
        Ok(Self { stream, decoder, out: Vec::new(), sent: 0, told: None, told_at, ended: false })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// What to wait for.
    pub(crate) fn events(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLIN, self.out.len() < UNREAD);
        events.set(PollFlags::POLLOUT, !self.out.is_empty());
        events
    }

    /// Whether it is over, for whatever reason.
    pub(crate) fn is_over(&self) -> bool {
        self.ended
    }

    /// Ends it with what was not written yet.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Whether the daemon has all there is to say.
    pub(crate) fn is_idle(&self) -> bool {
        self.out.is_empty()
    }

    /// Reads what came.
    pub(crate) fn read(&mut self) {
        if self.out.len() >= UNREAD {
            return;
        }
        let mut block = [0; 16 << 10];
        match wait::read(&self.stream, &mut block) {
            Ok(Read::Some(n)) => self.decoder.extend(&block[..n]),
            Ok(Read::Nothing) => {}
            Ok(Read::End) | Err(_) => self.ended = true,
        }
    }

    /// The next complete request; an error is one that this version does not know.
    pub(crate) fn request(&mut self) -> Option<Result<ToKeeper, serde_json::Error>> {
        if self.out.len() >= UNREAD {
            return None;
        }
        match self.decoder.frame() {
            Ok(frame) => frame.map(|frame| serde_json::from_slice(&frame)),
            // Nothing that follows such a frame can be understood.
            Err(FrameError::TooLong(_) | FrameError::Io(_) | FrameError::Cut | FrameError::Content(_)) => {
                self.ended = true;
                None
            }
        }
    }

    pub(crate) fn send(&mut self, message: &FromKeeper) {
        match frame::encode(message) {
            Ok(frame) => self.out.extend_from_slice(&frame),
            Err(_) => self.ended = true,
        }
    }

    /// Says how far the journal reaches where that is news and nothing else waits to be written, and writes what can be. With `more`
    /// there will be other news at once, and this may wait: [`Connection::tell_at`].
    pub(crate) fn flush(&mut self, tail: Tail, more: bool) {
        self.write();
        if self.out.is_empty() && self.told != Some(tail) && !self.ended {
            let now = Instant::now();
            if more && now < self.told_at + PACE {
                return;
            }
            (self.told, self.told_at) = (Some(tail), now);
            self.send(&FromKeeper::Grown(tail));
            self.write();
        }
    }

    /// When news that was held back has to be told.
    pub(crate) fn tell_at(&self, tail: Tail) -> Option<Instant> {
        (self.out.is_empty() && self.told != Some(tail)).then(|| self.told_at + PACE)
    }

    /// What the first frame said need not be said again.
    pub(crate) fn has_told(&mut self, tail: Tail) {
        self.told = Some(tail);
    }

    fn write(&mut self) {
        while self.sent < self.out.len() && !self.ended {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(n) if n > 0 => self.sent += n,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                _ => self.ended = true,
            }
        }
        // Its memory goes with it: most of a keeper's life there is nothing to say.
        (self.out, self.sent) = (Vec::new(), 0);
    }
}
