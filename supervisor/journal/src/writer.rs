//! Writer of a journal. A journal has at most one.
//!
//! The writer knows where its last complete record ends and writes there. Before each write, it removes what a failed
//! write left behind. Before a segment would exceed its size limit, the writer closes it and begins a new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use agentd_fault::Point;
use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde_json::value::RawValue;

use crate::repair::{self, Repair};
use crate::reserve::{self, Reserve, ReserveUse};
use crate::{JOURNAL, LOCK, NEXT, line, segments};

/// Capacity in bytes of the formatting buffer that [`Writer::shrink`] leaves.
const KEPT: usize = 16 << 10;
/// Average length in bytes of records whose data is written from where it is, without a copy.
const LONG: usize = 4 << 10;

/// Number of bytes after which the system begins to write them to the disk. The sync at the end of a turn would else
/// wait for all output of the turn.
const WRITEBACK: u64 = 8 << 20;

/// Options of a [`Writer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Size limit of a segment in bytes. One append is never split, so a single longer append makes a longer segment.
    pub rotate: u64,
    /// When records are synced to the disk.
    pub sync: Sync,
}

impl Default for Options {
    fn default() -> Self {
        Self { rotate: 64 << 20, sync: Sync::OnRequest }
    }
}

/// Policy for syncing records to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// The operating system decides, and [`Writer::sync`] does nothing. A crash of the machine can lose the last 30
    /// s.
    Never,
    /// Before [`Writer::sync`] returns.
    OnRequest,
    /// Before [`Writer::append`] returns.
    Always,
}

/// Error of opening a journal for writing.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, a keeper or a daemon, holds the lock.
    #[error("the journal in {directory:?} is locked by another process")]
    Held { directory: PathBuf },
    #[error("cannot lock {path:?}")]
    Lock { path: PathBuf, source: io::Error },
    #[error("cannot open the journal {path:?}")]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot repair the end of the journal {path:?}")]
    Repair { path: PathBuf, source: io::Error },
}

/// Error of an append or a sync. After a failed append, none of its records are in the journal.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The write failed, for example because the disk is full. The caller may retry the append.
    #[error("cannot write to the journal {path:?}")]
    Write { path: PathBuf, source: io::Error },
    /// [`Writer::sync`] failed. The records are in the file and perhaps not on the disk.
    #[error("cannot sync the journal {path:?} to the disk")]
    Sync { path: PathBuf, source: io::Error },
    /// A retry cannot succeed.
    #[error("cannot append a record of kind {kind:?}: its data contains a line break")]
    LineBreak { kind: String },
}

/// Record to append. The writer adds its `seq` and its time.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Kind of the record, such as `agent.out`.
    pub kind: &'a str,
    /// JSON data, written to the line byte for byte. It must not contain a line break.
    pub data: &'a RawValue,
}

/// Writer of a journal; see the module comment.
#[derive(Debug)]
pub struct Writer {
    directory: PathBuf,
    path: PathBuf,
    options: Options,
    /// Current segment; `None` after it was closed and until the next segment exists.
    file: Option<File>,
    reserve: Reserve,
    /// Next segment, created and not yet renamed to [`JOURNAL`].
    next: Option<(File, Reserve)>,
    /// `seq` of the current segment's first record.
    first: u64,
    /// File offset of the end of the current segment's last complete record.
    end: u64,
    last_seq: u64,
    /// File offset up to which the writeback to the disk has begun.
    written_back: u64,
    /// Whether a failed write may have left bytes after `end`.
    dirty: bool,
    /// Whether the directory entry of the current segment may be missing on the disk.
    name_unsynced: bool,
    /// Whether the current segment may have records that are not on the disk.
    unsynced: bool,
    /// First `seq` of each closed segment that may have records that are not on the disk.
    unsynced_closed: Vec<u64>,
    buffer: Vec<u8>,
    /// Lock that makes this the only writer, held until the writer is dropped.
    _lock: Flock<File>,
}

