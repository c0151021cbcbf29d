//! Reads the records of sessions that events of the feed refer to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agentd_api::SessionId;
use agentd_journal::{ReadError, Reader};

use crate::entry::{LineParts, parts};

/// Maximum number of journals that are open at a time.
const OPEN: usize = 16;
/// Number of records that are read past instead of another search for the position.
const PAST: u64 = 64;

/// Open journals of sessions, for the length of one chunk.
#[derive(Debug)]
pub(crate) struct Fetcher {
    sessions: PathBuf,
    readers: BTreeMap<SessionId, Reader>,
}

impl Fetcher {
    pub(crate) fn new(sessions: &Path) -> Self {
        Self { sessions: sessions.to_owned(), readers: BTreeMap::new() }
    }

    /// Returns what `make` makes of the record, or `None` if the record is no longer kept.
    pub(crate) fn fetch<T>(
        &mut self,
        session: &SessionId,
        seq: u64,
        make: impl FnOnce(&LineParts<'_>) -> T,
    ) -> Result<Option<T>, ReadError> {
        let is_near = |reader: &Reader| reader.position() < seq && seq - reader.position() <= PAST;
        if !self.readers.get(session).is_some_and(is_near) {
            self.readers.remove(session);
            let opened = match Reader::open(&self.sessions.join(session.as_str()), seq - 1) {
                Ok(opened) => opened,
                Err(error) if is_gone(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            if self.readers.len() >= OPEN {
                self.readers.pop_first();
            }
            self.readers.insert(session.clone(), opened);
        }
        let Some(reader) = self.readers.get_mut(session) else { return Ok(None) };
        loop {
            let line = match reader.next_upto(seq) {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(None),
                Err(error) if is_gone(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            if line.seq == seq {
                return Ok(parts(line).ok().map(|parts| make(&parts)));
            }
            if line.seq > seq {
                return Ok(None);
            }
        }
    }
}

/// Reports whether the records were removed, or the session with them.
pub(crate) fn is_gone(error: &ReadError) -> bool {
    match error {
        ReadError::Gone { .. } => true,
        ReadError::Open { source, .. } | ReadError::Read { source, .. } => {
            source.kind() == std::io::ErrorKind::NotFound
        }
        ReadError::Gap { .. } | ReadError::Corrupt { .. } => false,
    }
}
