//! Connection to the daemon: reads and writes frames, never blocking.
//!
//! Answers are written in their order. The end of the journal is reported only when no other frame waits, and only
//! the newest end. A daemon that does not read gets one such frame, however long it takes. While the agent prints
//! continuously, the keeper reports every [`PACE`] and not after each read. Waking the daemon costs more than an
//! earlier report is worth.

use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use crate::frame::{self, Decoder, FrameError};
use crate::protocol::{FromKeeper, Tail, ToKeeper};
use crate::wait::{self, Read};

/// Maximum number of unread answers before the keeper stops reading requests.
const UNREAD: usize = 64 << 10;

/// Maximum number of reads of requests before the agent gets its turn.
const READS: usize = 8;

/// Interval of reports while the journal grows continuously.
const PACE: Duration = Duration::from_millis(8);

/// Connection of one daemon.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
    /// End of the journal that was last reported.
    reported: Option<Tail>,
    reported_at: Instant,
    ended: bool,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (decoder, reported_at) = (Decoder::default(), Instant::now());
        Ok(Self { stream, decoder, out: Vec::new(), sent: 0, reported: None, reported_at, ended: false })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns the poll events to wait for.
    pub(crate) fn events(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLIN, self.out.len() < UNREAD);
        events.set(PollFlags::POLLOUT, !self.out.is_empty());
        events
    }

    /// Reports whether the connection has ended, for any reason.
    pub(crate) fn is_over(&self) -> bool {
        self.ended
    }

    /// Ends the connection and discards unwritten frames.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Reports whether all frames were written.
    pub(crate) fn is_idle(&self) -> bool {
        self.out.is_empty()
    }

    /// Reads the available bytes.
    pub(crate) fn read(&mut self) {
        if self.out.len() >= UNREAD {
            return;
        }
        // A larger block on the stack would stay in the memory of an idle keeper.
        let mut block = [0; 4 << 10];
        for _ in 0..READS {
            match wait::read(&self.stream, &mut block) {
                Ok(Read::Some(n)) => {
                    self.decoder.extend(&block[..n]);
                    if n < block.len() {
                        return;
                    }
                }
                Ok(Read::Nothing) => return,
                Ok(Read::End) | Err(_) => {
                    self.ended = true;
                    return;
                }
            }
        }
    }

    /// Returns the next complete request. An error means that this version does not know the request.
    pub(crate) fn request(&mut self) -> Option<Result<ToKeeper, serde_json::Error>> {
        if self.out.len() >= UNREAD {
            return None;
        }
        match self.decoder.frame() {
            Ok(frame) => frame.map(|frame| serde_json::from_slice(&frame)),
            // No bytes after such a frame can be parsed.
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

    /// Reports the end of the journal if it changed and no other frame waits, and writes what the socket takes. With
    /// `more`, the journal is about to grow again, and the report may wait until [`Connection::report_at`].
    pub(crate) fn flush(&mut self, tail: Tail, more: bool) {
        self.write();
        if self.out.is_empty() && self.reported != Some(tail) && !self.ended {
            let now = Instant::now();
            if more && now < self.reported_at + PACE {
                return;
            }
            (self.reported, self.reported_at) = (Some(tail), now);
            self.send(&FromKeeper::Grown(tail));
            self.write();
        }
    }

    /// Returns when a delayed report is due.
    pub(crate) fn report_at(&self, tail: Tail) -> Option<Instant> {
        (self.out.is_empty() && self.reported != Some(tail)).then(|| self.reported_at + PACE)
    }

    /// Records that the first frame already reported this end of the journal.
    pub(crate) fn mark_reported(&mut self, tail: Tail) {
        self.reported = Some(tail);
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
        // The buffer's memory is released, because a keeper is silent for most of its life.
        (self.out, self.sent) = (Vec::new(), 0);
    }
}
