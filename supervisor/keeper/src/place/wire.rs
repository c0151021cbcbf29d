//! Format of the line between `agentd-keeper place` and `agentd-keeper enter`.
//!
//! The far side first writes a marker ([`MARKER`]), which the start-up output of a login shell does not contain. From
//! then on both sides write frames: a byte for the kind, the length (u32, little endian), and as many bytes.
//!
//! Some engines pass on whole lines only: srun without `--unbuffered` does, and its terminal for `--unbuffered` would
//! change the bytes. A line end therefore follows the last frame of each write, and readers skip line ends between
//! frames.
//!
//! Three streams pass through the line: stdin, stdout and stderr of the program. Each side may send at most one window
//! ([`WINDOW`](super::frames::WINDOW)) of a stream that the other side has not passed on yet. A program that reads
//! nothing therefore never blocks the frames of the other streams, the signals and the beats.
//!
//! Both sides have the same protocol ([`Hello`]), so a frame of an unknown kind means that the line is damaged.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use nix::errno::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroize as _;

use super::frames::{Begin, Hello, Kind, MARKER, Stream};
use crate::protocol::{MAX_FRAME, StreamCursor};
use crate::wait::{self, Read};

/// Length of a frame's header in bytes.
const HEADER: usize = 5;
/// Size of a read in bytes from a line or a pipe with little data, and with much.
const SMALL: usize = 16 << 10;
const LARGE: usize = 256 << 10;

/// Number of short reads in a row after which reads are small again.
const SHORT: u8 = 3;

/// Size of the next read. Most programs write little, and a large buffer takes memory for the life of a program.
#[derive(Debug, Default)]
struct Size {
    is_large: bool,
    short: u8,
}

impl Size {
    fn bytes(&self) -> usize {
        if self.is_large { LARGE } else { SMALL }
    }

    /// Notes the result of a read or a write.
    fn note(&mut self, n: usize, is_full: bool) {
        self.short = if n < SMALL / 2 { self.short.saturating_add(1) } else { 0 };
        self.is_large = is_full || (self.is_large && self.short < SHORT);
    }
}

/// The received bytes are not frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireError {
    #[error("byte {0:#04x} is not the kind of a frame")]
    Kind(u8),
    #[error("a frame of {0} bytes is longer than the {MAX_FRAME} allowed")]
    TooLong(u32),
    #[error("a frame has an invalid content: {0}")]
    Content(String),
}

/// Parses the JSON content of a frame.
pub(super) fn parse<T: DeserializeOwned>(content: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(content).map_err(|error| WireError::Content(error.to_string()))
}

/// Parses the number in a frame.
pub(super) fn number(content: &[u8]) -> Result<u32, WireError> {
    let bytes = content.try_into().map_err(|_| WireError::Content(format!("{} bytes for a number", content.len())))?;
    Ok(u32::from_le_bytes(bytes))
}

/// Parses a count of lines in a frame.
pub(super) fn count(content: &[u8]) -> Result<u64, WireError> {
    let bytes = content.try_into().map_err(|_| WireError::Content(format!("{} bytes for a count", content.len())))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Parses the position of the journal in a frame.
pub(super) fn cursor(content: &[u8]) -> Result<StreamCursor, WireError> {
    let (numbers, rest) = content.as_chunks::<8>();
    let [out, err] = *numbers else {
        return Err(WireError::Content(format!("{} bytes for a position", content.len())));
    };
    if !rest.is_empty() {
        return Err(WireError::Content(format!("{} bytes for a position", content.len())));
    }
    Ok(StreamCursor { out: u64::from_le_bytes(out), err: u64::from_le_bytes(err) })
}

/// Received bytes. Bytes of streams are returned as they arrive, and all other frames when they are complete.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Stream of an incomplete frame, and the number of its bytes that have not come yet.
    data: Option<(Stream, usize)>,
    size: Size,
    /// Whether the last read filled the buffer.
    full: bool,
    /// Whether the first frame has not come yet.
    is_noise: bool,
}

