//! The files of the feed: a directory for each era, with a journal and `marks.json`.
//!
//! `marks.json` has how far each session was fed, up to one event. After a crash the later events are read from the
//! journal. Nothing is synced while the feed is written: after a power cut the era ends, and nothing is lost but the
//! former cursors.

use std::collections::{BTreeMap, VecDeque};
use std::fs::DirBuilder;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::SessionId;
use agentd_api::feed::SessionBrief;
use agentd_journal::{AppendError, OpenError, ReadError, Reader, Record, Retain, Sync, Writer, retain};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::brief::Known;
use crate::entry::{Content, Entry};
use crate::recent::FeedFacts;

/// File with the marks.
const MARKS: &str = "marks.json";
/// Identifies the present run of the machine. Only Linux has this file.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Number of events after which the marks are written again.
const MARKED: u64 = 20_000;
/// Distance of a new era's cursors from those of the former era, if the clock went back.
const APART: u64 = 1_000_000_000;
/// Latest start of an era. The cursors of its events then fit into a `u64`.
const LATEST: u64 = u64::MAX / 4;
/// Number of segments in which the kept events lie.
const SEGMENTS: u64 = 16;

/// Error of the feed's files.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("cannot read or write {path:?}")]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The last event of each session in the feed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Marks {
    /// The run of the machine in which the feed is written.
    boot: String,
    /// Whether the daemon ended in order, with all events on the disk.
    clean: bool,
    /// Number of the last event that the marks include.
    upto: u64,
    pub(crate) sessions: BTreeMap<SessionId, Known>,
    pub(crate) removed: VecDeque<Arc<SessionBrief>>,
}

/// The open files. Only the writing thread has them.
#[derive(Debug)]
pub(crate) struct Store {
    directory: PathBuf,
    /// Cursor before the first event.
    pub(crate) base: u64,
    writer: Writer,
    /// Size of the kept events in bytes.
    pub(crate) keep: u64,
    /// Number of the last event that the marks include.
    marked: u64,
}

impl Store {
    /// Opens the present era, or begins another: at `since`, or behind the former one if that is later. `since` is in
    /// microseconds since 1970. Also returns the marks up to the last event.
    pub(crate) fn open(root: &Path, keep: u64, since: u64) -> Result<(Self, Marks), StoreError> {
        private(root)?;
        let eras = eras(root)?;
        let newest = eras.last().copied();
        if let Some(base) = newest
            && let Some((mut store, mut marks)) = Self::continued(root, base, keep)?
        {
            store.mark(&mut marks, false)?;
            others(root, &eras, store.base);
            return Ok((store, marks));
        }
        let after = newest.map(|base| base + agentd_journal::last_seq(&era(root, base)).unwrap_or_default() + APART);
        let base = after.map_or(since, |after| since.max(after));
        let directory = era(root, base);
        private(&directory)?;
        let (writer, _) = Writer::open(&directory, options(keep))?;
        let (mut store, mut marks) = (Self { directory, base, writer, keep, marked: 0 }, Marks::default());
        store.mark(&mut marks, false)?;
        others(root, &eras, base);
        Ok((store, marks))
    }