impl Writer {
    /// Opens and repairs the journal in this session directory, or creates it with mode 0600. The repair reads only
    /// the last lines of each segment.
    pub fn open(directory: &Path, options: Options) -> Result<(Self, Repair), OpenError> {
        let lock = lock(directory)?;
        let path = directory.join(JOURNAL);
        let repairing = |source| OpenError::Repair { path: path.clone(), source };
        let (mut repair, before) = repair::closed(directory).map_err(repairing)?;
        let newest_closed = segments::list(directory).map_err(repairing)?.pop();
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
            written_back: 0,
            dirty: false,
            name_unsynced: true,
            // A previous writer can have left records that are not on the disk.
            unsynced: true,
            unsynced_closed: newest_closed.into_iter().collect(),
            buffer: Vec::new(),
            _lock: lock,
        };
        let current = repair::current(directory, before, &mut repair).map_err(repairing)?;
        if let Some(repair::Current { file, first, end, last_seq }) = current {
            writer.file = Some(file);
            writer.name_unsynced = end == 0;
            (writer.first, writer.end) = (first, end);
            (writer.last_seq, writer.written_back) = (last_seq, end);
        }
        writer.ensure_current().map_err(|source| OpenError::Open { path, source })?;
        Ok((writer, repair))
    }

    /// Returns the `seq` of the last record, or 0 for an empty journal.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Appends the records with one write(2) and returns the `seq` of the last one. After an error, none of them are
    /// in the journal.
    pub fn append(&mut self, now: Timestamp, records: &[Record<'_>]) -> Result<u64, AppendError> {
        self.append_as(ReserveUse::Ordinary, now, records)
    }

    /// Appends the records like [`Writer::append`], with the share of the reserve that `need` allows.
    pub fn append_as(&mut self, need: ReserveUse, now: Timestamp, records: &[Record<'_>]) -> Result<u64, AppendError> {
        if let Some(record) =
            records.iter().find(|record| memchr::memchr(b'\n', record.data.get().as_bytes()).is_some())
        {
            return Err(AppendError::LineBreak { kind: record.kind.to_owned() });
        }
        if line::LARGEST - self.last_seq < records.len() as u64 {
            let source = io::Error::other(format!("no record number is left after {}", self.last_seq));
            return Err(AppendError::Write { path: self.path.clone(), source });
        }
        let length: usize = records.iter().map(line::length).sum();
        let is_long = length / records.len().max(1) >= LONG;
        let (mut buffer, mut heads) = (std::mem::take(&mut self.buffer), Vec::new());
        buffer.clear();
        if !is_long {
            buffer.reserve(length);
        }
        let (mut seq, stamp) = (self.last_seq, line::stamp(now));
        for record in records {
            seq += 1;
            line::begin(&mut buffer, seq, &stamp, record.kind);
            if is_long {
                heads.push(buffer.len());
            } else {
                buffer.extend_from_slice(record.data.get().as_bytes());
            }
            buffer.extend_from_slice(line::END);
        }
        let written = self.write(&mut pieces(&buffer, &heads, records), need);
        self.buffer = buffer;
        match written {
            Ok(()) => {
                self.last_seq = seq;
                Ok(seq)
            }
            Err(source) => {
                // If this fails too, the next write retries it. Until then, readers see an incomplete line.
                let _ = self.undo_failed_write();
                Err(AppendError::Write { path: self.path.clone(), source })
            }
        }
    }

    /// Releases the memory that long appends need. The writer keeps it until then.
    pub fn shrink(&mut self) {
        if self.buffer.capacity() > KEPT {
            self.buffer = Vec::new();
        }
    }

    /// Checks, without writing, that an ordinary append would find disk space now.
    pub fn probe(&mut self) -> io::Result<()> {
        self.undo_failed_write()?;
        agentd_fault::at(Point::JournalAppendBefore)?;
        self.ensure_current()?;
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        self.reserve.ensure(file, self.end, ReserveUse::Ordinary)
    }

    /// Syncs all appended records to the disk with fdatasync(2). Does nothing with [`Sync::Never`].
    pub fn sync(&mut self) -> Result<(), AppendError> {
        if self.options.sync == Sync::Never || (!self.unsynced && self.unsynced_closed.is_empty()) {
            return Ok(());
        }
        self.sync_files().map_err(|source| AppendError::Sync { path: self.path.clone(), source })
    }

    fn write(&mut self, pieces: &mut [IoSlice<'_>], need: ReserveUse) -> io::Result<()> {
        self.undo_failed_write()?;
        agentd_fault::at(Point::JournalAppendBefore)?;
        let length = pieces.iter().map(|piece| piece.len() as u64).sum();
        let is_full = self.file.is_some() && self.end > 0 && self.end + length > self.options.rotate;
        // The reserve belongs to the current segment, so an append that may use it extends that segment.
        if is_full && need == ReserveUse::Ordinary {
            self.close_segment(length)?;
        }
        self.ensure_current()?;
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        self.reserve.ensure(file, self.end + length, need)?;
        // If a later step fails, the bytes after `end` do not belong to the journal.
        self.dirty = true;
        write_all(file, pieces, self.end)?;
        self.unsynced = true;
        agentd_fault::at(Point::JournalAppendAfter)?;
        if self.options.sync == Sync::Always {
            // A later fdatasync does not write what a failed one lost. The append is undone, and a retry writes it
            // again.
            self.sync_files()?;
        }
        self.dirty = false;
        self.end += length;
        self.begin_writeback(WRITEBACK);
        Ok(())
    }

    /// Lets the system write to the disk, if at least this number of bytes are new.
    fn begin_writeback(&mut self, least: u64) {
        if let Some(file) = self.file.as_ref().filter(|_| self.options.sync == Sync::OnRequest)
            && self.end - self.written_back >= least
        {
            reserve::begin_writeback(file, self.written_back, self.end);
            self.written_back = self.end;
        }
    }

    /// Closes the current segment by giving it its final name.
    ///
    /// The next segment and its reserve are created first. If that fails, the current segment keeps its own reserve.
    fn close_segment(&mut self, length: u64) -> io::Result<()> {
        agentd_fault::at(Point::JournalRotateBefore)?;
        let mut new = OpenOptions::new();
        let new = new.read(true).write(true).create(true).truncate(true).mode(0o600).open(self.directory.join(NEXT))?;
        let mut reserve = Reserve::default();
        reserve.ensure(&new, length, ReserveUse::Ordinary)?;
        fs::rename(&self.path, segments::path(&self.directory, self.first))?;
        self.next = Some((new, reserve));
        if self.unsynced && self.options.sync != Sync::Never {
            self.unsynced_closed.push(self.first);
        }
        self.begin_writeback(WRITEBACK / 8);
        if let Some(full) = self.file.take() {
            // Blocks that are not released here remain part of the closed segment, and are freed with it.
            let _ = reserve::release(&full);
        }
        self.name_unsynced = true;
        agentd_fault::at(Point::JournalRotateRenamed)
    }

    /// Begins a segment if there is no current one.
    fn ensure_current(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            let (new, reserve) = if let Some(next) = self.next.take() {
                if let Err(error) = fs::rename(self.directory.join(NEXT), &self.path) {
                    self.next = Some(next);
                    return Err(error);
                }
                next
            } else {
                let new = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&self.path)?;
                (new, Reserve::default())
            };
            (self.file, self.reserve) = (Some(new), reserve);
            (self.end, self.written_back, self.unsynced) = (0, 0, false);
        }
        if self.end == 0 {
            self.first = self.last_seq + 1;
        }
        if self.name_unsynced && self.options.sync != Sync::Never {
            // The first record is safe only when the disk has the file's directory entry too.
            File::open(&self.directory)?.sync_all()?;
        }
        self.name_unsynced = false;
        Ok(())
    }

    fn sync_files(&mut self) -> io::Result<()> {
        agentd_fault::at(Point::JournalSyncBefore)?;
        while let Some(first) = self.unsynced_closed.last() {
            match File::open(segments::path(&self.directory, *first)) {
                Ok(file) => file.sync_data()?,
                // The segment was removed because of its age.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            self.unsynced_closed.pop();
        }
        if let Some(file) = self.file.as_ref().filter(|_| self.unsynced) {
            file.sync_data()?;
        }
        self.unsynced = false;
        Ok(())
    }

    fn undo_failed_write(&mut self) -> io::Result<()> {
        if let Some(file) = self.file.as_ref().filter(|_| self.dirty)
            && file.metadata()?.len() != self.end
        {
            // This also releases every block behind `end`, including the reserve.
            file.set_len(self.end)?;
            self.reserve.reset();
            // If the disk is full now, the next ordinary append reports it.
            let _ = self.reserve.ensure(file, self.end, ReserveUse::Ordinary);
        }
        self.dirty = false;
        Ok(())
    }
}

/// Returns the bytes of an append in their order: parts of the buffer, and behind each of its `heads` the data of the
/// next record. Without heads, the buffer has everything.
fn pieces<'a>(buffer: &'a [u8], heads: &[usize], records: &[Record<'a>]) -> Vec<IoSlice<'a>> {
    let mut pieces = Vec::with_capacity(2 * heads.len() + 1);
    let mut from = 0;
    for (head, record) in heads.iter().zip(records) {
        pieces.extend([&buffer[from..*head], record.data.get().as_bytes()].map(IoSlice::new));
        from = *head;
    }
    pieces.push(IoSlice::new(&buffer[from..]));
    pieces
}

/// Writes all pieces one after the other, beginning at this offset of the file.
fn write_all(mut file: &File, mut pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
    if let [whole] = pieces {
        return file.write_all_at(whole, offset);
    }
    file.seek(SeekFrom::Start(offset))?;
    while !pieces.is_empty() {
        match file.write_vectored(pieces) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut pieces, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Syncs every record after `known` to the disk with fdatasync(2), also while another process writes the journal.
/// Records up to `known` must already be on the disk.
pub fn sync_behind(directory: &Path, known: u64) -> Result<(), AppendError> {
    let path = directory.join(JOURNAL);
    let sync_files = || -> io::Result<()> {
        agentd_fault::at(Point::JournalSyncBefore)?;
        // Opened before the listing: a segment that is closed meanwhile is either listed or this one.
        let current = File::open(&path);
        let closed = segments::list(directory)?;
        let mut ends = closed.iter().skip(1).copied().chain([u64::MAX]);
        for first in &closed {
            if ends.next().is_some_and(|next| next > known + 1) {
                sync_file(File::open(segments::path(directory, *first)))?;
            }
        }
        sync_file(current)
    };
    sync_files().map_err(|source| AppendError::Sync { path: path.clone(), source })
}

/// Syncs the file's data. A missing file is no error: the segment was renamed or removed.
fn sync_file(file: io::Result<File>) -> io::Result<()> {
    match file {
        Ok(file) => file.sync_data(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Releases the reserve of a journal that no process writes, because its session is at rest.
pub fn release_reserve(directory: &Path) -> Result<(), OpenError> {
    let _lock = lock(directory)?;
    let path = directory.join(JOURNAL);
    let released = OpenOptions::new().write(true).open(&path).and_then(|file| reserve::release(&file));
    let _ = fs::remove_file(directory.join(NEXT));
    released.map_err(|source| OpenError::Open { path, source })
}

/// Reports whether a process holds the journal's lock. The check creates the lock file if it is missing and changes
/// nothing else.
pub fn is_held(directory: &Path) -> Result<bool, OpenError> {
    match lock(directory) {
        Ok(_) => Ok(false),
        Err(OpenError::Held { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Takes the journal's lock without waiting.
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
    fn the_bytes_of_a_failed_write_are_removed_and_the_reserve_is_restored() {
        let directory = tempfile::tempdir().unwrap();
        let (mut writer, _) = Writer::open(directory.path(), Options::default()).unwrap();
        let data = to_raw_value("said").unwrap();
        writer.append(Timestamp::UNIX_EPOCH, &[Record { kind: "agent.noise", data: &data }]).unwrap();
        let path = directory.path().join(JOURNAL);
        let (whole, end) = (fs::read(&path).unwrap(), writer.end);
        // A file system without preallocation has no reserve before or after the repair.
        let has_reserve = || fs::metadata(&path).unwrap().blocks() * 512 >= RESERVE;
        let before = has_reserve();
        // The state after a write of which the disk took half.
        writer.dirty = true;
        writer.file.as_ref().unwrap().write_all_at(b"{\"seq\":", end).unwrap();
        writer.undo_failed_write().unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
        assert_eq!(has_reserve(), before);
        writer.reserve.ensure(writer.file.as_ref().unwrap(), end, ReserveUse::Ordinary).unwrap();
        assert_eq!(has_reserve(), before);
    }
}
