//! The thread that writes the feed.
//!
//! It takes the notes of drivers and handlers, and appends the new events of the sessions that published a state. After
//! a failure everything stays noted, and the thread tries again. Only this thread changes the shared facts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::feed::{FEED_GONE, FeedGone, Notice, SessionBrief};
use agentd_api::session::SessionView;
use agentd_api::{SessionId, chain};
use agentd_journal::{ReadError, Reader};
use agentd_session::changes::{Changes, Noted};
use agentd_session::{Session, Sessions};
use jiff::Timestamp;
use serde_json::value::{RawValue, to_raw_value};

use crate::Options;
use crate::brief::Known;
use crate::entry::{Stored, line, parts};
use crate::fetch::is_gone;
use crate::recent::{Era, Item, LONGEST, Shared};
use crate::store::{Marks, Store, StoreError};

/// Duration for which notes gather while the feed has no reader. The events of a launch are then few appends.
const GATHER: Duration = Duration::from_millis(20);
/// Pause before another attempt after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// Maximum number of events of one session that are appended at once.
const BATCH: u64 = 512;
/// Maximum number of events that are appended at once without reading their records.
const UNREAD: u64 = 4096;
/// Maximum length of the records that are read for one append, in bytes.
const LENGTH: usize = 1 << 20;
/// Maximum number of journals that stay open.
const OPEN: usize = 64;

/// The writer with everything that it has not done yet.
pub(crate) struct FeedWriter {
    options: Options,
    shared: Arc<Shared>,
    sessions: Arc<Sessions>,
    changes: Arc<Changes>,
    /// `None` until the files could be opened, and after a failure.
    store: Option<Store>,
    pending: Noted,
    readers: BTreeMap<SessionId, Reader>,
    /// Whether sessions that disappeared without a note were looked for.
    swept: bool,
    /// Start of the feed in microseconds since 1970. Sessions that are created before the thread opens the files are
    /// fed from their beginning too.
    since: u64,
}

/// One event before its append.
struct Draft {
    kind: String,
    session: Option<SessionId>,
    /// Sequence number and time of a session's record.
    record: Option<(u64, String)>,
    /// Data of the event. Empty if a record is too long for the memory.
    data: Vec<u8>,
    stored: Box<RawValue>,
}

impl FeedWriter {
    pub(crate) fn new(options: Options, shared: Arc<Shared>, sessions: Arc<Sessions>, changes: Arc<Changes>) -> Self {
        let (store, pending, readers) = (None, Noted::default(), BTreeMap::new());
        let since = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default();
        Self { options, shared, sessions, changes, store, pending, readers, swept: false, since }
    }

    /// Writes until the daemon ends.
    pub(crate) fn run(mut self) {
        // The fault points of the journal are those of sessions' journals.
        agentd_fault::exempt_thread();
        let mut limit = Some(Duration::ZERO);
        loop {
            let noted = self.changes.wait(limit);
            self.take(noted);
            limit = match self.work() {
                Ok(()) => {
                    self.trouble(None);
                    None
                }
                Err(error) => {
                    self.trouble(Some(chain(&error)));
                    // The files are opened again, since they may have been replaced.
                    self.store = None;
                    Some(AGAIN)
                }
            };
            for barrier in self.pending.barriers.drain(..) {
                let _ = barrier.send(());
            }
            if self.pending.closed {
                self.end();
                return;
            }
            if self.shared.watchers() == 0 {
                self.changes.gather(GATHER);
            }
        }
    }

    fn take(&mut self, noted: Noted) {
        let pending = &mut self.pending;
        pending.touched.extend(noted.touched);
        pending.removed.extend(noted.removed);
        for (id, runs) in noted.output {
            pending.output.entry(id).or_default().extend(runs);
        }
        pending.barriers.extend(noted.barriers);
        pending.dropped += noted.dropped;
        (pending.whole, pending.closed) = (noted.whole, noted.closed);
        for notice in noted.notices {
            pending.push(notice);
        }
    }

    /// Publishes why the feed cannot be written, and logs each change.
    fn trouble(&self, trouble: Option<String>) {
        let before = std::mem::replace(&mut self.shared.lock().trouble, trouble.clone());
        match (before, trouble) {
            (None, Some(error)) => {
                tracing::error!(%error, "cannot write the feed of events; it catches up when it can be written");
            }
            (Some(_), None) => tracing::info!("the feed of events is written again"),
            _ => {}
        }
    }

