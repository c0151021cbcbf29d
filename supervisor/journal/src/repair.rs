//! Making a journal whole after a crash, so that it is a prefix of what was written.
//!
//! Only what is a record from its first byte to its newline stays; everything behind the last such line is moved to
//! [`crate::TORN`], and reaches the disk there before it is cut off here. A crash of the machine can also take the end of a
//! segment that was put aside and leave the one behind it: then whatever is behind the gap is set aside under another name.
//!
//! [`mend`] is for a journal that cannot be read on. It cuts the current segment at the first line that is not the next record, unless a line
//! behind that is a record with the very number that its place gives it. Such a journal lost nothing to a power cut: it was damaged in
//! the middle, and what follows is good. It is left as it is, for a person to look at.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::segments::{self, ASIDE};
use crate::writer::{self, OpenError};
use crate::{JOURNAL, TORN, line, scan};

/// What opening a journal had to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repair {
    /// How many bytes were cut off the end; they stand at the end of `journal.torn`.
    pub torn: u64,
    /// How many bytes stood behind a gap; their files have `.torn` behind their names now.
    pub set_aside: u64,
}

/// The current segment, whole.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) file: File,
    /// The seq of its first record; where it has none, of the one that will be.
    pub(crate) first: u64,
    /// Where its last record ends.
    pub(crate) end: u64,
    /// The journal's.
    pub(crate) last_seq: u64,
}

/// Sees to the segments that were put aside, and says the seq of their last record, where there are any.
pub(crate) fn aside(directory: &Path) -> io::Result<(Repair, Option<u64>)> {
    let (mut repair, mut last) = (Repair::default(), None::<u64>);
    let mut all = segments::list(directory)?.into_iter();
    while let Some(first) = all.next() {
        let path = segments::path(directory, first);
        if last.is_some_and(|last| last + 1 != first) {
            repair.set_aside += set_aside(&path)?;
            for later in all {
                repair.set_aside += set_aside(&segments::path(directory, later))?;
            }
            repair.set_aside += set_aside(&directory.join(JOURNAL))?;
            break;
        }
        let mut file = open(&path)?;
        let (end, seq) = whole(&mut file, directory, &mut repair)?;
        if end == 0 {
            fs::remove_file(&path)?;
        }
        last = Some(if end == 0 { first - 1 } else { seq });
    }
    Ok((repair, last))
}

/// Sees to the current segment, where there is one; `before` is the last record of those before it.
pub(crate) fn current(directory: &Path, before: Option<u64>, repair: &mut Repair) -> io::Result<Option<Current>> {
    let path = directory.join(JOURNAL);
    let mut file = match open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (end, last_seq) = whole(&mut file, directory, repair)?;
    if end == 0 {
        let last_seq = before.unwrap_or(0);
        return Ok(Some(Current { file, first: last_seq + 1, end, last_seq }));
    }
    let Some(first) = scan::seq_at(&file, 0)? else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its first line is not a record"));
    };
    if before.is_some_and(|before| before + 1 != first) {
        repair.set_aside += set_aside(&path)?;
        return Ok(None);
    }
    Ok(Some(Current { file, first, end, last_seq }))
}

/// Cuts off what a power cut left behind the last good record of a journal that nobody holds; see the module's comment.
pub fn mend(directory: &Path) -> Result<Repair, OpenError> {
    let _lock = writer::lock(directory)?;
    let path = directory.join(JOURNAL);
    let failed = |source| OpenError::Repair { path: path.clone(), source };
    let (mut repair, before) = aside(directory).map_err(failed)?;
    let mut file = match open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(repair),
        Err(error) => return Err(failed(error)),
    };
    let length = file.metadata().map_err(failed)?.len();
    if let Some(end) = torn_at(&file, before).map_err(failed)? {
        cut(&mut file, end, length, &directory.join(TORN)).map_err(failed)?;
        repair.torn += length - end;
    }
    Ok(repair)
}

/// Where the first line begins that is not the next record, where nothing behind it is good.
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
        // Each line counts, whatever is in it: so it is known which number the next one has to have.
        expected = expected.or(seq).map(|expected| expected + 1);
        offset += length;
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Cuts off what is behind the last record, and says where that ends and its seq.
fn whole(file: &mut File, directory: &Path, repair: &mut Repair) -> io::Result<(u64, u64)> {
    let length = file.metadata()?.len();
    let (end, seq) = last_record(file, length)?;
    if end < length {
        cut(file, end, length, &directory.join(TORN))?;
        repair.torn += length - end;
    }
    Ok((end, seq))
}

/// The end of the last record and its seq, both 0 where there is none.
fn last_record(file: &File, length: u64) -> io::Result<(u64, u64)> {
    // Behind the last newline nothing can be a record; before it the last line that is one ends the journal.
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

/// Moves what stands behind `end` to the torn file.
fn cut(journal: &mut File, end: u64, length: u64, torn: &Path) -> io::Result<()> {
    let mut aside = OpenOptions::new().append(true).create(true).mode(0o600).open(torn)?;
    journal.seek(SeekFrom::Start(end))?;
    io::copy(&mut (&*journal).take(length - end), &mut aside)?;
    aside.flush()?;
    aside.sync_all()?;
    journal.set_len(end)?;
    journal.sync_all()
}

/// Gives the file a name under which it is not read; says how many bytes it has. One that is not there has none.
fn set_aside(path: &Path) -> io::Result<u64> {
    let length = segments::length(path)?;
    // An earlier one that was set aside keeps its name.
    let mut free = path.as_os_str().to_owned();
    free.push(ASIDE);
    while Path::new(&free).exists() {
        free.push("+");
    }
    match fs::rename(path, free) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(length),
    }
}