    /// Opens an era, unless its end may be lost or its files are damaged.
    fn continued(root: &Path, base: u64, keep: u64) -> Result<Option<(Self, Marks)>, StoreError> {
        let directory = era(root, base);
        let path = directory.join(MARKS);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StoreError::File { path, source }),
        };
        let Ok(mut marks) = serde_json::from_slice::<Marks>(&text) else { return Ok(None) };
        if !marks.clean && marks.boot != boot() {
            return Ok(None);
        }
        let (writer, repair) = Writer::open(&directory, options(keep))?;
        if writer.last_seq() < marks.upto {
            return Ok(None);
        }
        tracing::debug!(?repair, upto = marks.upto, last = writer.last_seq(), "opened the feed");
        let upto = marks.upto;
        match complete(&directory, upto, &mut marks) {
            Ok(true) => {}
            Ok(false) | Err(ReadError::Corrupt { .. } | ReadError::Gap { .. } | ReadError::Gone { .. }) => {
                tracing::error!(directory = %directory.display(), "the feed is damaged; another era begins");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Some((Self { directory, base, writer, keep, marked: upto }, marks)))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the cursor of the last event.
    pub(crate) fn last(&self) -> u64 {
        self.base + self.writer.last_seq()
    }

    /// Appends events, and returns the cursor before the first new event.
    pub(crate) fn append(&mut self, now: Timestamp, events: &[(String, Box<RawValue>)]) -> Result<u64, StoreError> {
        let before = self.last();
        let records: Vec<Record<'_>> = events.iter().map(|(kind, data)| Record { kind, data }).collect();
        self.writer.append(now, &records)?;
        Ok(before)
    }

    /// Appends events that refer to these records of a session, all of one kind.
    pub(crate) fn append_references(
        &mut self,
        now: Timestamp,
        kind: &str,
        session: &SessionId,
        records: RangeInclusive<u64>,
    ) -> Result<(), StoreError> {
        use std::fmt::Write as _;
        // All data in one text is checked at once, as the elements of an array.
        let begin = format!("{{\"s\":\"{}\",\"q\":", session.as_str());
        let mut text = String::from("[");
        for seq in records {
            text.push_str(if text.len() > 1 { "," } else { "" });
            text.push_str(&begin);
            write!(text, "{seq}}}").expect("a String takes every write");
        }
        text.push(']');
        let data: Vec<&RawValue> = serde_json::from_str(&text).expect("an id and a number are JSON");
        let records: Vec<Record<'_>> = data.iter().map(|data| Record { kind, data }).collect();
        self.writer.append(now, &records)?;
        Ok(())
    }

    /// Releases memory that only long appends need.
    pub(crate) fn shrink(&mut self) {
        self.writer.shrink();
    }

    /// Reports whether the marks are so old that they are to be written again.
    pub(crate) fn is_mark_due(&self) -> bool {
        let segment = self.keep / SEGMENTS / 256;
        self.writer.last_seq() - self.marked >= MARKED.min(segment.max(1))
    }

    /// Writes the marks, and removes the oldest events beyond the size.
    pub(crate) fn mark(&mut self, marks: &mut Marks, is_end: bool) -> Result<(), StoreError> {
        if is_end {
            self.writer.sync()?;
        }
        (marks.boot, marks.clean, marks.upto) = (boot(), is_end, self.writer.last_seq());
        let path = self.directory.join(MARKS);
        write(&path, marks, is_end).map_err(|source| StoreError::File { path, source })?;
        self.marked = marks.upto;
        if let Err(error) = retain(&self.directory, Retain { at_most: self.keep, keep_after: self.marked }) {
            tracing::warn!(error = %agentd_api::chain(&error), "cannot shorten the feed");
        }
        Ok(())
    }
}

/// Applies the events after the marks. Returns `false` for a damaged event.
fn complete(directory: &Path, upto: u64, marks: &mut Marks) -> Result<bool, ReadError> {
    let mut reader = Reader::open(directory, upto)?;
    while let Some(line) = reader.next()? {
        let Ok(entry) = Entry::of(line) else { return Ok(false) };
        marks.apply(&entry);
    }
    Ok(true)
}

impl Marks {
    /// Returns the marks at the last event.
    pub(crate) fn of(facts: &FeedFacts) -> Self {
        Self { sessions: facts.known.clone(), removed: facts.removed.clone(), ..Self::default() }
    }

    /// Applies one event of the feed.
    fn apply(&mut self, entry: &Entry) {
        let Some(session) = &entry.session else { return };
        let known = self.sessions.entry(session.clone()).or_insert_with(|| Known::new(0));
        match &entry.content {
            Content::Record(seq) => known.fed = *seq,
            Content::Whole { data, .. } => match entry.kind.as_str() {
                "session.state" => known.stated = serde_json::from_str(data.get()).ok(),
                "session.removed" => {
                    self.sessions.remove(session);
                    self.removed.extend(serde_json::from_str::<Arc<SessionBrief>>(data.get()).ok());
                }
                agentd_api::feed::FEED_GONE => {
                    let gone = serde_json::from_str::<agentd_api::feed::FeedGone>(data.get()).unwrap_or_default();
                    known.fed = known.fed.max(gone.last_seq.unwrap_or_default());
                }
                _ => {}
            },
        }
    }
}

fn options(keep: u64) -> agentd_journal::Options {
    agentd_journal::Options { rotate: (keep / SEGMENTS).max(4 << 10), sync: Sync::OnRequest }
}

fn boot() -> String {
    std::fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned()
}

fn era(root: &Path, base: u64) -> PathBuf {
    root.join(base.to_string())
}

/// Lists the eras, oldest first.
fn eras(root: &Path) -> Result<Vec<u64>, StoreError> {
    let listed = || -> io::Result<Vec<u64>> {
        let mut eras = Vec::new();
        for entry in std::fs::read_dir(root)? {
            eras.extend(
                entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()).filter(|base| *base <= LATEST),
            );
        }
        eras.sort_unstable();
        Ok(eras)
    };
    listed().map_err(|source| StoreError::File { path: root.to_owned(), source })
}