impl Incoming {
    /// Reads with one read(2).
    pub(super) fn read(&mut self, from: impl AsFd) -> io::Result<Read> {
        self.make_room();
        let room = self.buffer.len() - self.end;
        let read = wait::read(from, &mut self.buffer[self.end..])?;
        self.full = read == Read::Some(room);
        if let Read::Some(n) = read {
            self.end += n;
            self.size.note(n, self.full);
        }
        Ok(read)
    }

    /// Reports whether the last read filled the buffer, so that more bytes are probably available.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// Moves the unread bytes to the front, and makes room for the rest of the first frame.
    fn make_room(&mut self) {
        let unread = self.end - self.start;
        let size = self.size.bytes();
        // The pages of a large buffer get no memory before bytes come.
        let needed = self.frame_length().unwrap_or(0).max(unread + size / 2).max(size);
        if self.buffer.len() < needed || (unread == 0 && self.buffer.len() > needed) {
            let mut buffer = vec![0; needed];
            buffer[..unread].copy_from_slice(&self.buffer[self.start..self.end]);
            self.buffer = buffer;
        } else {
            self.buffer.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end) = (0, unread);
    }

    /// Returns the length of the frame of which an incomplete part is in the buffer, with its header.
    fn frame_length(&self) -> Option<usize> {
        let starts_here = self.data.is_none() && !self.is_noise;
        let header: &[u8; HEADER] = self.buffer[self.start..self.end].first_chunk().filter(|_| starts_here)?;
        let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
        Some(HEADER + length.min(MAX_FRAME) as usize)
    }

    /// Returns the next frame, or the available bytes of a stream, as a range of [`Incoming::bytes`]. The range is
    /// valid until the next read.
    pub(super) fn next(&mut self) -> Result<Option<(Kind, Range<usize>)>, WireError> {
        loop {
            if let Some((stream, left)) = self.data {
                let n = left.min(self.end - self.start);
                self.data = (left > n).then_some((stream, left - n));
                if n > 0 {
                    self.start += n;
                    return Ok(Some((Kind::Data(stream), self.start - n..self.start)));
                }
                if left > 0 {
                    return Ok(None);
                }
            }
            self.skip_line_ends();
            let Some(header) = self.buffer[self.start..self.end].first_chunk::<HEADER>() else { return Ok(None) };
            let kind = Kind::of(header[0]).ok_or(WireError::Kind(header[0]))?;
            let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
            if length > MAX_FRAME {
                return Err(WireError::TooLong(length));
            }
            let content = self.start + HEADER..self.start + HEADER + length as usize;
            if let Kind::Data(stream) = kind {
                self.start = content.start;
                self.data = Some((stream, length as usize));
            } else if content.end <= self.end {
                self.start = content.end;
                return Ok(Some((kind, content)));
            } else {
                return Ok(None);
            }
        }
    }

    /// Skips line ends between two frames.
    fn skip_line_ends(&mut self) {
        while self.data.is_none() && self.start < self.end && self.buffer[self.start] == b'\n' {
            self.start += 1;
        }
    }

    /// Returns received bytes.
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Returns the received bytes that are not part of a frame yet.
    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Overwrites received bytes with zeros.
    pub(super) fn erase(&mut self, range: Range<usize>) {
        self.buffer[range].zeroize();
    }

    /// Removes bytes that come before the first frame. Returns the first frame when it is complete. `noise` gets the
    /// removed bytes.
    pub(super) fn hello(&mut self, mut noise: impl FnMut(&[u8])) -> Option<Hello> {
        self.is_noise = true;
        loop {
            let unread = &self.buffer[self.start..self.end];
            let Some(at) = memchr::memmem::find(unread, MARKER) else {
                // The last bytes may be the first ones of the marker.
                let known = unread.len().saturating_sub(MARKER.len() - 1);
                noise(&unread[..known]);
                self.start += known;
                return None;
            };
            noise(&unread[..at]);
            self.start += at;
            let unread = &unread[at..];
            let rest = &unread[MARKER.len()..];
            let header = rest.first_chunk::<HEADER>()?;
            let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]) as usize;
            if Kind::of(header[0]) == Some(Kind::Hello) && length <= LARGE {
                let content = rest.get(HEADER..HEADER + length)?;
                if let Ok(hello) = parse(content) {
                    self.start += MARKER.len() + HEADER + length;
                    self.is_noise = false;
                    return Some(hello);
                }
            }
            // This marker belongs to other output.
            noise(&unread[..1]);
            self.start += 1;
        }
    }
}

