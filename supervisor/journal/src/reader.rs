//! A cursor into a journal.
//!
//! It has a descriptor and an offset of its own, so any number read at once, each at its own speed, beside the writer. At the
//! end of the file it holds next to no memory; it grows while it is behind, and for a line that is longer than its block.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use crate::scan::{self, Found};
use crate::{JOURNAL, line};

/// The buffer of a reader that follows.
const SMALL: usize = 4 << 10;
/// The buffer of a reader that is behind.
const LARGE: usize = 128 << 10;

/// Why a journal cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot open the journal {path:?}")]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot read the journal {path:?}")]
    Read { path: PathBuf, source: io::Error },
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

/// A cursor; see the module's comment.
#[derive(Debug)]
pub struct Reader {
    file: File,
    path: PathBuf,
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
    let (file, path) = open(directory)?;
    Ok(last_line(&file, &path)?.1)
}

impl Reader {
    /// A cursor behind the record `after`; 0 is the beginning. One that is not there yet is waited for: nothing is given until a
    /// record with a greater seq is written. The place is found by bisection.
    pub fn open(directory: &Path, after: u64) -> Result<Self, ReadError> {
        let (file, path) = open(directory)?;
        let (end, last) = last_line(&file, &path)?;
        Self::place(file, path, after, end, last)
    }

    /// A cursor before the last `n` records.
    pub fn open_last(directory: &Path, n: u64) -> Result<Self, ReadError> {
        let (file, path) = open(directory)?;
        let (end, last) = last_line(&file, &path)?;
        Self::place(file, path, last.saturating_sub(n), end, last)
    }

    fn place(mut file: File, path: PathBuf, after: u64, end: u64, last: u64) -> Result<Self, ReadError> {
        let read = |source| ReadError::Read { path: path.clone(), source };
        let offset = match after {
            0 => 0,
            _ if after >= last => end,
            _ => match scan::first_after(&file, after, end).map_err(read)? {
                Found::At(offset) => offset,
                Found::Corrupt(offset) => return Err(ReadError::Corrupt { path, offset }),
            },
        };
        file.seek(SeekFrom::Start(offset)).map_err(read)?;
        Ok(Self { file, path, buffer: Vec::new(), start: 0, filled: 0, searched: 0, last: after.min(last), after })
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

    /// The seq of the last record given; before the first, the one it was opened behind.
    pub fn position(&self) -> u64 {
        self.last.max(self.after)
    }

    /// Where the next newline is in the buffer, after reading as much as that takes.
    fn find(&mut self) -> Result<Option<usize>, ReadError> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.searched..self.filled]) {
                return Ok(Some(self.searched + at));
            }
            self.searched = self.filled;
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Reads some more; says whether there was any.
    fn fill(&mut self) -> Result<bool, ReadError> {
        let pending = self.filled - self.start;
        self.make_room(pending);
        let n = loop {
            match self.file.read(&mut self.buffer[self.filled..]) {
                Ok(n) => break n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ReadError::Read { path: self.path.clone(), source }),
            }
        };
        self.filled += n;
        if n == 0 && pending == 0 {
            self.buffer = Vec::new();
        }
        Ok(n > 0)
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

    fn corrupt(&mut self) -> ReadError {
        let pending = (self.filled - self.start) as u64;
        let offset = self.file.stream_position().map_or(0, |position| position.saturating_sub(pending));
        ReadError::Corrupt { path: self.path.clone(), offset }
    }
}

fn open(directory: &Path) -> Result<(File, PathBuf), ReadError> {
    let path = directory.join(JOURNAL);
    match File::open(&path) {
        Ok(file) => Ok((file, path)),
        Err(source) => Err(ReadError::Open { path, source }),
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
