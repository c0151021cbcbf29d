//! Readers of the feed: from a cursor on, the last events, or a page before a cursor.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::feed::{FEED_GONE, FEED_STATE, FeedGone, FeedState, HEARTBEAT, Heartbeat};
use agentd_journal::{ReadError, Reader};
use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;

use crate::entry::{Content, Entry, line};
use crate::fetch::Fetcher;
use crate::filter::{Filter, Sieve};
use crate::recent::{CHUNK, Era, Item, Look, Shared};

/// Number of records of the feed that one chunk examines.
const EXAMINED: usize = 4096;
/// Number of records that a search backwards reads first. Each further step reads twice as many.
const STEP: u64 = 512;

/// Position at which a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the state of all sessions, then with new events.
    Now,
    /// After the event with this cursor. 0 means the oldest event that is kept.
    After(u64),
    /// With this number of last events.
    Last(usize),
    /// With this number of events before the cursor. Nothing follows.
    Before(u64, usize),
}

/// The files of the feed cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The files could not be opened since the daemon started.
    #[error("the feed is not open{}", trouble.as_ref().map(|trouble| format!(": {trouble}")).unwrap_or_default())]
    NotOpen {
        /// The reason.
        trouble: Option<String>,
    },
    /// A file cannot be read.
    #[error("cannot read the feed")]
    Read(#[from] ReadError),
    /// A record is damaged.
    #[error("the feed is damaged at event {number}")]
    Damaged {
        /// Number of the event.
        number: u64,
    },
}

/// A reader: a cursor and a filter.
#[derive(Debug, Clone)]
pub struct FeedReader {
    shared: Arc<Shared>,
    sessions: PathBuf,
    filter: Filter,
    era: Era,
    after: u64,
    /// Cursor of the last event of the stream.
    until: u64,
}

impl FeedReader {
    /// Opens a reader, and returns the events with which its stream begins. A reader that does not follow ends with
    /// the present last event.
    pub(crate) fn open(
        shared: Arc<Shared>,
        sessions: &Path,
        (start, follow): (Start, bool),
        filter: Filter,
    ) -> Result<(Self, Vec<Arc<Item>>), FeedError> {
        let (era, last) = {
            let facts = shared.lock();
            let not_open = || FeedError::NotOpen { trouble: facts.trouble.clone() };
            (facts.era.clone().ok_or_else(not_open)?, facts.last)
        };
        let first = agentd_journal::first_seq(&era.directory)?;
        let (base, until) = (era.base, if follow { u64::MAX } else { last });
        let mut reader = Self { shared, sessions: sessions.to_owned(), filter, era, after: last, until };
        let mut begin = Vec::new();
        match start {
            Start::Now => begin.push(reader.state()),
            Start::After(0) => reader.after = base + first - 1,
            Start::After(cursor) if cursor >= base + first - 1 && cursor <= last => reader.after = cursor,
            Start::After(cursor) => begin = reader.renewed(Some(cursor))?,
            Start::Last(count) => {
                let (numbers, _) = reader.backwards(last - base + 1, first, count)?;
                reader.after = numbers.first().map_or(last, |number| base + number - 1);
            }
            Start::Before(cursor, count) => {
                let before = cursor.min(last + 1).saturating_sub(base);
                let (numbers, is_oldest) = reader.backwards(before, first, count)?;
                reader.after = numbers.first().map_or(last, |number| base + number - 1);
                reader.until = numbers.last().map_or(last, |number| base + number);
                if is_oldest && first > 1 {
                    begin.push(reader.gone(None, first));
                }
            }
        }
        Ok((reader, begin))
    }

    /// Returns the cursor up to which the reader has looked.
    pub fn cursor(&self) -> u64 {
        self.after
    }