/// Bytes to send. A frame and its header are contiguous, so that one write(2) sends both.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Size of the next read of a stream.
    size: Size,
    /// Whether the buffer has contained the environment of a program.
    is_secret: bool,
}

impl Outgoing {
    /// Returns the number of bytes that wait to be written.
    pub(super) fn waiting(&self) -> usize {
        self.end - self.start
    }

    /// Adds bytes that are not a frame.
    pub(super) fn push_raw(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.buffer[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Adds a frame.
    pub(super) fn push(&mut self, kind: Kind, content: &[u8]) {
        self.push_raw(&header(kind, content.len()));
        self.push_raw(content);
    }

    /// Adds a frame with JSON.
    pub(super) fn push_json(&mut self, kind: Kind, content: &impl Serialize) -> io::Result<()> {
        let content = serde_json::to_vec(content)?;
        self.push(kind, &content);
        Ok(())
    }

    /// Overwrites all bytes after they were sent, because a waiting frame contains secrets.
    pub(super) fn keep_secret(&mut self) {
        self.is_secret = true;
    }

    /// Puts a frame that contains secrets before all others. The bytes are overwritten after they were sent.
    pub(super) fn begin(&mut self, begin: &Begin) -> io::Result<()> {
        let mut content = serde_json::to_vec(begin)?;
        if content.len() > MAX_FRAME as usize {
            content.zeroize();
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the program, its arguments and its environment have more than {} MiB", MAX_FRAME >> 20),
            ));
        }
        let early = std::mem::take(self);
        self.make_room(content.len() + HEADER + early.waiting());
        self.is_secret = true;
        self.push(Kind::Begin, &content);
        self.push_raw(&early.buffer[early.start..early.end]);
        content.zeroize();
        Ok(())
    }

    /// Adds a frame with the result of one read of a stream, of at most `most` bytes.
    pub(super) fn fill(&mut self, stream: Stream, most: usize, from: impl AsFd) -> io::Result<Read> {
        // A frame of this size, with its header and its line end, fills a wide pipe.
        let size = (self.size.bytes() - HEADER - 1).min(most);
        self.make_room(HEADER + size);
        let content = self.end + HEADER;
        let read = wait::read(from, &mut self.buffer[content..content + size])?;
        if let Read::Some(n) = read {
            self.buffer[self.end..content].copy_from_slice(&header(Kind::Data(stream), n));
            self.end = content + n;
            self.size.note(n, n == size);
        }
        Ok(read)
    }

    /// Makes room for this number of bytes behind the waiting ones.
    fn make_room(&mut self, bytes: usize) {
        let waiting = self.waiting();
        if self.buffer.len() - self.end >= bytes {
            return;
        }
        if self.buffer.len() >= waiting + bytes {
            self.buffer.copy_within(self.start..self.end, 0);
        } else {
            let mut buffer = vec![0; (waiting + bytes).next_power_of_two()];
            buffer[..waiting].copy_from_slice(&self.buffer[self.start..self.end]);
            let mut old = std::mem::replace(&mut self.buffer, buffer);
            if self.is_secret {
                old.zeroize();
            }
        }
        (self.start, self.end) = (0, waiting);
    }

    /// Ends the waiting frames with a line end.
    fn end_line(&mut self) {
        if self.start < self.end && self.buffer[self.end - 1] != b'\n' {
            self.push_raw(b"\n");
        }
    }

    /// Writes as much as the file descriptor takes, and a line end behind the last frame. Returns the number of written
    /// bytes.
    pub(super) fn write(&mut self, to: impl AsFd) -> io::Result<usize> {
        let mut written = 0;
        self.end_line();
        while self.start < self.end {
            match nix::unistd::write(&to, &self.buffer[self.start..self.end]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.start += n;
                    written += n;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(written),
                Err(errno) => return Err(errno.into()),
            }
        }
        if written > 0 {
            self.size.note(written, false);
        }
        self.clear();
        Ok(written)
    }

