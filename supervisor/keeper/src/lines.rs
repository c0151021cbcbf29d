//! Splits an agent's output into lines.
//!
//! A line above the limit keeps its first bytes and the number of dropped bytes. The splitter uses at most the limit
//! and one block of memory, and almost none while the agent is silent.

use std::io;
use std::os::fd::AsFd;

use crate::wait::{self, Read};

/// Block size in bytes for an agent with little output.
const SMALL: usize = 4 << 10;
/// Block size in bytes for an agent with much output. It equals the capacity of the widened pipe.
const LARGE: usize = 256 << 10;

/// Length of a read in bytes of an agent that prints continuously.
const MUCH: usize = 8 << 10;

/// One line without its newline, or the rest at the end of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) text: &'a [u8],
    /// Position of the line in [`Lines::block`].
    pub(crate) at: usize,
    /// Number of bytes dropped from the end of the line.
    pub(crate) cut: u64,
}

/// Line splitter of one stream.
#[derive(Debug)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    filled: usize,
    /// See [`Lines::is_full`].
    full: bool,
    /// Whether the last read returned at least [`MUCH`] bytes, so that the buffer is kept for the next read.
    much: bool,
    /// Buffer position before which there is no newline.
    searched: usize,
    /// Maximum number of kept bytes of a line.
    limit: usize,
    /// Number of bytes already dropped from the first line in the buffer.
    dropped: u64,
}

impl Lines {
    pub(crate) fn new(limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(1);
        Self { buffer: Vec::new(), filled: 0, full: false, much: false, searched: 0, limit, dropped: 0 }
    }

    /// Reads with one read(2).
    pub(crate) fn read(&mut self, from: impl AsFd) -> io::Result<Read> {
        self.make_room();
        let read = wait::read(from, &mut self.buffer[self.filled..])?;
        if let Read::Some(n) = read {
            self.filled += n;
            self.full = self.filled == self.buffer.len();
            self.much = self.full || n >= MUCH;
        } else if self.filled == 0 {
            self.buffer = Vec::new();
        }
        Ok(read)
    }

    /// Reports whether the last read filled the buffer, so that more output is probably available.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Resizes the buffer. It grows while reads fill it, and for a long line.
    fn make_room(&mut self) {
        let length = match self.buffer.len() {
            0 => SMALL,
            length if self.filled > length / 2 => length * 2,
            length if self.full && length < LARGE => (length * 4).min(LARGE),
            // A long line was consumed: shrink the buffer.
            length if length > 2 * LARGE && self.filled < LARGE / 2 => LARGE,
            length => length,
        };
        if length != self.buffer.len() {
            self.buffer.resize(length, 0);
            self.buffer.shrink_to_fit();
        }
    }

    /// Returns the complete lines; with `rest`, also the incomplete last line. [`Lines::consume`] removes them.
    pub(crate) fn pieces(&self, rest: bool) -> Pieces<'_> {
        Pieces { lines: self, start: 0, search: self.searched, dropped: self.dropped, rest }
    }

    /// Returns the bytes of all complete lines, with their newlines; with `rest`, also those of the incomplete last
    /// line.
    pub(crate) fn block(&self, rest: bool) -> &[u8] {
        &self.buffer[..if rest { self.filled } else { self.complete() }]
    }

    /// Returns the number of bytes that [`Lines::consume`] removes, with those that were dropped from a long line.
    pub(crate) fn consumed(&self, rest: bool) -> u64 {
        let complete = if rest { self.filled } else { self.complete() };
        if complete > 0 { complete as u64 + self.dropped } else { 0 }
    }

    /// Returns the end of the last complete line.
    fn complete(&self) -> usize {
        let newline = memchr::memrchr(b'\n', &self.buffer[self.searched..self.filled]);
        newline.map_or(0, |at| self.searched + at + 1)
    }

    /// Removes everything up to the last newline; with `rest`, removes all bytes.
    pub(crate) fn consume(&mut self, rest: bool) {
        let complete = if rest { self.filled } else { self.complete() };
        if complete > 0 {
            self.buffer.copy_within(complete..self.filled, 0);
            self.filled -= complete;
            self.dropped = 0;
        }
        if let Some(over) = self.filled.checked_sub(self.limit) {
            self.dropped += over as u64;
            self.filled = self.limit;
        }
        self.searched = self.filled;
        if self.filled == 0 && !self.much && self.buffer.len() > SMALL {
            self.buffer = Vec::new();
        }
    }
}

