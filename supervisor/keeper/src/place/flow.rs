//! The two ends of a stream on one side of the line: a source whose bytes are sent, and a sink for the received bytes.
//!
//! A source sends at most [`WINDOW`] bytes more than the other side has reported as taken. A sink therefore never holds
//! more than that, and the line is always read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};

use super::frames::{Kind, Stream, WINDOW};
use super::wire::Outgoing;
use crate::os;
use crate::wait::{self, Read};

/// A source is read only while fewer bytes than this wait on the line.
const WAITING: usize = 256 << 10;
/// A sink reports the taken bytes when there are this many.
const REPORTED: usize = WINDOW / 4;
/// Length of a read in bytes that shows a writer blocked by its full pipe.
const MUCH: usize = 32 << 10;
/// Capacity of a pipe whose writer is blocked.
const WIDE: i32 = 256 << 10;
/// A read of at least this many bytes, and less than [`MUCH`], is followed by a pause. A program that writes block by
/// block then does not wake both sides for each block. Short messages are never delayed.
const BLOCK: usize = 4 << 10;
/// Length of the pause.
const GATHER: Duration = Duration::from_millis(1);

/// Gives a pipe more than its default capacity after a read of `n` bytes. A wider pipe lets both sides switch less
/// often.
pub(super) fn widen(fd: impl AsFd, n: usize, is_wide: &mut bool) {
    if n >= MUCH && !*is_wide {
        *is_wide = true;
        os::widen(fd, WIDE);
    }
}

/// File descriptor whose bytes are sent.
#[derive(Debug)]
pub(super) struct Source {
    stream: Stream,
    fd: Option<OwnedFd>,
    /// Number of bytes that may be sent until the other side has taken some.
    window: usize,
    is_wide: bool,
    /// Time before which the source is not read, so that more bytes gather.
    not_before: Option<Instant>,
}

impl Source {
    pub(super) fn new(stream: Stream, fd: Option<OwnedFd>) -> Self {
        Self { stream, fd, window: WINDOW, is_wide: false, not_before: None }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Reports whether the line has room for bytes of the source while this many bytes wait on it.
    pub(super) fn has_room(&self, waiting: usize) -> bool {
        self.fd.is_some() && self.window > 0 && waiting < WAITING
    }

    /// Returns the end of a pause.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.not_before.filter(|at| *at > Instant::now())
    }

    /// Notes that the other side has taken this many bytes.
    pub(super) fn taken(&mut self, n: u32) {
        self.window = (self.window + n as usize).min(WINDOW);
    }

    /// Reads once, and adds the frame. The end of the source is a frame too.
    pub(super) fn read(&mut self, out: &mut Outgoing) -> Read {
        let Some(fd) = &self.fd else { return Read::End };
        // A failed read counts as the end.
        let read = out.fill(self.stream, self.window, fd).unwrap_or(Read::End);
        match read {
            Read::Some(n) => {
                self.window -= n;
                self.not_before = (BLOCK..MUCH).contains(&n).then(|| Instant::now() + GATHER);
                widen(fd, n, &mut self.is_wide);
            }
            Read::Nothing => {}
            Read::End => self.end(out),
        }
        read
    }

    /// Ends the stream.
    pub(super) fn end(&mut self, out: &mut Outgoing) {
        if self.fd.take().is_some() {
            out.push(Kind::End(self.stream), b"");
        }
    }

    /// Closes the file descriptor. The other side gets no end of the stream.
    pub(super) fn forget(&mut self) {
        self.fd = None;
    }

    /// Reads once, and drops the bytes.
    pub(super) fn drop_bytes(&mut self) -> Read {
        let Some(fd) = &self.fd else { return Read::End };
        let read = wait::read(fd, &mut [0; 16 << 10]).unwrap_or(Read::End);
        if read == Read::End {
            self.fd = None;
        }
        read
    }
}

/// File descriptor that gets the received bytes.
#[derive(Debug)]
pub(super) struct Sink {
    fd: Option<OwnedFd>,
    queue: Vec<u8>,
    sent: usize,
    /// Whether the file descriptor is closed when the queue is empty.
    is_closing: bool,
    /// Number of bytes that were passed on and not reported yet.
    taken: usize,
}

impl Sink {
    pub(super) fn new(fd: Option<OwnedFd>) -> Self {
        Self { fd, queue: Vec::new(), sent: 0, is_closing: false, taken: 0 }
    }

