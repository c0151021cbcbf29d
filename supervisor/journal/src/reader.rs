//! Reader of a journal from a cursor.
//!
//! Each reader has its own file descriptor and offset. Any number of readers work concurrently with the writer, each
//! at its own speed. A reader at the end of the file holds almost no memory. Its buffer grows while it catches up,
//! and for a line longer than the buffer.
//!
//! **From segment to segment.** At the end of the current segment, the reader checks whether that segment is still
//! current. If not, the segment is closed: no more records are written to it. The reader then reads the file to its
//! end and continues with the segment that begins with the next record.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::line::Parts;
use crate::scan::{self, Found};
use crate::segments::{self, Current, Segments};
use crate::{JOURNAL, line};

/// Buffer size in bytes of a reader at the end of the journal.
const SMALL: usize = 4 << 10;
/// Buffer size in bytes of a reader that catches up.
const LARGE: usize = 512 << 10;
/// Number of attempts to take a consistent snapshot while another process removes segments.
pub(crate) const ATTEMPTS: u32 = 100;

/// Error of a [`Reader`].
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot open the journal {path:?}")]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot read the journal {path:?}")]
    Read { path: PathBuf, source: io::Error },
    /// [`crate::retain`] removed the next record.
    #[error("the records before seq {first} were removed from the journal in {directory:?}")]
    Gone { directory: PathBuf, first: u64 },
    /// A record is missing or appears twice.
    #[error("the journal {path:?} has record {found} where record {expected} should be")]
    Gap { path: PathBuf, expected: u64, found: u64 },
    #[error("the journal {path:?} has a line at byte {offset} that is not a record")]
    Corrupt { path: PathBuf, offset: u64 },
}

/// Line of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// `seq` of the record.
    pub seq: u64,
    /// The line's bytes without the newline.
    pub bytes: &'a [u8],
}

impl<'a> Line<'a> {
    /// Splits the line into its parts without parsing them. Returns `None` if the line does not have the exact form
    /// that a [`Writer`](crate::Writer) produces; it can still be a valid record.
    pub fn parts(&self) -> Option<Parts<'a>> {
        line::parts(self.bytes)
    }

    /// Returns the line's bytes after its `seq`: the time, the kind and the data.
    pub fn after_seq(&self) -> &'a [u8] {
        line::after_seq(self.bytes)
    }
}

/// Reader of a journal from a cursor; see the module comment.
#[derive(Debug)]
pub struct Reader {
    directory: PathBuf,
    file: File,
    path: PathBuf,
    /// Whether the segment is closed, so that no more records are written to the file.
    complete: bool,
    /// File offset up to which the file was read into the buffer.
    offset: u64,
    buffer: Vec<u8>,
    /// Start of the bytes in the buffer that were read and not yet returned.
    start: usize,
    filled: usize,
    /// Buffer position before which there is no newline in the unreturned bytes.
    searched: usize,
    /// `seq` of the last record returned or skipped.
    last: u64,
    /// `seq` up to which the reader skips records.
    after: u64,
    /// Whether the reader was at the end of the journal before. Such a reader takes everything new.
    has_caught_up: bool,
}

/// Returns the `seq` of the last complete record, or 0 for an empty journal.
pub fn last_seq(directory: &Path) -> Result<u64, ReadError> {
    retry(directory, || Ok(Tail::of(directory, &Segments::of(directory)?)?.map(|tail| tail.last)))
}

/// Returns the `seq` of the oldest record. An empty journal returns the `seq` of its future first record.
pub fn first_seq(directory: &Path) -> Result<u64, ReadError> {
    Segments::of(directory).map(|segments| segments.first())
}

/// Returns the total size of all segments in bytes.
pub fn size(directory: &Path) -> Result<u64, ReadError> {
    segments::size(directory).map_err(|source| ReadError::Read { path: directory.to_owned(), source })
}

/// Result of the search for the next segment.
enum Next {
    Segment { first: u64, path: PathBuf, file: File, complete: bool },
    NotYet,
}

/// Cursor position that a caller requests.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// After the record with this `seq`.
    After(u64),
    /// Before this many records from the end.
    Last(u64),
}

impl Reader {
    /// Opens a reader whose cursor is after the record `after`.
    ///
    /// 0 means the start of the journal, also if old records were removed. For any other `after`, the next record
    /// must still exist ([`ReadError::Gone`]). If record `after` does not exist yet, the reader returns nothing until
    /// a record with a greater `seq` is written. The position is found by bisection.
    pub fn open(directory: &Path, after: u64) -> Result<Self, ReadError> {
        retry(directory, || Self::open_at(directory, Place::After(after)))
    }