/// Removes the former eras.
fn others(root: &Path, eras: &[u64], present: u64) {
    for base in eras.iter().filter(|base| **base != present) {
        if let Err(error) = std::fs::remove_dir_all(era(root, *base)) {
            tracing::warn!(%error, era = base, "cannot remove a former era of the feed");
        }
    }
}

/// Creates a directory that only its user can enter.
fn private(path: &Path) -> Result<(), StoreError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| StoreError::File { path: path.to_owned(), source })
}

/// Replaces the marks in one step. They are synced at the end alone.
fn write(path: &Path, marks: &Marks, sync: bool) -> io::Result<()> {
    let unfinished = path.with_extension("new");
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    let mut buffer = io::BufWriter::new(file);
    serde_json::to_writer(&mut buffer, marks)?;
    let file = buffer.into_inner().map_err(io::IntoInnerError::into_error)?;
    if sync {
        file.sync_all()?;
    }
    std::fs::rename(&unfinished, path)?;
    if sync && let Some(directory) = path.parent() {
        std::fs::File::open(directory)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: u64 = 1 << 20;
    const SINCE: u64 = 1_000_000;

    fn append(store: &mut Store, seqs: RangeInclusive<u64>) {
        let id = "abcdefghjkmn".parse().unwrap();
        store.append_references(Timestamp::now(), "agent.out", &id, seqs).unwrap();
    }

    fn fed(marks: &Marks) -> u64 {
        marks.sessions.values().map(|known| known.fed).sum()
    }

    #[test]
    fn a_killed_writer_is_continued_with_its_cursors_and_marks() {
        let root = tempfile::tempdir().unwrap();
        let (mut store, mut marks) = Store::open(root.path(), KEEP, SINCE).unwrap();
        assert_eq!(store.base, SINCE, "the opening of the files may be much later");
        append(&mut store, 1..=3);
        marks.sessions.insert("abcdefghjkmn".parse().unwrap(), Known::new(3));
        store.mark(&mut marks, false).unwrap();
        append(&mut store, 4..=5);
        let (base, last) = (store.base, store.last());
        drop(store);
        let (store, marks) = Store::open(root.path(), KEEP, SINCE).unwrap();
        assert_eq!((store.base, store.last(), fed(&marks)), (base, last, 5));
    }

    #[test]
    fn another_run_of_the_machine_continues_an_era_only_after_an_end_in_order() {
        let root = tempfile::tempdir().unwrap();
        let another_boot = |directory: &Path| {
            let path = directory.join(MARKS);
            let mut marks: Marks = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            marks.boot = "another".to_owned();
            write(&path, &marks, false).unwrap();
        };
        let (mut store, mut marks) = Store::open(root.path(), KEEP, SINCE).unwrap();
        append(&mut store, 1..=9);
        store.mark(&mut marks, true).unwrap();
        let (base, last) = (store.base, store.last());
        another_boot(&store.directory);
        drop(store);
        let (store, _) = Store::open(root.path(), KEEP, SINCE).unwrap();
        assert_eq!((store.base, store.last()), (base, last), "the daemon had ended in order");
        another_boot(&store.directory);
        drop(store);
        let (store, marks) = Store::open(root.path(), KEEP, SINCE).unwrap();
        assert!(store.base > last, "a cursor of the new era is none of the former");
        assert_eq!((store.last(), fed(&marks)), (store.base, 0));
        assert_eq!(eras(root.path()).unwrap(), [store.base], "the former era is removed");
    }

    #[test]
    fn old_events_are_removed_beyond_the_size_and_the_marks_stay() {
        let root = tempfile::tempdir().unwrap();
        let keep = 64 << 10;
        let (mut store, mut marks) = Store::open(root.path(), keep, SINCE).unwrap();
        for block in 0..40_u64 {
            append(&mut store, block * 50 + 1..=block * 50 + 50);
            marks.sessions.insert("abcdefghjkmn".parse().unwrap(), Known::new(block * 50 + 50));
            if store.is_mark_due() {
                store.mark(&mut marks, false).unwrap();
            }
        }
        assert!(agentd_journal::first_seq(store.directory()).unwrap() > 1);
        assert!(agentd_journal::size(store.directory()).unwrap() < 2 * keep);
        drop(store);
        assert_eq!(fed(&Store::open(root.path(), keep, SINCE).unwrap().1), 2000);
    }

    #[test]
    fn a_damaged_feed_begins_another_era() {
        let root = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(root.path(), KEEP, SINCE).unwrap();
        append(&mut store, 1..=9);
        let (base, path) = (store.base, store.directory.join(MARKS));
        drop(store);
        std::fs::write(path, "{").unwrap();
        assert!(Store::open(root.path(), KEEP, SINCE).unwrap().0.base > base);
    }
}