    /// Returns the number of bytes that wait to be written.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len() - self.sent
    }

    /// Returns the file descriptor if bytes wait to be written.
    pub(super) fn wanting(&self) -> Option<BorrowedFd<'_>> {
        self.fd().filter(|_| self.waiting() > 0)
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Reports whether this side closes the stream.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Reports whether any process can read the bytes. For a pipe without a reader, poll(2) reports POLLERR.
    pub(super) fn is_held(&self) -> bool {
        let Some(fd) = &self.fd else { return false };
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::empty())];
        let now = Some(Instant::now());
        wait::wait(&mut fds, now).is_ok() && !fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLERR))
    }

    /// Writes the bytes, and queues the rest.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let written = if self.waiting() == 0 { self.write_now(bytes) } else { 0 };
        if self.fd.is_some() {
            self.queue.extend_from_slice(&bytes[written..]);
        } else {
            // Bytes without a reader count as taken, so that the other side continues.
            self.taken += bytes.len() - written;
        }
    }

    /// Writes as much as the file descriptor takes. Returns the number of bytes, which count as taken.
    fn write_now(&mut self, bytes: &[u8]) -> usize {
        let mut written = 0;
        while let Some(fd) = self.fd.as_ref().filter(|_| written < bytes.len()) {
            match nix::unistd::write(fd, &bytes[written..]) {
                Ok(n) if n > 0 => written += n,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                // The reader has closed it.
                Ok(_) | Err(_) => self.abandon(),
            }
        }
        self.taken += written;
        written
    }

    /// Writes as much of the queue as the file descriptor takes.
    pub(super) fn write(&mut self) {
        let (queue, sent) = (std::mem::take(&mut self.queue), std::mem::take(&mut self.sent));
        let sent = sent + self.write_now(&queue[sent..]);
        if self.fd.is_some() {
            (self.queue, self.sent) = (queue, sent);
            if self.sent == self.queue.len() {
                (self.queue, self.sent) = (Vec::new(), 0);
                if self.is_closing {
                    self.fd = None;
                }
            } else if self.sent > WINDOW / 2 {
                self.queue.drain(..self.sent);
                self.sent = 0;
            }
        } else {
            self.taken += queue.len() - sent;
        }
    }

    /// Closes the file descriptor after the queued bytes are written.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
        self.write();
    }

    /// Closes the file descriptor at once. The queued bytes count as taken.
    pub(super) fn abandon(&mut self) {
        self.fd = None;
        self.taken += self.waiting();
        (self.queue, self.sent) = (Vec::new(), 0);
    }

    /// Forgets the taken bytes, because the other side of a new line begins with what waits here.
    pub(super) fn forget_taken(&mut self) {
        self.taken = 0;
    }

    /// Returns the number of taken bytes when it is time to report it.
    pub(super) fn report(&mut self) -> Option<u32> {
        if self.taken < REPORTED {
            return None;
        }
        u32::try_from(std::mem::take(&mut self.taken)).ok()
    }
}

/// Takes over a standard file descriptor of this process, and puts `/dev/null` in its place. The copy does not block.
pub(super) fn take(
    standard: impl AsFd,
    replace: impl FnOnce(&std::fs::File) -> nix::Result<()>,
) -> io::Result<OwnedFd> {
    let own = standard.as_fd().try_clone_to_owned()?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    replace(&null)?;
    crate::spawn::nonblocking(&own)?;
    Ok(own)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_source_sends_no_more_than_the_window_until_bytes_are_taken() {
        let (reader, writer) = io::pipe().unwrap();
        crate::spawn::nonblocking(&reader).unwrap();
        crate::spawn::nonblocking(&writer).unwrap();
        let (mut source, mut sent) = (Source::new(Stream::Out, Some(reader.into())), 0);
        while source.has_room(0) {
            while nix::unistd::write(&writer, &[7; 4096]).is_ok() {}
            let mut out = Outgoing::default();
            let Read::Some(n) = source.read(&mut out) else { panic!("no bytes in a full pipe") };
            sent += n;
        }
        assert_eq!(sent, WINDOW);
        assert!(!source.has_room(0));
        source.taken(10);
        assert!(source.has_room(0) && !source.has_room(WAITING));
        assert_eq!(source.read(&mut Outgoing::default()), Read::Some(10));
    }

    #[test]
    fn a_sink_passes_on_all_bytes_and_reports_them_in_portions() {
        let (mut reader, writer) = io::pipe().unwrap();
        crate::spawn::nonblocking(&writer).unwrap();
        let (mut sink, mut got, mut reported) = (Sink::new(Some(writer.into())), vec![0; 4 << 20], 0);
        let bytes: Vec<u8> = (0..4_u32 << 20).map(|n| (n % 251) as u8).collect();
        let (mut put, mut read) = (0, 0);
        while read < bytes.len() {
            let end = (put + 100_000).min(bytes.len());
            if sink.waiting() < WINDOW {
                sink.put(&bytes[put..end]);
                put = end;
            }
            read += reader.read(&mut got[read..(read + 50_000).min(bytes.len())]).unwrap();
            sink.write();
            reported += sink.report().unwrap_or(0) as usize;
        }
        assert_eq!(got, bytes);
        assert!(reported + REPORTED > bytes.len() && reported <= bytes.len(), "{reported}");
        sink.close();
        assert_eq!(reader.read(&mut got).unwrap(), 0);
    }

    #[test]
    fn bytes_without_a_reader_count_as_taken() {
        let (reader, writer) = io::pipe().unwrap();
        crate::spawn::nonblocking(&writer).unwrap();
        let mut sink = Sink::new(Some(writer.into()));
        sink.put(&vec![0; WINDOW]);
        assert!(sink.waiting() > 0 && sink.is_held());
        drop(reader);
        assert!(!sink.is_held());
        sink.write();
        assert_eq!((sink.waiting(), sink.report()), (0, u32::try_from(WINDOW).ok()));
        sink.put(&vec![0; WINDOW]);
        assert_eq!((sink.waiting(), sink.report()), (0, u32::try_from(WINDOW).ok()));
    }
}