    /// Opens a reader whose cursor is before the last `n` records, or before all records if fewer exist.
    ///
    /// The number of bytes read to find the position depends on the length of those records, not on the length of the
    /// journal.
    pub fn open_last(directory: &Path, n: u64) -> Result<Self, ReadError> {
        retry(directory, || Self::open_at(directory, Place::Last(n)))
    }

    /// Opens a reader at this place. Returns `None` if a segment was removed meanwhile.
    fn open_at(directory: &Path, place: Place) -> Result<Option<Self>, ReadError> {
        let segments = Segments::of(directory)?;
        let first = segments.first();
        let Some(Tail { end, last }) = Tail::of(directory, &segments)? else { return Ok(None) };
        let after = match place {
            Place::After(after) if after > 0 && after < first - 1 => {
                return Err(ReadError::Gone { directory: directory.to_owned(), first });
            }
            Place::After(after) => after,
            Place::Last(n) => last.saturating_sub(n),
        };
        let passed = after.clamp(first - 1, last.max(first - 1));
        let Segments { closed, current } = segments;
        // Reports whether the current segment has the next record, or will have it.
        let in_current = |current: &Current| current.first.map_or(passed >= last, |first| first <= passed + 1);
        let (file, path, begins, complete) = match current {
            Some(current) if in_current(&current) => (current.file, directory.join(JOURNAL), current.first, false),
            _ => {
                let Some(begins) = closed.into_iter().rfind(|begins| *begins <= passed + 1) else { return Ok(None) };
                let path = segments::path(directory, begins);
                let Some(file) = open_existing(&path)? else { return Ok(None) };
                (file, path, Some(begins), true)
            }
        };
        let read = |source| ReadError::Read { path: path.clone(), source };
        let offset = match begins {
            None => 0,
            Some(begins) if passed + 1 == begins => 0,
            Some(_) if !complete && passed >= last => end,
            Some(_) => {
                let end = if complete { file.metadata().map_err(read)?.len() } else { end };
                match scan::first_after(&file, passed, end).map_err(read)? {
                    Found::At(offset) => offset,
                    Found::Corrupt(offset) => return Err(ReadError::Corrupt { path, offset }),
                }
            }
        };
        let buffer = Vec::new();
        let directory = directory.to_owned();
        Ok(Some(Self {
            directory,
            file,
            path,
            complete,
            offset,
            buffer,
            start: 0,
            filled: 0,
            searched: 0,
            last: passed,
            after,
            has_caught_up: false,
        }))
    }