    fn work(&mut self) -> Result<(), StoreError> {
        if self.store.as_ref().is_some_and(|store| store.keep != self.sessions.kept_feed()) {
            // The configuration has another size.
            self.store = None;
        }
        if self.store.is_none() {
            self.open()?;
        }
        if self.pending.whole && !self.swept {
            self.sweep();
        }
        if self.pending.dropped > 0 {
            tracing::warn!(dropped = self.pending.dropped, "events of the daemon are missing in the feed");
            self.pending.dropped = 0;
        }
        while let Some((_, notice)) = self.pending.notices.front() {
            let draft = Draft::whole(None, notice.kind(), &notice.to_data());
            self.append(vec![draft], |_| {})?;
            self.pending.notices.pop_front();
        }
        while !self.pending.touched.is_empty() {
            // Each session gets its turn, so that a busy one delays no other.
            for id in self.pending.touched.clone() {
                if self.feed(&id)? {
                    self.pending.touched.remove(&id);
                    self.pending.output.remove(&id);
                }
                self.mark()?;
            }
        }
        while let Some(id) = self.pending.removed.first().cloned() {
            self.remove(&id)?;
            self.pending.removed.remove(&id);
        }
        if let Some(store) = &mut self.store {
            store.shrink();
        }
        self.mark()
    }

    fn open(&mut self) -> Result<(), StoreError> {
        let (store, marks) = Store::open(&self.options.directory, self.sessions.kept_feed(), self.since)?;
        let mut facts = self.shared.lock();
        facts.begin(Era { directory: store.directory().to_owned(), base: store.base }, store.last());
        let mut before = std::mem::take(&mut facts.known);
        facts.known = marks.sessions;
        for (id, known) in &mut facts.known {
            known.present = before.remove(id).and_then(|known| known.present);
        }
        facts.removed = marks.removed;
        drop(facts);
        self.store = Some(store);
        // Sessions whose driver is at rest publish nothing by themselves.
        self.pending.touched.extend(self.sessions.ids());
        self.shared.announce();
        Ok(())
    }

    /// Notes the removal of sessions that an earlier daemon removed without an event.
    fn sweep(&mut self) {
        let unreadable: BTreeSet<String> = self.sessions.unreadable().into_iter().map(|session| session.id).collect();
        let ids: Vec<SessionId> = self.shared.lock().known.keys().cloned().collect();
        let gone = |id: &SessionId| self.sessions.known(id).is_none() && !unreadable.contains(id.as_str());
        self.pending.removed.extend(ids.into_iter().filter(gone));
        self.swept = true;
    }

    /// Appends new events of a session, at most one batch. Returns whether the session needs no further look.
    fn feed(&mut self, id: &SessionId) -> Result<bool, StoreError> {
        let Some(session) = self.sessions.known(id) else { return Ok(true) };
        let Some(view) = session.current_view() else { return Ok(true) };
        let brief = Arc::new(SessionBrief::from(&*view));
        let (fed, stated) = self.begun(id, &view, &brief);
        let last = view.status.last_seq;
        if fed < last {
            let is_fed = self.feed_records(&session, fed, last)?;
            if !is_fed {
                return Ok(false);
            }
        }
        if view.status.phase.is_over() {
            // A session at rest holds no descriptor.
            self.readers.remove(id);
        }
        if stated.as_ref() != Some(&brief) {
            let notice = Notice::SessionState(Box::new(SessionBrief::clone(&brief)));
            let draft = Draft::whole(Some(id.clone()), notice.kind(), &notice.to_data());
            self.append(vec![draft], |known| known.stated = Some(Arc::clone(&brief)))?;
        }
        Ok(true)
    }

