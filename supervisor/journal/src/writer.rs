//! The one writer of a journal.
//!
//! It knows where its last complete record ends and writes there, so that a failed write leaves nothing that it does not take
//! back before it writes again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde_json::value::RawValue;

use crate::repair::{self, Repair};
use crate::{JOURNAL, LOCK, TORN, line};

/// What of the formatting buffer is kept between appends, bytes.
const KEPT: usize = 16 << 10;

/// Why a journal cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A keeper or a daemon has it.
    #[error("the journal in {directory:?} is held by another process")]
    Held { directory: PathBuf },
    #[error("cannot lock {path:?}")]
    Lock { path: PathBuf, source: io::Error },
    #[error("cannot open the journal {path:?}")]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot repair the end of the journal {path:?}")]
    Repair { path: PathBuf, source: io::Error },
}

/// Why records were not appended. Nothing of them is in the journal.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The disk did not take them: the same append may be tried again.
    #[error("cannot write to the journal {path:?}")]
    Write { path: PathBuf, source: io::Error },
    /// They are written and perhaps not on the disk.
    #[error("cannot bring the journal {path:?} to the disk")]
    Sync { path: PathBuf, source: io::Error },
    /// It would never be accepted.
    #[error("the data of a record of kind {kind:?} has a line break in it")]
    LineBreak { kind: String },
}

/// A record without its seq and time, which the writer gives.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    pub kind: &'a str,
    /// Stands in the line to the byte, so it has no line break.
    pub data: &'a RawValue,
}

/// The one writer; see the module's comment.
#[derive(Debug)]
pub struct Writer {
    file: File,
    path: PathBuf,
    /// Where the last complete record ends.
    end: u64,
    last_seq: u64,
    /// A write failed and what it left could not be cut off yet.
    dirty: bool,
    buffer: Vec<u8>,
    /// Held for its life.
    _lock: Flock<File>,
}

impl Writer {
    /// Opens the journal of the session whose directory this is, creates it (0600) where there is none, and repairs its end. Reads
    /// the last lines only.
    pub fn open(directory: &Path) -> Result<(Self, Repair), OpenError> {
        let lock = lock(directory)?;
        let path = directory.join(JOURNAL);
        let open = |source| OpenError::Open { path: path.clone(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(open)?;
        let length = file.metadata().map_err(open)?.len();
        if length == 0 {
            // The file's name is as much a part of the first record as its bytes.
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(open)?;
        }
        let mending = |source| OpenError::Repair { path: path.clone(), source };
        let (end, last_seq) = repair::last_record(&file, length).map_err(mending)?;
        if end < length {
            repair::cut(&mut file, end, length, &directory.join(TORN)).map_err(mending)?;
        }
        let writer = Self { file, path, end, last_seq, dirty: false, buffer: Vec::new(), _lock: lock };
        Ok((writer, Repair { torn: length - end }))
    }

    /// The seq of the last record, 0 where there is none.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Appends the records with one write(2), and says the seq of the last. After an error none of them is in the journal.
    pub fn append(&mut self, now: Timestamp, records: &[Record<'_>]) -> Result<u64, AppendError> {
        if let Some(record) =
            records.iter().find(|record| memchr::memchr(b'\n', record.data.get().as_bytes()).is_some())
        {
            return Err(AppendError::LineBreak { kind: record.kind.to_owned() });
        }
        self.clean().map_err(|source| self.failed(source))?;
        self.buffer.clear();
        self.buffer.reserve(records.iter().map(line::length).sum());
        let mut seq = self.last_seq;
        for record in records {
            seq += 1;
            line::write(&mut self.buffer, seq, now, record);
        }
        let written = self.file.write_all_at(&self.buffer, self.end);
        let length = self.buffer.len() as u64;
        if self.buffer.capacity() > KEPT {
            self.buffer = Vec::new();
        }
        if let Err(source) = written {
            self.dirty = true;
            // Where this fails too it is done before the next write: until then a reader sees a line that does not end.
            let _ = self.clean();
            return Err(self.failed(source));
        }
        self.end += length;
        self.last_seq = seq;
        Ok(seq)
    }

    /// Returns when the disk has all that was appended (fdatasync).
    pub fn sync(&mut self) -> Result<(), AppendError> {
        self.file.sync_data().map_err(|source| AppendError::Sync { path: self.path.clone(), source })
    }

    fn clean(&mut self) -> io::Result<()> {
        if self.dirty {
            self.file.set_len(self.end)?;
            self.dirty = false;
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> AppendError {
        AppendError::Write { path: self.path.clone(), source }
    }
}

fn lock(directory: &Path) -> Result<Flock<File>, OpenError> {
    let path = directory.join(LOCK);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|source| OpenError::Lock { path: path.clone(), source })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => OpenError::Held { directory: directory.to_owned() },
        errno => OpenError::Lock { path, source: errno.into() },
    })
}