    /// Returns the next record, or `None` if no further record is complete yet. An incomplete line is not a record.
    #[allow(clippy::should_implement_trait, reason = "the line borrows from the reader, which Iterator does not allow")]
    pub fn next(&mut self) -> Result<Option<Line<'_>>, ReadError> {
        let (seq, from, to) = loop {
            let Some(newline) = self.find()? else { return Ok(None) };
            let line = &self.buffer[self.start..newline];
            let Some(seq) = line::seq(line) else { return Err(self.corrupt()) };
            if seq != self.last + 1 {
                return Err(ReadError::Gap { path: self.path.clone(), expected: self.last + 1, found: seq });
            }
            let from = self.start;
            self.start = newline + 1;
            self.searched = self.start;
            self.last = seq;
            if seq > self.after {
                break (seq, from, newline);
            }
        };
        Ok(Some(Line { seq, bytes: &self.buffer[from..to] }))
    }

    /// Returns the next record, but none with a `seq` above `upto`, the last `seq` that the writer has announced.
    ///
    /// The writer can still remove records after `upto`. The reader therefore keeps no buffered bytes for the next
    /// call.
    pub fn next_upto(&mut self, upto: u64) -> Result<Option<Line<'_>>, ReadError> {
        if self.position() >= upto {
            self.discard_buffer();
            return Ok(None);
        }
        self.next()
    }

    /// Returns the `seq` of the last record returned. Before the first record, returns the `seq` that the reader was
    /// opened after.
    pub fn position(&self) -> u64 {
        self.last.max(self.after)
    }

    /// Returns the complete lines of the next records that are in the buffer.
    pub fn ahead(&self) -> &[u8] {
        let bytes = &self.buffer[self.start..self.filled];
        &bytes[..memchr::memrchr(b'\n', bytes).map_or(0, |newline| newline + 1)]
    }

    /// Returns the buffer position of the next newline, and reads as much as that takes.
    fn find(&mut self) -> Result<Option<usize>, ReadError> {
        let mut pieces = false;
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.searched..self.filled]) {
                let newline = self.searched + at;
                if pieces && !self.complete && !self.is_unchanged(newline)? {
                    self.discard_buffer();
                    continue;
                }
                return Ok(Some(newline));
            }
            self.searched = self.filled;
            pieces |= self.filled > self.start;
            if !self.fill()? && !self.advance()? {
                // The writer can remove an incomplete line and write another in its place.
                self.discard_buffer();
                return Ok(None);
            }
        }
    }

    /// Reports whether the file still has the line that was read in several pieces.
    ///
    /// The first piece can come from a record that the writer removed, and the rest from the record in its place.
    fn is_unchanged(&self, newline: usize) -> Result<bool, ReadError> {
        let line = &self.buffer[self.start..=newline];
        let mut offset = self.offset - (self.filled - self.start) as u64;
        let mut again = vec![0; line.len()];
        let mut filled = 0;
        while filled < again.len() {
            let read = scan::read(&self.file, &mut again[filled..], offset);
            let n = read.map_err(|source| ReadError::Read { path: self.path.clone(), source })?;
            if n == 0 {
                return Ok(false);
            }
            filled += n;
            offset += n as u64;
        }
        Ok(again == line)
    }

    /// Reads the next block. Reports whether it had any bytes.
    fn fill(&mut self) -> Result<bool, ReadError> {
        let pending = self.filled - self.start;
        self.make_room(pending);
        let read = scan::read(&self.file, &mut self.buffer[self.filled..], self.offset);
        let n = read.map_err(|source| ReadError::Read { path: self.path.clone(), source })?;
        self.filled += n;
        self.offset += n as u64;
        Ok(n > 0)
    }

    /// Continues at the end of the file. Reports whether there is more to read, in this segment or in the next.
    fn advance(&mut self) -> Result<bool, ReadError> {
        if !self.complete {
            self.complete = !self.is_current()?;
            // Records can have been written between the end of the last read and the close of the segment.
            return Ok(self.complete);
        }
        if self.filled > self.start {
            return Err(self.corrupt());
        }
        match retry(&self.directory, || self.find_next())? {
            Next::NotYet => Ok(false),
            Next::Segment { first, path, file, complete } => {
                (self.file, self.path, self.complete, self.offset) = (file, path, complete, 0);
                self.last = first - 1;
                Ok(true)
            }
        }
    }

    /// Finds the segment after this one. Returns `None` if it was removed or closed meanwhile.
    fn find_next(&self) -> Result<Option<Next>, ReadError> {
        let next = self.last + 1;
        let path = segments::path(&self.directory, next);
        if let Some(file) = open_existing(&path)? {
            return Ok(Some(Next::Segment { first: next, path, file, complete: true }));
        }
        let segments = match Segments::of(&self.directory) {
            Ok(segments) => segments,
            // The whole journal was removed, so no more records follow.
            Err(ReadError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(Some(Next::NotYet));
            }
            Err(error) => return Err(error),
        };
        let first = segments.first();
        // The removed records may all be before the requested cursor.
        let next = if next < first && first - 1 <= self.after { first } else { next };
        let Segments { closed, current } = segments;
        if closed.contains(&next) {
            let path = segments::path(&self.directory, next);
            return Ok(open_existing(&path)?.map(|file| Next::Segment { first: next, path, file, complete: true }));
        }
        let firsts = closed.iter().copied().chain(current.as_ref().and_then(|current| current.first));
        match firsts.filter(|first| *first >= next).min() {
            Some(found) if found == next => {}
            Some(_) if next < first => return Err(ReadError::Gone { directory: self.directory.clone(), first }),
            Some(found) => return Err(ReadError::Gap { path: self.path.clone(), expected: next, found }),
            // The current segment begins earlier: it is this one, or it was created again.
            None if current.as_ref().is_some_and(|current| current.first.is_some()) => return Ok(None),
            None => {}
        }
        let path = self.directory.join(JOURNAL);
        let of = |current: Current| Next::Segment { first: next, path, file: current.file, complete: false };
        Ok(Some(current.map_or(Next::NotYet, of)))
    }

    /// Reports whether the reader's file is the current segment.
    fn is_current(&self) -> Result<bool, ReadError> {
        let read = |source| ReadError::Read { path: self.path.clone(), source };
        let own = self.file.metadata().map_err(read)?;
        match fs::metadata(self.directory.join(JOURNAL)) {
            Ok(current) => Ok((current.dev(), current.ino()) == (own.dev(), own.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(read(source)),
        }
    }

    /// Discards the bytes that were read and not returned, so that they are read again.
    fn discard_buffer(&mut self) {
        self.offset -= (self.filled - self.start) as u64;
        (self.start, self.filled, self.searched) = (0, 0, 0);
        self.buffer = Vec::new();
        self.has_caught_up = true;
    }

    /// Returns the number of bytes in the file that were not read.
    fn new_bytes(&self) -> usize {
        let length = self.file.metadata().map_or(0, |file| file.len());
        usize::try_from(length.saturating_sub(self.offset)).unwrap_or(LARGE)
    }

    /// Moves the unreturned bytes to the front of the buffer and resizes it. The buffer grows while reads fill it,
    /// and for a long line.
    fn make_room(&mut self, pending: usize) {
        let full = self.filled == self.buffer.len() && self.filled > 0;
        self.buffer.copy_within(self.start..self.filled, 0);
        self.searched -= self.start;
        (self.start, self.filled) = (0, pending);
        let length = match self.buffer.len() {
            0 if self.has_caught_up => self.new_bytes().next_multiple_of(SMALL).clamp(SMALL, LARGE),
            0 => SMALL,
            // A long line was returned: shrink the buffer.
            length if length > LARGE && pending < LARGE / 2 => LARGE,
            length if pending > length / 2 => length * 2,
            length if full && length < LARGE => (length * 4).min(LARGE),
            length => length,
        };
        if length != self.buffer.len() {
            self.buffer.resize(length, 0);
            self.buffer.shrink_to_fit();
        }
    }

    fn corrupt(&self) -> ReadError {
        ReadError::Corrupt { path: self.path.clone(), offset: self.offset - (self.filled - self.start) as u64 }
    }
}

/// End of a journal.
#[derive(Debug, Clone, Copy)]
struct Tail {
    /// File offset of the end of the last complete line in the current segment; 0 if there is no such line.
    end: u64,
    /// `seq` of the last record.
    last: u64,
}

impl Tail {
    /// Finds the end of the journal. Returns `None` if a segment was removed meanwhile.
    fn of(directory: &Path, segments: &Segments) -> Result<Option<Self>, ReadError> {
        if let Some(current) = &segments.current {
            let (end, last) = last_line(&current.file, &directory.join(JOURNAL))?;
            match current.first {
                _ if end > 0 => return Ok(Some(Self { end, last })),
                Some(first) => return Ok(Some(Self { end, last: first - 1 })),
                None => {}
            }
        }
        let Some(newest) = segments.closed.last() else { return Ok(Some(Self { end: 0, last: 0 })) };
        let path = segments::path(directory, *newest);
        let Some(file) = open_existing(&path)? else { return Ok(None) };
        Ok(Some(Self { end: 0, last: last_line(&file, &path)?.1 }))
    }
}

/// Repeats `look` until no segment is removed between its start and its end.
fn retry<T>(directory: &Path, mut look: impl FnMut() -> Result<Option<T>, ReadError>) -> Result<T, ReadError> {
    for _ in 0..ATTEMPTS {
        if let Some(found) = look()? {
            return Ok(found);
        }
    }
    Err(removed_too_fast(directory))
}

pub(crate) fn removed_too_fast(directory: &Path) -> ReadError {
    let source = io::Error::other("segments are removed faster than they can be opened");
    ReadError::Open { path: directory.to_owned(), source }
}

/// Opens the segment. Returns `None` if it was removed.
fn open_existing(path: &Path) -> Result<Option<File>, ReadError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ReadError::Open { path: path.to_owned(), source }),
    }
}

