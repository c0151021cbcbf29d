//! Repair of a journal after a crash. The repaired journal is a prefix of the written records.
//!
//! A repair keeps only lines that are complete records. It moves everything after the last such line to
//! [`crate::TORN`], and syncs that file before it truncates the segment. A crash of the machine can also lose the end
//! of a closed segment and keep the next one. A repair then renames every segment behind the gap, so that readers
//! ignore them.
//!
//! [`truncate_torn_tail`] is for a journal that readers cannot read to its end. It truncates the current segment at
//! the first line that is not the next record. It changes nothing if a later line is a record with exactly the `seq`
//! that its line number requires. That is not the pattern of a power cut: the journal is damaged in the middle, and
//! later records are good. A person must inspect such a journal.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::segments::{self, QUARANTINED};
use crate::writer::{self, OpenError};
use crate::{JOURNAL, TORN, line, scan};

/// Changes that opening a journal made to its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repair {
    /// Number of bytes cut off the end of segments. They were appended to `journal.torn`.
    pub torn: u64,
    /// Number of bytes in segments behind a gap. Their file names now end in `.torn`.
    pub set_aside: u64,
}

/// Current segment after its repair.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) file: File,
    /// `seq` of its first record, or of its future first record while it is empty.
    pub(crate) first: u64,
    /// File offset of the end of its last record.
    pub(crate) end: u64,
    /// `seq` of the journal's last record.
    pub(crate) last_seq: u64,
}

/// Repairs the closed segments. Returns the `seq` of their last record, if there are closed segments.
pub(crate) fn closed(directory: &Path) -> io::Result<(Repair, Option<u64>)> {
    let (mut repair, mut last) = (Repair::default(), None::<u64>);
    let mut all = segments::list(directory)?.into_iter();
    while let Some(first) = all.next() {
        let path = segments::path(directory, first);
        if last.is_some_and(|last| last + 1 != first) {
            repair.set_aside += quarantine(&path)?;
            for later in all {
                repair.set_aside += quarantine(&segments::path(directory, later))?;
            }
            repair.set_aside += quarantine(&directory.join(JOURNAL))?;
            break;
        }
        let mut file = open(&path)?;
        let (end, seq) = truncate(&mut file, directory, &mut repair)?;
        if end == 0 {
            fs::remove_file(&path)?;
        }
        last = Some(if end == 0 { first - 1 } else { seq });
    }
    Ok((repair, last))
}

/// Repairs the current segment, if it exists. `before` is the last `seq` of the closed segments.
pub(crate) fn current(directory: &Path, before: Option<u64>, repair: &mut Repair) -> io::Result<Option<Current>> {
    let path = directory.join(JOURNAL);
    let mut file = match open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (end, last_seq) = truncate(&mut file, directory, repair)?;
    if end == 0 {
        let last_seq = before.unwrap_or(0);
        return Ok(Some(Current { file, first: last_seq + 1, end, last_seq }));
    }
    let Some(first) = scan::seq_at(&file, 0)? else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its first line is not a record"));
    };
    if before.is_some_and(|before| before + 1 != first) {
        repair.set_aside += quarantine(&path)?;
        return Ok(None);
    }
    Ok(Some(Current { file, first, end, last_seq }))
}

/// Cuts off what a power cut left after the last good record of a journal without a writer; see the module comment.
pub fn truncate_torn_tail(directory: &Path) -> Result<Repair, OpenError> {
    let _lock = writer::lock(directory)?;
    let path = directory.join(JOURNAL);
    let failed = |source| OpenError::Repair { path: path.clone(), source };
    let (mut repair, before) = closed(directory).map_err(failed)?;
    let mut file = match open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(repair),
        Err(error) => return Err(failed(error)),
    };
    let length = file.metadata().map_err(failed)?.len();
    if let Some(end) = torn_at(&file, before).map_err(failed)? {
        move_tail(&mut file, end, length, &directory.join(TORN)).map_err(failed)?;
        repair.torn += length - end;
    }
    Ok(repair)
}

/// Returns the offset of the first line that is not the next record, unless a later line is a good record.
fn torn_at(file: &File, before: Option<u64>) -> io::Result<Option<u64>> {
    let mut lines = BufReader::new(file);
    let (mut line, mut offset, mut expected, mut torn) = (Vec::new(), 0, before.map(|before| before + 1), None);
    loop {
        line.clear();
        let length = lines.read_until(b'\n', &mut line)? as u64;
        let Some(text) = line.strip_suffix(b"\n") else { return Ok(torn.or((length > 0).then_some(offset))) };
        let seq = line::valid(text);
        let is_next = seq.is_some() && seq == expected.or(seq);
        if is_next && torn.is_some() {
            return Ok(None);
        }
        if !is_next {
            torn.get_or_insert(offset);
        }
        // Every line counts, also an invalid one, so that the expected `seq` follows from the line number.
        expected = expected.or(seq).map(|expected| expected + 1);
        offset += length;
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Cuts off everything after the last record. Returns the offset of that record's end, and its `seq`.
fn truncate(file: &mut File, directory: &Path, repair: &mut Repair) -> io::Result<(u64, u64)> {
    let length = file.metadata()?.len();
    let (end, seq) = last_record(file, length)?;
    if end < length {
        move_tail(file, end, length, &directory.join(TORN))?;
        repair.torn += length - end;
    }
    Ok((end, seq))
}

/// Returns the offset of the last record's end, and its `seq`. Both are 0 if there is no record.
fn last_record(file: &File, length: u64) -> io::Result<(u64, u64)> {
    // Only complete lines can be records. The journal ends with the last line that is a record.
    let mut end = scan::line_start(file, length)?;
    let mut line = Vec::new();
    while end > 0 {
        let start = scan::line_start(file, end - 1)?;
        line.resize(usize::try_from(end - 1 - start).map_err(io::Error::other)?, 0);
        file.read_exact_at(&mut line, start)?;
        if let Some(seq) = line::valid(&line) {
            return Ok((end, seq));
        }
        end = start;
    }
    Ok((0, 0))
}

/// Moves everything after `end` to the torn file.
fn move_tail(journal: &mut File, end: u64, length: u64, torn: &Path) -> io::Result<()> {
    let mut torn_file = OpenOptions::new().append(true).create(true).mode(0o600).open(torn)?;
    journal.seek(SeekFrom::Start(end))?;
    io::copy(&mut (&*journal).take(length - end), &mut torn_file)?;
    torn_file.flush()?;
    torn_file.sync_all()?;
    journal.set_len(end)?;
    journal.sync_all()
}

/// Renames the file so that readers ignore it. Returns its size in bytes, or 0 if the file does not exist.
fn quarantine(path: &Path) -> io::Result<u64> {
    let length = segments::length(path)?;
    // A segment that was quarantined earlier keeps its name.
    let mut free = path.as_os_str().to_owned();
    free.push(QUARANTINED);
    while Path::new(&free).exists() {
        free.push("+");
    }
    match fs::rename(path, free) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(length),
    }
}
