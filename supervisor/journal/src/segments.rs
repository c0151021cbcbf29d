//! Which files a journal is made of: the current one and, oldest first, those that were full and put aside.
//!
//! The name of one that was put aside says the seq of its first record, so that a directory's listing is the index.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::reader::{LOOKS, ReadError, removed_too_fast};
use crate::{JOURNAL, scan};

const BEFORE: &str = "journal-";
const BEHIND: &str = ".jsonl";
/// As many digits as a u64 can have, so that the names' order is the records'.
const DIGITS: usize = 20;

/// What a file of a journal that is set aside by a repair has behind its name: it is not read as a part of it any more.
pub(crate) const ASIDE: &str = ".torn";

/// Where the segment is that begins with this record and was put aside.
pub(crate) fn path(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("{BEFORE}{first:0DIGITS$}{BEHIND}"))
}

fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(BEFORE)?.strip_suffix(BEHIND)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|first| plain && *first > 0)
}

/// The first seqs of the segments that were put aside, ascending.
pub(crate) fn list(directory: &Path) -> io::Result<Vec<u64>> {
    let mut firsts = Vec::new();
    for entry in fs::read_dir(directory)? {
        firsts.extend(entry?.file_name().to_str().and_then(first_of));
    }
    firsts.sort_unstable();
    Ok(firsts)
}

/// The segment that is written to.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) file: File,
    /// Absent where nothing is in it yet.
    pub(crate) first: Option<u64>,
}

/// A journal's files at one moment.
#[derive(Debug)]
pub(crate) struct Segments {
    /// Of those that were put aside and stand before the current one, ascending.
    pub(crate) aside: Vec<u64>,
    /// Absent between the moments at which one is put aside and the next is begun.
    pub(crate) current: Option<Current>,
}

impl Segments {
    /// Looks. The writer may put segments aside meanwhile, and another process remove the oldest.
    ///
    /// The current segment is opened before the directory is listed, so that whatever stands before it is on the list; what is on it that
    /// begins where the opened one does is that one itself, under the name it has by now.
    ///
    /// A directory is not listed in one moment: of segments that are removed meanwhile, an older one may be on the list and a newer one
    /// missing. Since the oldest is removed first, a list is whole if its oldest segment is still there afterwards.
    pub(crate) fn of(directory: &Path) -> Result<Self, ReadError> {
        Self::listed_by(directory, list)
    }

    fn listed_by(directory: &Path, mut list: impl FnMut(&Path) -> io::Result<Vec<u64>>) -> Result<Self, ReadError> {
        for _ in 0..LOOKS {
            let current = directory.join(JOURNAL);
            let opened = File::open(&current);
            let unlisted = |source| ReadError::Open { path: directory.to_owned(), source };
            let mut aside = list(directory).map_err(unlisted)?;
            if let Some(oldest) = aside.first()
                && !path(directory, *oldest).try_exists().map_err(unlisted)?
            {
                continue;
            }
            let current = match opened {
                Ok(file) => {
                    // Not before the listing: one that was empty then and is not on the list is the newest.
                    let first = first_seq(&file, &current)?;
                    Some(Current { file, first })
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && !aside.is_empty() => None,
                Err(source) => return Err(ReadError::Open { path: current, source }),
            };
            if let Some(first) = current.as_ref().and_then(|current| current.first) {
                aside.retain(|other| *other < first);
            }
            return Ok(Self { aside, current });
        }
        Err(removed_too_fast(directory))
    }

    /// The seq of the first record there is; 1 where there was never one.
    pub(crate) fn first(&self) -> u64 {
        let current = || self.current.as_ref().and_then(|current| current.first);
        self.aside.first().copied().or_else(current).unwrap_or(1)
    }

    /// How many of the oldest may be removed without the place being lost at which the journal goes on: a current segment with nothing
    /// in it does not know that itself.
    pub(crate) fn removable(&self) -> usize {
        match &self.current {
            Some(Current { first: Some(_), .. }) => self.aside.len(),
            _ => self.aside.len().saturating_sub(1),
        }
    }
}

/// The seq of the file's first record, where it has one.
fn first_seq(file: &File, path: &Path) -> Result<Option<u64>, ReadError> {
    let read = |source| ReadError::Read { path: path.to_owned(), source };
    if let Some(seq) = scan::seq_at(file, 0).map_err(read)? {
        return Ok(Some(seq));
    }
    if scan::line_start(file, file.metadata().map_err(read)?.len()).map_err(read)? == 0 {
        // Empty, or the beginning of a first record that is being written, or was when its writer was killed.
        return Ok(None);
    }
    // The line that is there now may have come since.
    match scan::seq_at(file, 0).map_err(read)? {
        Some(seq) => Ok(Some(seq)),
        None => Err(ReadError::Corrupt { path: path.to_owned(), offset: 0 }),
    }
}

/// How many bytes the journal's files have.
pub(crate) fn size(directory: &Path) -> io::Result<u64> {
    let mut size = length(&directory.join(JOURNAL))?;
    for first in list(directory)? {
        size += length(&path(directory, first))?;
    }
    Ok(size)
}

/// 0 where there is none: it was put aside or removed since somebody looked.
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
            ("journal-18446744073709551615.jsonl", Some(u64::MAX)),
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
    fn a_list_from_which_newer_segments_were_removed_while_it_was_made_is_made_again() {
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
        assert_eq!((segments.first(), segments.aside, lists), (3, vec![3], 2));
    }
}