/// Iterator of [`Lines::pieces`].
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    lines: &'a Lines,
    start: usize,
    search: usize,
    dropped: u64,
    rest: bool,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        let Lines { buffer, filled, limit, .. } = self.lines;
        let newline = memchr::memchr(b'\n', &buffer[self.search..*filled]).map(|at| self.search + at);
        let end = match newline {
            Some(newline) => newline,
            None if self.rest && self.start < *filled => *filled,
            None => return None,
        };
        let line = &buffer[self.start..end];
        let text = &line[..line.len().min(*limit)];
        let cut = self.dropped + (line.len() - text.len()) as u64;
        let at = self.start;
        self.start = (end + 1).min(*filled);
        self.search = self.start;
        self.dropped = 0;
        Some(Piece { text, at, cut })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    type Split = Vec<(Vec<u8>, u64)>;

    /// Returns the lines that result from writing the bytes in portions of this length.
    fn split(bytes: &[u8], portions: &[usize], limit: u64) -> Split {
        let (reader, mut writer) = std::io::pipe().unwrap();
        crate::spawn::nonblocking(&reader).unwrap();
        let (mut lines, mut got, mut at) = (Lines::new(limit), Split::new(), 0);
        let mut portions = portions.iter().cycle();
        while at < bytes.len() {
            let end = (at + portions.next().unwrap()).min(bytes.len());
            writer.write_all(&bytes[at..end]).unwrap();
            at = end;
            while let Read::Some(_) = lines.read(&reader).unwrap() {
                got.extend(lines.pieces(false).map(|piece| (piece.text.to_vec(), piece.cut)));
                lines.consume(false);
                assert!(lines.filled as u64 <= limit);
            }
        }
        got.extend(lines.pieces(true).map(|piece| (piece.text.to_vec(), piece.cut)));
        lines.consume(true);
        assert_eq!(lines.pieces(true).next(), None);
        got
    }

    fn expected(bytes: &[u8], limit: u64) -> Split {
        let mut lines: Vec<_> = bytes.split(|byte| *byte == b'\n').collect();
        if lines.last().is_some_and(|last| last.is_empty()) {
            lines.pop();
        }
        let cut = |line: &[u8]| line.len().min(usize::try_from(limit).unwrap());
        lines.iter().map(|line| (line[..cut(line)].to_vec(), (line.len() - cut(line)) as u64)).collect()
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_the_size_of_reads(
            bytes in proptest::collection::vec(prop_oneof![1 => Just(b'\n'), 6 => any::<u8>()], 0..400),
            portions in proptest::collection::vec(1_usize..60, 1..10),
            limit in prop_oneof![1_u64..12, Just(10_000)],
        ) {
            prop_assert_eq!(split(&bytes, &portions, limit), expected(&bytes, limit));
        }
    }

    #[test]
    fn a_line_of_megabytes_is_whole_and_one_over_the_limit_is_cut() {
        let line = vec![b'x'; 3 << 20];
        let bytes = [&line[..], b"\nshort\n"].concat();
        let portions = [40_000];
        assert_eq!(split(&bytes, &portions, 4 << 20), [(line.clone(), 0), (b"short".to_vec(), 0)]);
        assert_eq!(split(&bytes, &portions, 1000), [(line[..1000].to_vec(), (3 << 20) - 1000), (b"short".to_vec(), 0)]);
    }
}