/// Returns the offset of the end of the last complete line, and its `seq`.
fn last_line(file: &File, path: &Path) -> Result<(u64, u64), ReadError> {
    let find = || -> io::Result<_> {
        let end = scan::line_start(file, file.metadata()?.len())?;
        if end == 0 {
            return Ok((0, 0, Some(0)));
        }
        let start = scan::line_start(file, end - 1)?;
        Ok((start, end, scan::seq_at(file, start)?))
    };
    let (start, end, seq) = find().map_err(|source| ReadError::Read { path: path.to_owned(), source })?;
    match seq {
        Some(seq) => Ok((end, seq)),
        None => Err(ReadError::Corrupt { path: path.to_owned(), offset: start }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::{Duration, Instant};

    use super::*;

    /// Makes a journal of this many bytes in one segment, and returns its last `seq`. The journal lies on a disk:
    /// beside the test program, or in /var/tmp if another user built the program.
    fn journal(bytes: usize, line: usize) -> (tempfile::TempDir, u64) {
        let beside = std::env::current_exe().unwrap();
        let directory =
            tempfile::tempdir_in(beside.parent().unwrap()).or_else(|_| tempfile::tempdir_in("/var/tmp")).unwrap();
        let mut file = File::create(directory.path().join(JOURNAL)).unwrap();
        let (mut block, mut seq) = (Vec::with_capacity(8 << 20), 0_u64);
        let head = r#","time":"2026-01-01T00:00:00.000000Z","kind":"agent.out","data":""#;
        let text = "x".repeat(line - head.len() - 30);
        let mut written = 0;
        while written < bytes {
            block.clear();
            while block.len() + line < block.capacity() {
                seq += 1;
                block.extend_from_slice(b"{\"seq\":");
                block.extend_from_slice(seq.to_string().as_bytes());
                block.extend_from_slice(head.as_bytes());
                block.extend_from_slice(text.as_bytes());
                block.extend_from_slice(b"\"}\n");
            }
            file.write_all(&block).unwrap();
            written += block.len();
        }
        (directory, seq)
    }

    /// Measures how many bytes are read, and the shortest time, to open a journal before its last 100 records and
    /// read them.
    fn cost(directory: &Path, last: u64) -> (u64, Duration) {
        let mut best = Duration::MAX;
        let before = scan::READ.get();
        let tries = 20;
        for _ in 0..tries {
            let begun = Instant::now();
            let mut reader = Reader::open_last(directory, 100).unwrap();
            let mut expected = last - 100;
            while let Some(line) = reader.next().unwrap() {
                expected += 1;
                assert_eq!(line.seq, expected);
            }
            assert_eq!(expected, last);
            best = best.min(begun.elapsed());
        }
        ((scan::READ.get() - before) / tries, best)
    }

    #[test]
    fn a_record_removed_during_a_read_leaves_no_bytes_in_its_replacement() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(JOURNAL);
        let first = "{\"seq\":1,\"time\":\"2026-01-01T00:00:00.000000Z\",\"kind\":\"a\",\"data\":1}\n";
        let (torn, whole) = (first.replace("\"a\"", "\"torn\""), first.replace(":1", ":2"));
        let torn = torn.replace(":1", ":2");
        std::fs::write(&path, format!("{first}{}", &torn[..torn.len() - 9])).unwrap();
        let mut reader = Reader::open(directory.path(), 0).unwrap();
        assert_eq!(reader.next().unwrap().map(|line| line.seq), Some(1));
        // The buffer has the first part of the record when the writer removes it and writes another.
        std::fs::write(&path, format!("{first}{whole}")).unwrap();
        assert_eq!(reader.next().unwrap().map(|line| line.bytes.to_vec()), Some(whole.trim_end().as_bytes().to_vec()));
        assert_eq!(reader.next().unwrap(), None);
    }

    #[test]
    fn the_last_hundred_records_cost_equally_much_in_a_megabyte_and_a_gigabyte() {
        for (line, small, large) in [(300, 1 << 20, 1 << 30), (100_000, 16 << 20, 256 << 20)] {
            let ((small, few), (large, many)) = (journal(small, line), journal(large, line));
            let ((small_bytes, small_time), (large_bytes, large_time)) =
                (cost(small.path(), few), cost(large.path(), many));
            let wanted = 100 * line as u64;
            let _ = writeln!(
                std::io::stderr(),
                "the last {wanted} bytes: {small_bytes} read in {small_time:?}, in the large journal {large_bytes} in \
                 {large_time:?}"
            );
            assert!(large_bytes < 3 * wanted + (512 << 10), "{large_bytes} bytes were read to give {wanted}");
            assert!(large_time < small_time * 5, "{large_time:?} is not {small_time:?}");
        }
    }
}
