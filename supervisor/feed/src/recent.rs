//! The state that the writer and all readers share: the last events in memory, and the compact state of each session.
//!
//! A reader that keeps up takes the last events from memory, so a hundred readers cost no reads of files. A reader
//! that lags reads the files. The memory is bounded, whatever readers do.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agentd_api::SessionId;
use agentd_api::feed::SessionBrief;
use bytes::Bytes;
use tokio::sync::watch;

use crate::brief::Known;

/// Maximum number of events in memory.
const ITEMS: usize = 4096;
/// Maximum length of all events in memory together, in bytes.
const BYTES: usize = 2 << 20;
/// Maximum length of an event in memory, in bytes. Readers take longer events from the files.
pub(crate) const LONGEST: usize = 256 << 10;
/// Maximum number of removed sessions that are remembered.
const REMOVED: usize = 1000;
/// Length in bytes after which a chunk is complete.
pub(crate) const CHUNK: usize = 256 << 10;

/// An event, ready to be sent.
#[derive(Debug)]
pub struct Item {
    /// Cursor of the event.
    pub cursor: u64,
    /// Session of the event.
    pub session: Option<SessionId>,
    /// Kind of the event.
    pub kind: String,
    /// The event as JSON, without a newline.
    pub line: Bytes,
}

/// The files of the feed in its present era.
#[derive(Debug, Clone)]
pub(crate) struct Era {
    pub(crate) directory: PathBuf,
    /// Cursor before the first event.
    pub(crate) base: u64,
}

/// The shared state. The writer changes it after each append.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    state: Mutex<FeedFacts>,
    position: watch::Sender<u64>,
}

/// The facts that readers need.
#[derive(Debug, Default)]
pub(crate) struct FeedFacts {
    /// `None` until the files could be opened.
    pub(crate) era: Option<Era>,
    /// Cursor of the last event.
    pub(crate) last: u64,
    pub(crate) known: BTreeMap<SessionId, Known>,
    /// The sessions that were removed last, oldest first.
    pub(crate) removed: VecDeque<Arc<SessionBrief>>,
    /// Why the feed cannot be written now.
    pub(crate) trouble: Option<String>,
    recent: VecDeque<Arc<Item>>,
    bytes: usize,
}

/// Result of a look at the events in memory.
pub(crate) enum Look {
    /// Nothing follows yet.
    Nothing,
    /// The next events.
    Items(Vec<Arc<Item>>),
    /// The next event is in the files alone.
    InFiles,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, FeedFacts> {
        // No code under this lock can leave the facts inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn watchers(&self) -> usize {
        self.position.receiver_count()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.position.subscribe()
    }

    /// Tells the readers about new events.
    pub(crate) fn announce(&self) {
        let last = self.lock().last;
        self.position.send_replace(last);
    }
}

impl FeedFacts {
    /// Replaces everything that comes from the files.
    pub(crate) fn begin(&mut self, era: Era, last: u64) {
        self.era = Some(era);
        self.skip_to(last);
    }

    /// Adds an event. `line` is empty for an event that is too long for the memory.
    pub(crate) fn push(&mut self, item: Item) {
        self.last = item.cursor;
        self.bytes += item.line.len();
        self.recent.push_back(Arc::new(item));
        while self.recent.len() > ITEMS || self.bytes > BYTES {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.bytes -= oldest.line.len();
        }
    }

    /// Continues after events that are in the files alone.
    pub(crate) fn skip_to(&mut self, last: u64) {
        self.last = last;
        self.recent.clear();
        self.bytes = 0;
    }

    pub(crate) fn remove(&mut self, brief: Arc<SessionBrief>) {
        self.known.remove(&brief.id);
        self.removed.push_back(brief);
        while self.removed.len() > REMOVED {
            self.removed.pop_front();
        }
    }

    /// Returns the last known state of a session, also of a removed one.
    pub(crate) fn brief(&self, id: &SessionId) -> Option<Arc<SessionBrief>> {
        let known = self.known.get(id).and_then(Known::latest);
        known.or_else(|| self.removed.iter().rev().find(|brief| brief.id == *id)).cloned()
    }

    /// Returns the next events after a cursor, at most about one chunk.
    pub(crate) fn after(&self, cursor: u64) -> Look {
        if cursor >= self.last {
            return Look::Nothing;
        }
        let Some(first) = self.recent.front() else { return Look::InFiles };
        let Some(skip) = (cursor + 1).checked_sub(first.cursor) else { return Look::InFiles };
        let (mut items, mut bytes) = (Vec::new(), 0);
        // The cursors in memory are consecutive.
        for item in self.recent.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX)) {
            if item.line.is_empty() || bytes > CHUNK {
                break;
            }
            bytes += item.line.len();
            items.push(Arc::clone(item));
        }
        if items.is_empty() { Look::InFiles } else { Look::Items(items) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(cursor: u64, length: usize) -> Item {
        let line = Bytes::from(vec![b'x'; length]);
        Item { cursor, session: None, kind: "a".to_owned(), line }
    }

    #[test]
    fn memory_is_bounded_in_number_and_in_length() {
        let mut facts = FeedFacts::default();
        for cursor in 1..=(ITEMS as u64 + 10) {
            facts.push(item(cursor, 1));
        }
        assert_eq!((facts.recent.len(), facts.bytes), (ITEMS, ITEMS));
        assert!(matches!(facts.after(9), Look::InFiles), "event 10 has left the memory");
        assert!(matches!(facts.after(10), Look::Items(items) if items[0].cursor == 11 && items.len() == ITEMS));
        let last = facts.last;
        for cursor in last + 1..=last + 100 {
            facts.push(item(cursor, LONGEST));
        }
        assert!(facts.bytes <= BYTES && facts.recent.len() < 100, "{}", facts.bytes);
    }

    #[test]
    fn an_event_without_its_line_is_read_from_the_files() {
        let mut facts = FeedFacts::default();
        for (cursor, length) in [(5, 1), (6, 0), (7, 1)] {
            facts.push(item(cursor, length));
        }
        assert!(matches!(facts.after(4), Look::Items(items) if items.len() == 1));
        assert!(matches!(facts.after(5), Look::InFiles));
        assert!(matches!(facts.after(6), Look::Items(items) if items[0].cursor == 7));
        assert!(matches!(facts.after(7), Look::Nothing));
        facts.skip_to(9);
        assert!(matches!(facts.after(7), Look::InFiles));
        facts.push(item(10, 1));
        assert!(matches!(facts.after(8), Look::InFiles));
        assert!(matches!(facts.after(9), Look::Items(items) if items[0].cursor == 10));
    }
}
