//! A cursor into a journal.
//!
//! It has a descriptor and an offset of its own, so any number read at once, each at its own speed, beside the writer. At the
//! end of the file it holds next to no memory; it grows while it is behind, and for a line that is longer than its block.
//!
//! **From segment to segment.** At the end of the current segment it looks whether that is the current one still. Once it is not, nothing
//! is written to it any more: the descriptor is read to the end, and the next segment is the one that begins with the next record.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::line::Parts;
use crate::scan::{self, Found};
use crate::segments::{self, Current, Segments};
use crate::{JOURNAL, line};

/// The buffer of a reader that follows.
const SMALL: usize = 4 << 10;
/// The buffer of a reader that is behind.
const LARGE: usize = 128 << 10;
/// How often it is looked again when segments are removed faster than they can be opened.
pub(crate) const LOOKS: u32 = 100;

/// Why a journal cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot open the journal {path:?}")]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot read the journal {path:?}")]
    Read { path: PathBuf, source: io::Error },
    /// What would come next was removed ([`crate::retain`]).
    #[error("the records before {first} of the journal in {directory:?} are not kept any more")]
    Gone { directory: PathBuf, first: u64 },
    /// A record is missing or stands twice.
    #[error("the journal {path:?} has record {found} where record {expected} should be")]
    Gap { path: PathBuf, expected: u64, found: u64 },
    #[error("the journal {path:?} has a line at byte {offset} that is not a record")]
    Corrupt { path: PathBuf, offset: u64 },
}

/// One record's line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    pub seq: u64,
    /// Without the newline.
    pub bytes: &'a [u8],
}

impl<'a> Line<'a> {
    /// The line's parts, told by the form that a [`Writer`](crate::Writer) gives it and without reading them; `None` where it has
    /// another form, which may still be a record.
    pub fn parts(&self) -> Option<Parts<'a>> {
        line::parts(self.bytes)
    }
}

/// A cursor; see the module's comment.
#[derive(Debug)]
pub struct Reader {
    directory: PathBuf,
    file: File,
    path: PathBuf,
    /// Nothing is written to the file any more.
    complete: bool,
    /// How far the file is in the buffer.
    offset: u64,
    buffer: Vec<u8>,
    /// What of the buffer is read and not given yet.
    start: usize,
    filled: usize,
    /// Up to here the buffer has no newline.
    searched: usize,
    /// Of the last record given or passed over.
    last: u64,
    /// Records up to here are passed over.
    after: u64,
}

/// The seq of the last complete record, 0 where there is none.
pub fn last_seq(directory: &Path) -> Result<u64, ReadError> {
    again(directory, || Ok(Tail::of(directory, &Segments::of(directory)?)?.map(|tail| tail.last)))
}

/// The seq of the first record that is kept; where there is no record, of the one that will be the first.
pub fn first_seq(directory: &Path) -> Result<u64, ReadError> {
    Segments::of(directory).map(|segments| segments.first())
}

/// How many bytes the journal has, all its segments together.
pub fn size(directory: &Path) -> Result<u64, ReadError> {
    segments::size(directory).map_err(|source| ReadError::Read { path: directory.to_owned(), source })
}

/// What follows a segment.
enum Next {
    Segment { first: u64, path: PathBuf, file: File, complete: bool },
    NotYet,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    After(u64),
    Last(u64),
}

impl Reader {
    /// A cursor behind the record `after`. 0 is the beginning, whatever of it is kept; behind any other record the next one must be
    /// kept ([`ReadError::Gone`]). One that is not there yet is waited for: nothing is given until a record with a greater seq is
    /// written. The place is found by bisection.
    pub fn open(directory: &Path, after: u64) -> Result<Self, ReadError> {
        again(directory, || Self::place(directory, Place::After(after)))
    }

    /// A cursor before the last `n` records, or those that are kept. What it reads to find the place follows from how long those records
    /// are, and not from how long the journal is.
    pub fn open_last(directory: &Path, n: u64) -> Result<Self, ReadError> {
        again(directory, || Self::place(directory, Place::Last(n)))
    }