    /// Drops all bytes. Keeps no large buffer for a program that writes little.
    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
        if self.is_secret {
            self.buffer.zeroize();
            self.is_secret = false;
        }
        if !self.size.is_large && self.buffer.len() > 2 * SMALL {
            self.buffer = Vec::new();
        }
    }
}

fn header(kind: Kind, length: usize) -> [u8; HEADER] {
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    [kind.byte(), a, b, c, d]
}

#[cfg(test)]
mod tests {
    use agentd_api::event::PlaceHost;
    use proptest::prelude::*;

    use super::super::frames::{KINDS, PROTOCOL, Running};
    use super::*;
    use crate::protocol::PlacedProgram;

    /// Frames with their contents.
    type Frames = Vec<(Kind, Vec<u8>)>;

    /// Receives the bytes in portions of these lengths. Returns the noise, the version, and the frames, with the bytes
    /// of a stream joined.
    fn received(bytes: &[u8], portions: &[usize]) -> (Vec<u8>, Option<String>, Frames) {
        let (reader, writer) = std::io::pipe().unwrap();
        crate::spawn::nonblocking(&reader).unwrap();
        let (mut incoming, mut noise, mut version) = (Incoming::default(), Vec::new(), None);
        let mut frames: Vec<(Kind, Vec<u8>)> = Vec::new();
        let (mut at, mut portions) = (0, portions.iter().cycle());
        while at < bytes.len() {
            let end = (at + portions.next().unwrap()).min(bytes.len());
            assert_eq!(nix::unistd::write(&writer, &bytes[at..end]), Ok(end - at));
            at = end;
            while let Read::Some(_) = incoming.read(&reader).unwrap() {
                if version.is_none() {
                    version = incoming.hello(|bytes| noise.extend_from_slice(bytes)).map(|hello| hello.version);
                }
                if version.is_none() {
                    continue;
                }
                while let Some((kind, range)) = incoming.next().unwrap() {
                    let bytes = incoming.bytes(range).to_vec();
                    match frames.last_mut() {
                        Some((last, joined)) if *last == kind && matches!(kind, Kind::Data(_)) => joined.extend(bytes),
                        _ => frames.push((kind, bytes)),
                    }
                }
            }
        }
        (noise, version, frames)
    }

    fn hello() -> Hello {
        Hello {
            protocol: PROTOCOL,
            version: "1.2.3".to_owned(),
            host: serde_json::to_value(PlaceHost::default()).unwrap(),
        }
    }

    proptest! {
        #[test]
        fn frames_do_not_depend_on_the_size_of_reads(
            noise in proptest::collection::vec(any::<u8>(), 0..200),
            kinds in proptest::collection::vec((0..KINDS.len(), 1_usize..300), 0..12),
            portions in proptest::collection::vec(1_usize..60, 1..10),
        ) {
            let mut out = Outgoing::default();
            out.push_raw(&noise);
            out.push_raw(MARKER);
            out.push_json(Kind::Hello, &hello()).unwrap();
            let mut expected: Vec<(Kind, Vec<u8>)> = Vec::new();
            for (n, length) in kinds {
                let (kind, bytes) = (KINDS[n].1, vec![u8::try_from(n).unwrap(); length]);
                out.push(kind, &bytes);
                match expected.last_mut() {
                    Some((last, joined)) if *last == kind && matches!(kind, Kind::Data(_)) => joined.extend(bytes),
                    _ => expected.push((kind, bytes)),
                }
            }
            let bytes = &out.buffer[out.start..out.end];
            let (skipped, version, frames) = received(bytes, &portions);
            prop_assert_eq!(skipped, noise);
            prop_assert_eq!(version.as_deref(), Some("1.2.3"));
            prop_assert_eq!(frames, expected);
        }
    }

    #[test]
    fn each_kind_has_its_own_byte_and_none_begins_a_marker() {
        for (byte, kind) in KINDS {
            assert_eq!((Kind::of(byte), kind.byte()), (Some(kind), byte));
            assert_eq!(KINDS.iter().filter(|(other, _)| *other == byte).count(), 1);
            assert_ne!(byte, MARKER[0]);
        }
    }