    /// Returns how far the session was fed, and its last state in the feed.
    fn begun(&self, id: &SessionId, view: &SessionView, brief: &Arc<SessionBrief>) -> (u64, Option<Arc<SessionBrief>>) {
        let mut facts = self.shared.lock();
        let base = facts.era.as_ref().map_or(0, |era| era.base);
        // The feed has no history of sessions that are older than its era.
        let is_new = u64::try_from(view.created.as_microsecond()).is_ok_and(|created| created >= base);
        let last = view.status.last_seq;
        let known = facts.known.entry(id.clone()).or_insert_with(|| Known::new(if is_new { 0 } else { last }));
        // After a power cut a journal can end earlier than before.
        known.fed = known.fed.min(last);
        // Sessions without a change share one value.
        let unchanged = known.stated.as_ref().filter(|stated| *stated == brief).map(Arc::clone);
        known.present = Some(unchanged.unwrap_or_else(|| Arc::clone(brief)));
        (known.fed, known.stated.clone())
    }

    /// Appends one batch of a session's records. Returns whether it was the last.
    fn feed_records(&mut self, session: &Session, fed: u64, last: u64) -> Result<bool, StoreError> {
        // The session may have published more since the notes were taken.
        if let Some(later) = self.changes.take_output(session.id()) {
            self.pending.output.entry(session.id().clone()).or_default().extend(later);
        }
        let runs = self.pending.output.get_mut(session.id());
        // The content of the records is for readers of the feed only.
        if let Some(end) = runs.and_then(|runs| runs.last_of_run(fed + 1)).filter(|_| self.shared.watchers() == 0) {
            let reached = end.min(last).min(fed + UNREAD);
            self.append_output(session.id(), fed + 1..=reached)?;
            return Ok(reached >= last);
        }
        let drafts = match self.read(session, fed, last.min(fed + BATCH)) {
            Ok(drafts) => drafts,
            // The session is being removed, or its driver sets it aside. Its next state is looked at again.
            Err(error) => {
                self.readers.remove(session.id());
                if !is_gone(&error) {
                    tracing::warn!(agentd.session = %session.id(), error = %chain(&error), "cannot feed a session");
                }
                return Ok(true);
            }
        };
        let Some(reached) = drafts.iter().rev().find_map(Draft::reached) else {
            self.readers.remove(session.id());
            return Ok(true);
        };
        self.append(drafts, |known| known.fed = reached)?;
        Ok(reached >= last)
    }

    /// Reads records of a session. Records that are no longer kept are replaced by a marker.
    fn read(&mut self, session: &Session, fed: u64, upto: u64) -> Result<Vec<Draft>, ReadError> {
        let id = session.id();
        if self.readers.get(id).is_none_or(|reader| reader.position() != fed) {
            self.readers.remove(id);
            let reader = match Reader::open(session.directory(), fed) {
                Err(ReadError::Gone { first, .. }) => {
                    return Ok(vec![Draft::gone(id, fed + 1, (first - 1).min(upto))]);
                }
                opened => opened?,
            };
            if self.readers.len() >= OPEN {
                self.readers.pop_first();
            }
            self.readers.insert(id.clone(), reader);
        }
        let (mut drafts, mut length) = (Vec::new(), 0);
        let Some(reader) = self.readers.get_mut(id) else { return Ok(drafts) };
        let mut expected = fed + 1;
        while length < LENGTH {
            let line = match reader.next_upto(upto) {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(ReadError::Gone { .. }) if !drafts.is_empty() => break,
                Err(ReadError::Gone { first, .. }) => {
                    self.readers.remove(id);
                    return Ok(vec![Draft::gone(id, fed + 1, (first - 1).min(upto))]);
                }
                Err(error) => return Err(error),
            };
            if line.seq > expected {
                drafts.push(Draft::gone(id, expected, line.seq - 1));
            }
            expected = line.seq + 1;
            length += line.bytes.len();
            if let Ok(parts) = parts(line) {
                let data = if parts.data.len() <= LONGEST { parts.data.to_vec() } else { Vec::new() };
                drafts.push(Draft::record(id, line.seq, (&parts.time, &parts.kind), data));
            }
        }
        Ok(drafts)
    }

    fn remove(&mut self, id: &SessionId) -> Result<(), StoreError> {
        self.readers.remove(id);
        let known = self.shared.lock().known.get(id).cloned();
        let Some(known) = known else { return Ok(()) };
        let Some(brief) = known.stated.or(known.present) else {
            self.shared.lock().known.remove(id);
            return Ok(());
        };
        let notice = Notice::SessionRemoved(Box::new(SessionBrief::clone(&brief)));
        let draft = Draft::whole(Some(id.clone()), notice.kind(), &notice.to_data());
        self.append(vec![draft], |_| {})?;
        self.shared.lock().remove(brief);
        Ok(())
    }

