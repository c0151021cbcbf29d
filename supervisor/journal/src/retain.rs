//! Removal of the oldest segments.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::reader::ReadError;
use crate::segments::{self, Segments};

/// Limits for [`retain`]: the records of a journal to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retain {
    /// Target size of the journal in bytes. Removal of the oldest segments stops at this size.
    pub at_most: u64,
    /// `seq` after which no record is removed at any size. The caller has not yet stored the state that these
    /// records produce.
    pub keep_after: u64,
}

/// Result of [`retain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retained {
    /// Total size of the removed segments, in bytes.
    pub removed_bytes: u64,
    /// `seq` of the first record that is left.
    pub first_seq: u64,
}

/// Error of [`retain`]. Segments removed before the error stay removed, and the rest of the journal is intact.
#[derive(Debug, thiserror::Error)]
pub enum RetainError {
    #[error("cannot list the segments of the journal")]
    Look(#[from] ReadError),
    #[error("cannot remove the journal's segment {path:?}")]
    Remove { path: PathBuf, source: io::Error },
}

/// Reports whether the journal is longer than `at_most` bytes and has a closed segment that [`retain`] could remove.
pub fn is_longer(directory: &Path, at_most: u64) -> Result<bool, ReadError> {
    let look = |source| ReadError::Read { path: directory.to_owned(), source };
    Ok(segments::size(directory).map_err(look)? > at_most && !segments::list(directory).map_err(look)?.is_empty())
}

/// Removes whole segments, oldest first, and never the current segment.
///
/// One process at a time may call this function, also while a writer and readers use the journal. A reader whose
/// segment is removed still reads that segment to its end.
pub fn retain(directory: &Path, retain: Retain) -> Result<Retained, RetainError> {
    let all = Segments::of(directory)?;
    let look = |source| ReadError::Read { path: directory.to_owned(), source };
    let mut size = segments::size(directory).map_err(look)?;
    let mut retained = Retained { removed_bytes: 0, first_seq: all.first() };
    let current = all.current.as_ref().and_then(|current| current.first);
    // Each segment ends where the next segment begins.
    let nexts = all.closed.iter().skip(1).copied().chain(current);
    for (first, next) in all.closed.iter().zip(nexts).take(all.removable()) {
        if size <= retain.at_most || next - 1 > retain.keep_after {
            break;
        }
        let path = segments::path(directory, *first);
        let length = segments::length(&path).map_err(look)?;
        fs::remove_file(&path).map_err(|source| RetainError::Remove { path, source })?;
        size = size.saturating_sub(length);
        retained.removed_bytes += length;
        retained.first_seq = next;
    }
    if retained.removed_bytes > 0 {
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|source| RetainError::Remove { path: directory.to_owned(), source })?;
    }
    Ok(retained)
}
