//! Removing the oldest segments.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::reader::ReadError;
use crate::segments::{self, Segments};

/// What is to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retain {
    /// The oldest segments go until the journal has no more bytes than this.
    pub at_most: u64,
    /// Records behind this one stay, however many they are: whoever folds the journal has not stored what they say.
    pub keep_after: u64,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retained {
    pub removed_bytes: u64,
    /// The seq of the first record there is now.
    pub first_seq: u64,
}

/// Why not everything could be removed that was to be. What was is gone, and the journal is whole.
#[derive(Debug, thiserror::Error)]
pub enum RetainError {
    #[error("cannot tell what the journal consists of")]
    Look(#[from] ReadError),
    #[error("cannot remove the journal's segment {path:?}")]
    Remove { path: PathBuf, source: io::Error },
}

/// Whether [`retain`] would have something to remove if every record of the journal were stored elsewhere.
pub fn is_longer(directory: &Path, at_most: u64) -> Result<bool, ReadError> {
    let look = |source| ReadError::Read { path: directory.to_owned(), source };
    Ok(segments::size(directory).map_err(look)? > at_most && !segments::list(directory).map_err(look)?.is_empty())
}

/// Removes whole segments, the oldest first, never the current one. It may be called beside the writer and beside readers, by one
/// process at a time: a reader that stands in a removed segment reads it to its end.
pub fn retain(directory: &Path, retain: Retain) -> Result<Retained, RetainError> {
    let all = Segments::of(directory)?;
    let look = |source| ReadError::Read { path: directory.to_owned(), source };
    let mut size = segments::size(directory).map_err(look)?;
    let mut retained = Retained { removed_bytes: 0, first_seq: all.first() };
    let current = all.current.as_ref().and_then(|current| current.first);
    // Where each ends is where the next begins.
    let nexts = all.aside.iter().skip(1).copied().chain(current);
    for (first, next) in all.aside.iter().zip(nexts).take(all.removable()) {
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
