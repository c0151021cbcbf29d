//! Cutting off what a crash left of the last line.
//!
//! Only what is a record from its first byte to its newline stays; everything behind the last such line is moved to
//! [`crate::TORN`], and reaches the disk there before it is cut off here.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::{line, scan};

/// What opening a journal had to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repair {
    /// How many bytes were cut off the end; they stand at the end of `journal.torn`.
    pub torn: u64,
}

/// The end of the last record and its seq, both 0 where there is none.
pub(crate) fn last_record(file: &File, length: u64) -> io::Result<(u64, u64)> {
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
pub(crate) fn cut(journal: &mut File, end: u64, length: u64, torn: &Path) -> io::Result<()> {
    let mut aside = OpenOptions::new().append(true).create(true).mode(0o600).open(torn)?;
    journal.seek(SeekFrom::Start(end))?;
    io::copy(&mut (&*journal).take(length - end), &mut aside)?;
    aside.flush()?;
    aside.sync_all()?;
    journal.set_len(end)?;
    journal.sync_all()
}