    /// Appends events of one session or of the daemon, and tells the readers.
    fn append(&mut self, drafts: Vec<Draft>, change: impl FnOnce(&mut Known)) -> Result<(), StoreError> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let now = Timestamp::now();
        let (mut events, mut items) = (Vec::with_capacity(drafts.len()), Vec::with_capacity(drafts.len()));
        for Draft { kind, session, record, data, stored } in drafts {
            events.push((kind.clone(), stored));
            items.push((kind, session, record, data));
        }
        let mut cursor = store.append(now, &events)?;
        let stamp = format!("{now:.6}");
        let mut facts = self.shared.lock();
        if let Some(known) = items.first().and_then(|(_, session, ..)| facts.known.get_mut(session.as_ref()?)) {
            change(known);
        }
        for (kind, session, record, data) in items {
            cursor += 1;
            let (seq, time) = record.map_or((None, None), |(seq, time)| (Some(seq), Some(time)));
            let time = time.as_deref().unwrap_or(&stamp);
            let line =
                if data.is_empty() { Vec::new() } else { line(cursor, session.as_ref(), seq, (time, &kind), &data) };
            facts.push(Item { cursor, session, kind, line: line.into() });
        }
        drop(facts);
        self.shared.announce();
        Ok(())
    }

    /// Appends references to these records of a session, which are agent output. Readers take the events from the
    /// files.
    fn append_output(&mut self, id: &SessionId, records: RangeInclusive<u64>) -> Result<(), StoreError> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let reached = *records.end();
        store.append_references(Timestamp::now(), "agent.out", id, records)?;
        let mut facts = self.shared.lock();
        if let Some(known) = facts.known.get_mut(id) {
            known.fed = reached;
        }
        facts.skip_to(store.last());
        drop(facts);
        self.shared.announce();
        Ok(())
    }

    /// Writes the marks if they are due.
    fn mark(&mut self) -> Result<(), StoreError> {
        let Some(store) = self.store.as_mut().filter(|store| store.is_mark_due()) else { return Ok(()) };
        let mut marks = Marks::of(&self.shared.lock());
        store.mark(&mut marks, false)
    }

    /// Puts everything on the disk, so that the next daemon continues the era also after a restart of the machine.
    fn end(&mut self) {
        let Some(store) = &mut self.store else { return };
        let mut marks = Marks::of(&self.shared.lock());
        if let Err(error) = store.mark(&mut marks, true) {
            tracing::warn!(error = %chain(&error), "cannot complete the feed of events");
        }
    }
}

impl Draft {
    /// Makes an event that the feed stores whole.
    fn whole(session: Option<SessionId>, kind: &str, data: &RawValue) -> Self {
        let stored = raw(&Stored { s: session.clone(), q: None, d: Some(data) });
        Self { kind: kind.to_owned(), session, record: None, data: data.get().as_bytes().to_vec(), stored }
    }

    /// Makes an event that refers to a record.
    fn record(session: &SessionId, seq: u64, (time, kind): (&str, &str), data: Vec<u8>) -> Self {
        let stored = raw(&Stored { s: Some(session.clone()), q: Some(seq), d: None });
        let record = Some((seq, time.to_owned()));
        Self { kind: kind.to_owned(), session: Some(session.clone()), record, data, stored }
    }

    /// Makes the marker for records that are no longer kept.
    fn gone(session: &SessionId, first: u64, last: u64) -> Self {
        let data = FeedGone { first_seq: Some(first), last_seq: Some(last), ..FeedGone::default() };
        let mut draft = Self::whole(Some(session.clone()), FEED_GONE, &raw(&data));
        draft.record = None;
        draft
    }

    /// Returns the sequence number that the session is fed up to after this event.
    fn reached(&self) -> Option<u64> {
        let of_marker = || {
            let gone: FeedGone = serde_json::from_slice(&self.data).ok().filter(|_| self.kind == FEED_GONE)?;
            gone.last_seq
        };
        self.record.as_ref().map(|(seq, _)| *seq).or_else(of_marker)
    }
}

fn raw<T: serde::Serialize>(value: &T) -> Box<RawValue> {
    to_raw_value(value).expect("an event has string keys and no failing serializer")
}