    /// Returns the next wanted events from the memory, or `None` if they are in the files alone. Does not block.
    /// Without further events, the result is empty and the cursor stays.
    pub fn next_in_memory(&mut self) -> Option<Vec<Arc<Item>>> {
        if self.after >= self.until {
            return Some(Vec::new());
        }
        let mut items = match self.shared.lock().after(self.after) {
            Look::Nothing => return Some(Vec::new()),
            Look::InFiles => return None,
            Look::Items(items) => items,
        };
        items.retain(|item| item.cursor <= self.until);
        if let Some(last) = items.last() {
            self.after = last.cursor;
        }
        let mut sieve = Sieve::new(&self.filter);
        let shared = &self.shared;
        items.retain(|item| sieve.takes(&item.kind, item.session.as_ref(), |id| shared.lock().brief(id)));
        Some(items)
    }

    /// Returns the next wanted events from the files. Events that were removed meanwhile are replaced by the state of
    /// all sessions. Blocks.
    ///
    /// # Errors
    ///
    /// The files cannot be read.
    pub fn next_in_files(&mut self) -> Result<Vec<Arc<Item>>, FeedError> {
        let upto = self.shared.lock().last.min(self.until).saturating_sub(self.era.base);
        let from = self.after - self.era.base;
        let first = agentd_journal::first_seq(&self.era.directory)?;
        // The position before the first event counts as kept only if the first event is.
        if from + 1 < first {
            return self.renewed(Some(self.after));
        }
        match self.next_entries(from, upto) {
            Ok((entries, examined)) => {
                let (items, reached) = self.items_upto(entries, examined)?;
                self.after = self.era.base + reached;
                Ok(items)
            }
            Err(FeedError::Read(ReadError::Gone { .. })) => self.renewed(Some(self.after)),
            Err(error) => Err(error),
        }
    }

    /// Returns the event that shows the stream to be alive.
    pub fn heartbeat(&self) -> Item {
        let trouble = self.shared.lock().trouble.clone();
        self.marker(HEARTBEAT, &Heartbeat { trouble })
    }

    /// Reads the wanted records after a number. Also returns the number of the last examined record.
    fn next_entries(&self, from: u64, upto: u64) -> Result<(Vec<Entry>, u64), FeedError> {
        let mut reader = Reader::open(&self.era.directory, from)?;
        let (mut entries, mut examined, mut length) = (Vec::new(), from, 0);
        let mut sieve = Sieve::new(&self.filter);
        for _ in 0..EXAMINED {
            let Some(line) = reader.next_upto(upto)? else { break };
            examined = line.seq;
            length += line.bytes.len();
            let entry = Entry::of(line).map_err(|bad| FeedError::Damaged { number: bad.number })?;
            if sieve.takes(&entry.kind, entry.session.as_ref(), |id| self.shared.lock().brief(id)) {
                entries.push(entry);
            }
            if length > CHUNK {
                break;
            }
        }
        Ok((entries, examined))
    }

    /// Returns the numbers of the last `count` wanted records before a number, ascending. Also reports whether the
    /// search reached the first record that is kept.
    fn backwards(&self, before: u64, first: u64, count: usize) -> Result<(Vec<u64>, bool), FeedError> {
        let (mut found, mut end, mut step) = (Vec::<u64>::new(), before, STEP.max(count as u64));
        let mut sieve = Sieve::new(&self.filter);
        while found.len() < count && end > first {
            let begin = end.saturating_sub(step).max(first);
            let mut reader = Reader::open(&self.era.directory, begin - 1)?;
            let mut block = Vec::new();
            while let Some(line) = reader.next_upto(end - 1)? {
                let entry = Entry::of(line).map_err(|bad| FeedError::Damaged { number: bad.number })?;
                if sieve.takes(&entry.kind, entry.session.as_ref(), |id| self.shared.lock().brief(id)) {
                    block.push(entry.number);
                }
            }
            block.append(&mut found);
            (found, end, step) = (block, begin, step * 2);
        }
        let is_oldest = end <= first && found.len() <= count;
        let excess = found.len().saturating_sub(count);
        found.drain(..excess);
        Ok((found, is_oldest))
    }