    /// `None` where a segment was removed meanwhile.
    fn place(directory: &Path, place: Place) -> Result<Option<Self>, ReadError> {
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
        let Segments { aside, current } = segments;
        // Where the next record is or will be.
        let in_current = |current: &Current| current.first.map_or(passed >= last, |first| first <= passed + 1);
        let (file, path, begins, complete) = match current {
            Some(current) if in_current(&current) => (current.file, directory.join(JOURNAL), current.first, false),
            _ => {
                let Some(begins) = aside.into_iter().rfind(|begins| *begins <= passed + 1) else { return Ok(None) };
                let path = segments::path(directory, begins);
                let Some(file) = opened(&path)? else { return Ok(None) };
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
        let (start, filled, searched) = (0, 0, 0);
        Ok(Some(Self { directory, file, path, complete, offset, buffer, start, filled, searched, last: passed, after }))
    }

    /// The next record; `None` where there is none yet. A line that is being written is not a record.
    #[allow(clippy::should_implement_trait, reason = "what it gives is borrowed from it, which no Iterator can do")]
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

    /// The next record, unless it is behind `upto`: how far the journal's writer has announced it. What is behind that may be taken
    /// back yet, so nothing of it is held over to the next call.
    pub fn next_upto(&mut self, upto: u64) -> Result<Option<Line<'_>>, ReadError> {
        if self.position() >= upto {
            self.forget();
            return Ok(None);
        }
        self.next()
    }

    /// The seq of the last record given; before the first, the one it was opened behind.
    pub fn position(&self) -> u64 {
        self.last.max(self.after)
    }

    /// Where the next newline is in the buffer, after reading as much as that takes.
    fn find(&mut self) -> Result<Option<usize>, ReadError> {
        let mut pieces = false;
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.searched..self.filled]) {
                let newline = self.searched + at;
                if pieces && !self.complete && !self.stands(newline)? {
                    self.forget();
                    continue;
                }
                return Ok(Some(newline));
            }
            self.searched = self.filled;
            pieces |= self.filled > self.start;
            if !self.fill()? && !self.go_on()? {
                // A line that does not end may be taken back and another written in its place.
                self.forget();
                return Ok(None);
            }
        }
    }

    /// Whether the line that was read in pieces is one: the first may be of a record that was taken back, and the rest of the one that was
    /// written in its place.
    fn stands(&self, newline: usize) -> Result<bool, ReadError> {
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

    /// Reads some more; says whether there was any.
    fn fill(&mut self) -> Result<bool, ReadError> {
        let pending = self.filled - self.start;
        self.make_room(pending);
        let read = scan::read(&self.file, &mut self.buffer[self.filled..], self.offset);
        let n = read.map_err(|source| ReadError::Read { path: self.path.clone(), source })?;
        self.filled += n;
        self.offset += n as u64;
        Ok(n > 0)
    }

    /// At the end of the file: says whether there is more to read, here or in the next segment.
    fn go_on(&mut self) -> Result<bool, ReadError> {
        if !self.complete {
            self.complete = !self.is_current()?;
            // What was written before it was put aside may have come after the end was seen.
            return Ok(self.complete);
        }
        if self.filled > self.start {
            return Err(self.corrupt());
        }
        match again(&self.directory, || self.look_for_next())? {
            Next::NotYet => Ok(false),
            Next::Segment { first, path, file, complete } => {
                (self.file, self.path, self.complete, self.offset) = (file, path, complete, 0);
                self.last = first - 1;
                Ok(true)
            }
        }
    }

    /// The segment behind this one; `None` where it was removed or put aside meanwhile.
    fn look_for_next(&self) -> Result<Option<Next>, ReadError> {
        let next = self.last + 1;
        let path = segments::path(&self.directory, next);
        if let Some(file) = opened(&path)? {
            return Ok(Some(Next::Segment { first: next, path, file, complete: true }));
        }
        let segments = match Segments::of(&self.directory) {
            Ok(segments) => segments,
            // The whole journal is gone: nothing more will come.
            Err(ReadError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(Some(Next::NotYet));
            }
            Err(error) => return Err(error),
        };
        let first = segments.first();
        // What was removed may be nothing that is waited for.
        let next = if next < first && first - 1 <= self.after { first } else { next };
        let Segments { aside, current } = segments;
        if aside.contains(&next) {
            let path = segments::path(&self.directory, next);
            return Ok(opened(&path)?.map(|file| Next::Segment { first: next, path, file, complete: true }));
        }
        let firsts = aside.iter().copied().chain(current.as_ref().and_then(|current| current.first));
        match firsts.filter(|first| *first >= next).min() {
            Some(found) if found == next => {}
            Some(_) if next < first => return Err(ReadError::Gone { directory: self.directory.clone(), first }),
            Some(found) => return Err(ReadError::Gap { path: self.path.clone(), expected: next, found }),
            // What is there begins before: it is this one, or was begun again.
            None if current.as_ref().is_some_and(|current| current.first.is_some()) => return Ok(None),
            None => {}
        }
        let path = self.directory.join(JOURNAL);
        let of = |current: Current| Next::Segment { first: next, path, file: current.file, complete: false };
        Ok(Some(current.map_or(Next::NotYet, of)))
    }

    /// Whether the file is the one that is written to.
    fn is_current(&self) -> Result<bool, ReadError> {
        let read = |source| ReadError::Read { path: self.path.clone(), source };
        let own = self.file.metadata().map_err(read)?;
        match fs::metadata(self.directory.join(JOURNAL)) {
            Ok(current) => Ok((current.dev(), current.ino()) == (own.dev(), own.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(read(source)),
        }
    }

    /// Lets go of what was read and not given; it is read again.
    fn forget(&mut self) {
        self.offset -= (self.filled - self.start) as u64;
        (self.start, self.filled, self.searched) = (0, 0, 0);
        self.buffer = Vec::new();
    }

    /// Moves what is pending to the front, and sizes the buffer: the block grows while reads fill it, and for a long line.
    fn make_room(&mut self, pending: usize) {
        let full = self.filled == self.buffer.len() && self.filled > 0;
        self.buffer.copy_within(self.start..self.filled, 0);
        self.searched -= self.start;
        (self.start, self.filled) = (0, pending);
        let length = match self.buffer.len() {
            0 => SMALL,
            // A long line lies behind.
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

/// Where a journal ends.
#[derive(Debug, Clone, Copy)]
struct Tail {
    /// Where the last complete line of the current segment ends; 0 where it has none, or there is none.
    end: u64,
    last: u64,
}

impl Tail {
    /// `None` where a segment was removed meanwhile.
    fn of(directory: &Path, segments: &Segments) -> Result<Option<Self>, ReadError> {
        if let Some(current) = &segments.current {
            let (end, last) = last_line(&current.file, &directory.join(JOURNAL))?;
            match current.first {
                _ if end > 0 => return Ok(Some(Self { end, last })),
                Some(first) => return Ok(Some(Self { end, last: first - 1 })),
                None => {}
            }
        }
        let Some(newest) = segments.aside.last() else { return Ok(Some(Self { end: 0, last: 0 })) };
        let path = segments::path(directory, *newest);
        let Some(file) = opened(&path)? else { return Ok(None) };
        Ok(Some(Self { end: 0, last: last_line(&file, &path)?.1 }))
    }
}

/// Looks until what was seen at the beginning is there at the end.
fn again<T>(directory: &Path, mut look: impl FnMut() -> Result<Option<T>, ReadError>) -> Result<T, ReadError> {
    for _ in 0..LOOKS {
        if let Some(found) = look()? {
            return Ok(found);
        }
    }
    Err(removed_too_fast(directory))
}

pub(crate) fn removed_too_fast(directory: &Path) -> ReadError {
    let source = io::Error::other("its segments are removed faster than they can be opened");
    ReadError::Open { path: directory.to_owned(), source }
}

/// The segment; `None` where it was removed.
fn opened(path: &Path) -> Result<Option<File>, ReadError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ReadError::Open { path: path.to_owned(), source }),
    }
}

/// Where the last complete line ends, and its seq.
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

    /// Makes a journal of this many bytes in one segment, and returns its last seq. The journal lies on a disk: beside the test
    /// program, or in /var/tmp where another user has built the program.
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

    /// What it takes to open a journal before its last hundred records and to read them: bytes, and the shortest time of some.
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
    fn a_record_that_was_taken_back_while_it_was_read_leaves_nothing_in_the_one_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(JOURNAL);
        let first = "{\"seq\":1,\"time\":\"2026-01-01T00:00:00.000000Z\",\"kind\":\"a\",\"data\":1}\n";
        let (torn, whole) = (first.replace("\"a\"", "\"torn\""), first.replace(":1", ":2"));
        let torn = torn.replace(":1", ":2");
        std::fs::write(&path, format!("{first}{}", &torn[..torn.len() - 9])).unwrap();
        let mut reader = Reader::open(directory.path(), 0).unwrap();
        assert_eq!(reader.next().unwrap().map(|line| line.seq), Some(1));
        // As far as it is there it is in the buffer when it is taken back and another comes.
        std::fs::write(&path, format!("{first}{whole}")).unwrap();
        assert_eq!(reader.next().unwrap().map(|line| line.bytes.to_vec()), Some(whole.trim_end().as_bytes().to_vec()));
        assert_eq!(reader.next().unwrap(), None);
    }

    #[test]
    fn the_last_hundred_records_of_a_gigabyte_cost_what_those_of_a_megabyte_do() {
        for (line, small, large) in [(300, 1 << 20, 1 << 30), (100_000, 16 << 20, 256 << 20)] {
            let ((small, few), (large, many)) = (journal(small, line), journal(large, line));
            let ((small_bytes, small_time), (large_bytes, large_time)) =
                (cost(small.path(), few), cost(large.path(), many));
            let wanted = 100 * line as u64;
            let _ = writeln!(
                std::io::stderr(),
                "the last {wanted} bytes: {small_bytes} read in {small_time:?}, of the large one {large_bytes} in {large_time:?}"
            );
            assert!(large_bytes < 3 * wanted + (512 << 10), "{large_bytes} bytes were read to give {wanted}");
            assert!(large_time < small_time * 5, "{large_time:?} is not {small_time:?}");
        }
    }
}
