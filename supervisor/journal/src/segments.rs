//! Files of a journal: the closed segments, oldest first, and the current segment.
//!
//! The name of a closed segment contains the `seq` of its first record, so the directory listing is the index.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::reader::{ATTEMPTS, ReadError, removed_too_fast};
use crate::{JOURNAL, line, scan};

const BEFORE: &str = "journal-";
const BEHIND: &str = ".jsonl";
/// Number of digits in a segment's name. It fits every `u64`, so names sort in the order of the records.
const DIGITS: usize = 20;

/// File name suffix of a segment that a repair took out of the journal. Readers ignore such a file.
pub(crate) const QUARANTINED: &str = ".torn";

/// Returns the path of the closed segment whose first record has this `seq`.
pub(crate) fn path(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("{BEFORE}{first:0DIGITS$}{BEHIND}"))
}

/// Parses the `seq` of the first record from the name of a closed segment.
fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(BEFORE)?.strip_suffix(BEHIND)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|first| plain && line::is_seq(*first))
}

/// Returns the first `seq` of each closed segment, ascending.
pub(crate) fn list(directory: &Path) -> io::Result<Vec<u64>> {
    let mut firsts = Vec::new();
    for entry in fs::read_dir(directory)? {
        firsts.extend(entry?.file_name().to_str().and_then(first_of));
    }
    firsts.sort_unstable();
    Ok(firsts)
}

/// Segment to which the writer appends.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) file: File,
    /// `seq` of the first record; `None` while the segment is empty.
    pub(crate) first: Option<u64>,
}

/// Snapshot of a journal's files.
#[derive(Debug)]
pub(crate) struct Segments {
    /// First `seq` of each closed segment before the current segment, ascending.
    pub(crate) closed: Vec<u64>,
    /// Current segment; `None` between the rename of a full segment and the creation of the next one.
    pub(crate) current: Option<Current>,
}

impl Segments {
    /// Takes a snapshot while a writer may close segments and another process may remove the oldest.
    ///
    /// The function opens the current segment before it lists the directory, so the list contains every earlier
    /// segment. A listed segment that begins where the opened segment begins is the opened segment, closed since.
    ///
    /// A directory listing is not atomic. If segments are removed during the listing, the list can contain an older
    /// segment and miss a newer one. Removal goes from the oldest, so a list is complete if its oldest segment still
    /// exists after the listing.
    pub(crate) fn of(directory: &Path) -> Result<Self, ReadError> {
        Self::listed_by(directory, list)
    }

    fn listed_by(directory: &Path, mut list: impl FnMut(&Path) -> io::Result<Vec<u64>>) -> Result<Self, ReadError> {
        for _ in 0..ATTEMPTS {
            let current = directory.join(JOURNAL);
            let opened = File::open(&current);
            let unlisted = |source| ReadError::Open { path: directory.to_owned(), source };
            let mut closed = list(directory).map_err(unlisted)?;
            if let Some(oldest) = closed.first()
                && !path(directory, *oldest).try_exists().map_err(unlisted)?
            {
                continue;
            }
            let current = match opened {
                Ok(file) => {
                    // Read after the listing: a segment that was empty then, and is not listed, is the newest.
                    let first = first_seq(&file, &current)?;
                    Some(Current { file, first })
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && !closed.is_empty() => None,
                Err(source) => return Err(ReadError::Open { path: current, source }),
            };
            if let Some(first) = current.as_ref().and_then(|current| current.first) {
                closed.retain(|other| *other < first);
            }
            return Ok(Self { closed, current });
        }
        Err(removed_too_fast(directory))
    }

    /// Returns the `seq` of the first record, or 1 if the journal never had a record.
    pub(crate) fn first(&self) -> u64 {
        let current = || self.current.as_ref().and_then(|current| current.first);
        self.closed.first().copied().or_else(current).unwrap_or(1)
    }

    /// Returns the maximum number of closed segments that may be removed, oldest first.
    ///
    /// If the current segment is empty or missing, the newest closed segment must stay. It holds the last `seq`.
    pub(crate) fn removable(&self) -> usize {
        match &self.current {
            Some(Current { first: Some(_), .. }) => self.closed.len(),
            _ => self.closed.len().saturating_sub(1),
        }
    }
}

/// Returns the `seq` of the file's first record, or `None` if the file has no complete line.
fn first_seq(file: &File, path: &Path) -> Result<Option<u64>, ReadError> {
    let read = |source| ReadError::Read { path: path.to_owned(), source };
    if let Some(seq) = scan::seq_at(file, 0).map_err(read)? {
        return Ok(Some(seq));
    }
    if scan::line_start(file, file.metadata().map_err(read)?.len()).map_err(read)? == 0 {
        // The file is empty, or its first record is incomplete: in progress, or cut short when the writer was killed.
        return Ok(None);
    }
    // The line may have been written after the first attempt.
    match scan::seq_at(file, 0).map_err(read)? {
        Some(seq) => Ok(Some(seq)),
        None => Err(ReadError::Corrupt { path: path.to_owned(), offset: 0 }),
    }
}

/// Returns the total size of the journal's files in bytes.
pub(crate) fn size(directory: &Path) -> io::Result<u64> {
    let mut size = length(&directory.join(JOURNAL))?;
    for first in list(directory)? {
        size += length(&path(directory, first))?;
    }
    Ok(size)
}

/// Returns the file's size in bytes, or 0 if the file was renamed or removed meanwhile.
pub(crate) fn length(path: &Path) -> io::Result<u64> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_form_is_a_segments_name() {
        let name = path(Path::new(""), 42);
        assert_eq!(name.to_str(), Some("journal-00000000000000000042.jsonl"));
        for (name, expected) in [
            ("journal-00000000000000000042.jsonl", Some(42)),
            ("journal-09223372036854775807.jsonl", Some(line::LARGEST)),
            ("journal-09223372036854775808.jsonl", None),
            ("journal-18446744073709551615.jsonl", None),
            ("journal-18446744073709551616.jsonl", None),
            ("journal-00000000000000000000.jsonl", None),
            ("journal-42.jsonl", None),
            ("journal-+0000000000000000042.jsonl", None),
            ("journal-00000000000000000042.jsonl.torn", None),
            ("journal.jsonl", None),
        ] {
            assert_eq!(first_of(name), expected, "{name}");
        }
    }

    #[test]
    fn the_directory_is_listed_again_if_segments_were_removed_during_the_listing() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let make = |path: PathBuf, seq: u64| {
            fs::write(path, format!("{{\"seq\":{seq},\"time\":\"2026-01-01T00:00:00Z\"}}\n")).unwrap();
        };
        for first in [1, 2, 3] {
            make(path(directory, first), first);
        }
        make(directory.join(JOURNAL), 4);
        let mut lists = 0;
        let segments = Segments::listed_by(directory, |directory| {
            lists += 1;
            if lists > 1 {
                return list(directory);
            }
            [1, 2].into_iter().try_for_each(|first| fs::remove_file(path(directory, first)))?;
            Ok(vec![1, 3])
        });
        let segments = segments.unwrap();
        assert_eq!((segments.first(), segments.closed, lists), (3, vec![3], 2));
    }
}