    /// Makes the events of the records, at most about one chunk. Also returns the number up to which the events were
    /// made: `examined`, or less for a chunk that became full.
    fn items_upto(&self, entries: Vec<Entry>, examined: u64) -> Result<(Vec<Arc<Item>>, u64), FeedError> {
        let mut fetcher = Fetcher::new(&self.sessions);
        let (mut items, mut length) = (Vec::<Arc<Item>>::new(), 0);
        let mut missing: Option<Missing> = None;
        for entry in entries {
            if length > CHUNK {
                items.extend(missing.take().map(|missing| self.missing(&missing)));
                return Ok((items, entry.number - 1));
            }
            let cursor = self.era.base + entry.number;
            let made = match (&entry.content, &entry.session) {
                (Content::Whole { time, data }, session) => {
                    Some(line(cursor, session.as_ref(), None, (time, &entry.kind), data.get().as_bytes()))
                }
                (Content::Record(seq), Some(session)) => fetcher.fetch(session, *seq, |parts| {
                    line(cursor, Some(session), Some(*seq), (&parts.time, &parts.kind), parts.data)
                })?,
                (Content::Record(_), None) => None,
            };
            if let Some(made) = made {
                items.extend(missing.take().map(|missing| self.missing(&missing)));
                length += made.len();
                let (session, kind) = (entry.session, entry.kind);
                items.push(Arc::new(Item { cursor, session, kind, line: made.into() }));
            } else if let (Content::Record(seq), Some(session)) = (&entry.content, entry.session) {
                match &mut missing {
                    Some(missing) if missing.session == session => (missing.last, missing.cursor) = (*seq, cursor),
                    _ => {
                        let next = Missing { session, first: *seq, last: *seq, cursor };
                        items.extend(missing.replace(next).map(|missing| self.missing(&missing)));
                    }
                }
            }
        }
        items.extend(missing.take().map(|missing| self.missing(&missing)));
        Ok((items, examined))
    }

    /// Moves the reader to the end, and returns the state of all sessions. `after` is the cursor whose events are no
    /// longer kept.
    fn renewed(&mut self, after: Option<u64>) -> Result<Vec<Arc<Item>>, FeedError> {
        let first = agentd_journal::first_seq(&self.era.directory)?;
        let state = self.state();
        Ok(vec![self.gone(after, first), state])
    }

    /// Moves the reader to the end, and returns the state of all sessions there.
    fn state(&mut self) -> Arc<Item> {
        let (sessions, removed) = {
            let facts = self.shared.lock();
            self.after = facts.last;
            facts.states(&self.filter)
        };
        Arc::new(self.marker(FEED_STATE, &FeedState { sessions, removed }))
    }

    fn gone(&self, after: Option<u64>, first: u64) -> Arc<Item> {
        let first_cursor = Some(self.era.base + first);
        Arc::new(self.marker(FEED_GONE, &FeedGone { after, first_cursor, ..FeedGone::default() }))
    }

    fn missing(&self, missing: &Missing) -> Arc<Item> {
        let Missing { session, first, last, cursor } = missing;
        let data = FeedGone { first_seq: Some(*first), last_seq: Some(*last), ..FeedGone::default() };
        let mut item = self.marker(FEED_GONE, &data);
        let (time, data) = (now(), serde_json::to_vec(&data).unwrap_or_default());
        item.line = line(*cursor, Some(session), None, (&time, FEED_GONE), &data).into();
        Arc::new(Item { cursor: *cursor, session: Some(session.clone()), ..item })
    }

    /// Makes an event that only this stream has, at the reader's cursor.
    fn marker<T: Serialize>(&self, kind: &str, data: &T) -> Item {
        let data = serde_json::to_vec(data).unwrap_or_default();
        let made: Bytes = line(self.after, None, None, (&now(), kind), &data).into();
        Item { cursor: self.after, session: None, kind: kind.to_owned(), line: made }
    }
}

/// Records of one session that are no longer kept.
struct Missing {
    session: agentd_api::SessionId,
    first: u64,
    last: u64,
    cursor: u64,
}

fn now() -> String {
    format!("{:.6}", Timestamp::now())
}
