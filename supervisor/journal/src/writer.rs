//! The one writer of a journal.
//!
//! It knows where its last complete record ends and writes there, so that a failed write leaves nothing that it does not take
//! back before it writes again. A segment that would become too long is put aside first, and a new one begun.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use agentd_fault::Point;
use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde_json::value::RawValue;

use crate::repair::{self, Repair};
use crate::reserve::{self, Need, Reserve};
use crate::{JOURNAL, LOCK, NEXT, line, segments};

/// What of the formatting buffer is kept between appends, bytes.
const KEPT: usize = 16 << 10;

/// How a journal is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The bytes a segment may have before the next one is begun. One append is never divided: a segment with one that is longer is
    /// as long as that.
    pub rotate: u64,
    pub sync: Sync,
}

impl Default for Options {
    fn default() -> Self {
        Self { rotate: 64 << 20, sync: Sync::Asked }
    }
}

/// When the disk must have what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// Whenever the system likes: [`Writer::sync`] does nothing. A crash of the machine may take the last half minute.
    Never,
    /// When [`Writer::sync`] returns.
    Asked,
    /// Before [`Writer::append`] returns.
    Always,
}

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
    /// Of [`Writer::sync`]: they are written and perhaps not on the disk.
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
    directory: PathBuf,
    path: PathBuf,
    options: Options,
    /// The current segment; absent after one was put aside until the next could be begun.
    file: Option<File>,
    reserve: Reserve,
    /// The next segment, made and not in its place yet.
    next: Option<(File, Reserve)>,
    /// The seq of its first record.
    first: u64,
    /// Where its last complete record ends.
    end: u64,
    last_seq: u64,
    /// A write failed and what it left could not be cut off yet.
    dirty: bool,
    /// The disk has not got the segment's name yet.
    unnamed: bool,
    /// The disk may not have all of the current segment.
    unsynced: bool,
    /// Nor of these, which were put aside, by their first seq.
    unsynced_aside: Vec<u64>,
    buffer: Vec<u8>,
    /// Held for its life.
    _lock: Flock<File>,
}

impl Writer {
    /// Opens the journal of the session whose directory this is, creates it (0600) where there is none, and repairs it. Reads
    /// the last lines of each segment only.
    pub fn open(directory: &Path, options: Options) -> Result<(Self, Repair), OpenError> {
        let lock = lock(directory)?;
        let path = directory.join(JOURNAL);
        let repairing = |source| OpenError::Repair { path: path.clone(), source };
        let (mut repair, before) = repair::aside(directory).map_err(repairing)?;
        let newest_aside = segments::list(directory).map_err(repairing)?.pop();
        let mut writer = Self {
            directory: directory.to_owned(),
            path: path.clone(),
            options,
            file: None,
            reserve: Reserve::default(),
            next: None,
            first: 0,
            end: 0,
            last_seq: before.unwrap_or(0),
            dirty: false,
            unnamed: true,
            // What another writer left may not be on the disk.
            unsynced: true,
            unsynced_aside: newest_aside.into_iter().collect(),
            buffer: Vec::new(),
            _lock: lock,
        };
        let current = repair::current(directory, before, &mut repair).map_err(repairing)?;
        if let Some(repair::Current { file, first, end, last_seq }) = current {
            writer.file = Some(file);
            writer.unnamed = end == 0;
            (writer.first, writer.end) = (first, end);
            writer.last_seq = last_seq;
        }
        writer.begin().map_err(|source| OpenError::Open { path, source })?;
        Ok((writer, repair))
    }