    #[test]
    fn a_marker_in_the_noise_is_skipped() {
        let mut out = Outgoing::default();
        for noise in [MARKER, b"+ echo \x01agentd-enter 1\nmotd\n", MARKER, b"\x10\x02\0\0\0{]", MARKER] {
            out.push_raw(noise);
        }
        let length = out.waiting() - MARKER.len();
        out.push_json(Kind::Hello, &hello()).unwrap();
        out.push(Kind::Beat, b"");
        for portion in [1, 7, 1000] {
            let (noise, version, frames) = received(&out.buffer[out.start..out.end], &[portion]);
            assert_eq!((noise.len(), version.as_deref()), (length, Some("1.2.3")), "{portion}");
            assert_eq!(frames, [(Kind::Beat, Vec::new())]);
        }
    }

    #[test]
    fn a_large_frame_is_whole_and_an_empty_piece_of_a_stream_is_nothing() {
        let program = PlacedProgram { program: "x".repeat(10 << 20).into(), ..PlacedProgram::default() };
        let begin = Begin {
            program: Some(program),
            silence_ms: 1,
            grace_ms: 2,
            close_ms: 3,
            term_ms: 4,
            resident: None,
            sha256: None,
        };
        let (mut out, length) = (Outgoing::default(), 10 << 20);
        out.push_raw(MARKER);
        out.push_json(Kind::Hello, &hello()).unwrap();
        out.push_json(Kind::Begin, &begin).unwrap();
        out.push(Kind::Data(Stream::In), b"");
        out.push(Kind::End(Stream::In), b"");
        let (_, _, frames) = received(&out.buffer[out.start..out.end], &[60_000]);
        let kinds: Vec<_> = frames.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [Kind::Begin, Kind::End(Stream::In)]);
        let begin: Begin = parse(&frames[0].1).unwrap();
        assert_eq!((begin.program.as_ref().unwrap().program.as_bytes().len(), begin.term_ms), (length, 4));
    }

    #[test]
    fn bytes_that_are_no_frame_are_refused() {
        for (bytes, error) in [
            (&b"motd\n"[..], WireError::Kind(b'm')),
            (&[0x10, 0xff, 0xff, 0xff, 0xff][..], WireError::TooLong(u32::MAX)),
        ] {
            let mut incoming = Incoming::default();
            let (reader, writer) = std::io::pipe().unwrap();
            nix::unistd::write(&writer, bytes).unwrap();
            incoming.read(&reader).unwrap();
            assert_eq!(incoming.next().unwrap_err(), error);
        }
        assert!(number(b"12345").is_err() && parse::<Running>(b"{}").is_err());
    }

    #[test]
    fn the_begin_precedes_earlier_bytes_and_is_overwritten_after_it_was_sent() {
        let secret = "hunter2-hunter2";
        let program = PlacedProgram { args: vec![secret.into()], ..PlacedProgram::default() };
        let begin = Begin {
            program: Some(program),
            silence_ms: 0,
            grace_ms: 0,
            close_ms: 0,
            term_ms: 0,
            resident: None,
            sha256: None,
        };
        let mut out = Outgoing::default();
        out.push(Kind::Data(Stream::In), b"early");
        out.begin(&begin).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        out.write(&writer).unwrap();
        let mut incoming = Incoming::default();
        incoming.read(&reader).unwrap();
        let (kind, range) = incoming.next().unwrap().unwrap();
        assert_eq!(kind, Kind::Begin);
        assert!(memchr::memmem::find(incoming.bytes(range.clone()), secret.as_bytes()).is_some());
        incoming.erase(range);
        let (kind, range) = incoming.next().unwrap().unwrap();
        assert_eq!((kind, incoming.bytes(range)), (Kind::Data(Stream::In), &b"early"[..]));
        for buffer in [&out.buffer, &incoming.buffer] {
            assert_eq!(memchr::memmem::find(buffer, secret.as_bytes()), None);
        }
    }
}