    /// The seq of the last record, 0 where there is none.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Appends the records with one write(2), and says the seq of the last. After an error none of them is in the journal.
    pub fn append(&mut self, now: Timestamp, records: &[Record<'_>]) -> Result<u64, AppendError> {
        self.append_as(Need::Ordinary, now, records)
    }

    /// The same, where more than an ordinary append may take of the room that is kept for a session's last records.
    pub fn append_as(&mut self, need: Need, now: Timestamp, records: &[Record<'_>]) -> Result<u64, AppendError> {
        if let Some(record) =
            records.iter().find(|record| memchr::memchr(b'\n', record.data.get().as_bytes()).is_some())
        {
            return Err(AppendError::LineBreak { kind: record.kind.to_owned() });
        }
        self.buffer.clear();
        self.buffer.reserve(records.iter().map(line::length).sum());
        let (mut seq, stamp) = (self.last_seq, line::stamp(now));
        for record in records {
            seq += 1;
            line::write(&mut self.buffer, seq, &stamp, record);
        }
        let buffer = std::mem::take(&mut self.buffer);
        let written = self.write(&buffer, need);
        if buffer.capacity() <= KEPT {
            self.buffer = buffer;
        }
        match written {
            Ok(()) => {
                self.last_seq = seq;
                Ok(seq)
            }
            Err(source) => {
                // Where this fails too it is done before the next write: until then a reader sees a line that does not end.
                let _ = self.clean();
                Err(AppendError::Write { path: self.path.clone(), source })
            }
        }
    }

    /// Whether an ordinary append would find room now. Writes nothing.
    pub fn probe(&mut self) -> io::Result<()> {
        self.clean()?;
        agentd_fault::at(Point::JournalAppendBefore)?;
        self.begin()?;
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        self.reserve.make(file, self.end, Need::Ordinary)
    }

    /// Returns when the disk has all that was appended (fdatasync), unless it is never to be asked.
    pub fn sync(&mut self) -> Result<(), AppendError> {
        if self.options.sync == Sync::Never || (!self.unsynced && self.unsynced_aside.is_empty()) {
            return Ok(());
        }
        self.bring().map_err(|source| AppendError::Sync { path: self.path.clone(), source })
    }

    fn write(&mut self, bytes: &[u8], need: Need) -> io::Result<()> {
        self.clean()?;
        agentd_fault::at(Point::JournalAppendBefore)?;
        let length = bytes.len() as u64;
        let is_full = self.file.is_some() && self.end > 0 && self.end + length > self.options.rotate;
        // The reserve is the current segment's: what may use it makes that one longer.
        if is_full && need == Need::Ordinary {
            self.put_aside(length)?;
        }
        self.begin()?;
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        self.reserve.make(file, self.end + length, need)?;
        // Whatever fails from here on, what is behind the end is not the journal's.
        self.dirty = true;
        file.write_all_at(bytes, self.end)?;
        self.unsynced = true;
        agentd_fault::at(Point::JournalAppendAfter)?;
        if self.options.sync == Sync::Always {
            // What a failed fdatasync did not bring to the disk no later one does: it is taken back, and written again when it
            // is tried again.
            self.bring()?;
        }
        self.dirty = false;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Gives the current segment the name of one that is full. Before that the next one is there, with its reserve: until then the
    /// current one keeps its own.
    fn put_aside(&mut self, length: u64) -> io::Result<()> {
        agentd_fault::at(Point::JournalRotateBefore)?;
        let mut new = OpenOptions::new();
        let new = new.read(true).write(true).create(true).truncate(true).mode(0o600).open(self.directory.join(NEXT))?;
        let mut room = Reserve::default();
        room.make(&new, length, Need::Ordinary)?;
        fs::rename(&self.path, segments::path(&self.directory, self.first))?;
        self.next = Some((new, room));
        if self.unsynced && self.options.sync != Sync::Never {
            self.unsynced_aside.push(self.first);
        }
        if let Some(full) = self.file.take() {
            // What is not given back here is not lost: it is a part of the segment, and goes with it.
            let _ = reserve::release(&full);
        }
        self.unnamed = true;
        agentd_fault::at(Point::JournalRotateRenamed)
    }

    /// Begins a segment where there is none.
    fn begin(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            let (new, room) = if let Some(next) = self.next.take() {
                if let Err(error) = fs::rename(self.directory.join(NEXT), &self.path) {
                    self.next = Some(next);
                    return Err(error);
                }
                next
            } else {
                let new = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&self.path)?;
                (new, Reserve::default())
            };
            (self.file, self.reserve) = (Some(new), room);
            (self.end, self.unsynced) = (0, false);
        }
        if self.end == 0 {
            self.first = self.last_seq + 1;
        }
        if self.unnamed && self.options.sync != Sync::Never {
            // A file's name is as much a part of its first record as the bytes.
            File::open(&self.directory)?.sync_all()?;
        }
        self.unnamed = false;
        Ok(())
    }

    fn bring(&mut self) -> io::Result<()> {
        agentd_fault::at(Point::JournalSyncBefore)?;
        while let Some(first) = self.unsynced_aside.last() {
            match File::open(segments::path(&self.directory, *first)) {
                Ok(file) => file.sync_data()?,
                // It was old enough to be removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            self.unsynced_aside.pop();
        }
        if let Some(file) = self.file.as_ref().filter(|_| self.unsynced) {
            file.sync_data()?;
        }
        self.unsynced = false;
        Ok(())
    }

    fn clean(&mut self) -> io::Result<()> {
        if let Some(file) = self.file.as_ref().filter(|_| self.dirty)
            && file.metadata()?.len() != self.end
        {
            // This gives back every block behind the end, those of the reserve among them.
            file.set_len(self.end)?;
            self.reserve.forget();
            // Where there is no room for it any more the next ordinary append says so.
            let _ = self.reserve.make(file, self.end, Need::Ordinary);
        }
        self.dirty = false;
        Ok(())
    }
}

/// Brings every record behind `known` to the disk (fdatasync), whoever writes the journal. What stands up to `known` is there already.
pub fn sync_behind(directory: &Path, known: u64) -> Result<(), AppendError> {
    let path = directory.join(JOURNAL);
    let bring = || -> io::Result<()> {
        agentd_fault::at(Point::JournalSyncBefore)?;
        // Opened before the listing: a segment that is put aside meanwhile is on the list or is this one.
        let current = File::open(&path);
        let aside = segments::list(directory)?;
        let mut ends = aside.iter().skip(1).copied().chain([u64::MAX]);
        for first in &aside {
            if ends.next().is_some_and(|next| next > known + 1) {
                sync_file(File::open(segments::path(directory, *first)))?;
            }
        }
        sync_file(current)
    };
    bring().map_err(|source| AppendError::Sync { path: path.clone(), source })
}

/// A file that is not there was put aside or removed.
fn sync_file(file: io::Result<File>) -> io::Result<()> {
    match file {
        Ok(file) => file.sync_data(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Gives back the room that the journal keeps for its last records, where nobody writes it: the session is at rest.
pub fn release(directory: &Path) -> Result<(), OpenError> {
    let _lock = lock(directory)?;
    let path = directory.join(JOURNAL);
    let released = OpenOptions::new().write(true).open(&path).and_then(|file| reserve::release(&file));
    let _ = fs::remove_file(directory.join(NEXT));
    released.map_err(|source| OpenError::Open { path, source })
}

/// Whether a process holds the journal. The question opens, repairs and creates nothing but the lock's file.
pub fn is_held(directory: &Path) -> Result<bool, OpenError> {
    match lock(directory) {
        Ok(_) => Ok(false),
        Err(OpenError::Held { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

pub(crate) fn lock(directory: &Path) -> Result<Flock<File>, OpenError> {
    let path = directory.join(LOCK);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|source| OpenError::Lock { path: path.clone(), source })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => OpenError::Held { directory: directory.to_owned() },
        errno => OpenError::Lock { path, source: errno.into() },
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use serde_json::value::to_raw_value;

    use super::*;
    use crate::reserve::RESERVE;

    #[test]
    fn what_a_failed_write_left_is_cut_off_and_the_reserve_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let (mut writer, _) = Writer::open(directory.path(), Options::default()).unwrap();
        let data = to_raw_value("said").unwrap();
        writer.append(Timestamp::UNIX_EPOCH, &[Record { kind: "agent.noise", data: &data }]).unwrap();
        let path = directory.path().join(JOURNAL);
        let (whole, end) = (fs::read(&path).unwrap(), writer.end);
        // Where a file system can make no reserve there is none afterwards either.
        let has_reserve = || fs::metadata(&path).unwrap().blocks() * 512 >= RESERVE;
        let before = has_reserve();
        // As after a write that the disk took half of.
        writer.dirty = true;
        writer.file.as_ref().unwrap().write_all_at(b"{\"seq\":", end).unwrap();
        writer.clean().unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
        assert_eq!(has_reserve(), before);
        writer.reserve.make(writer.file.as_ref().unwrap(), end, Need::Ordinary).unwrap();
        assert_eq!(has_reserve(), before);
    }
}
