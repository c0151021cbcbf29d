//! Reads a session's journal from the disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use agentd_api::{Body, Event, SessionId};

use super::LIMIT;

pub(crate) fn path(state: &Path, id: &SessionId) -> PathBuf {
    state.join("sessions").join(id.as_str()).join("journal.jsonl")
}

/// Returns the lines of all files of the journal, oldest first. Tolerates states that a reader may see during a
/// write: half a line, or a segment that is just being closed. Other defects fail the test.
fn whole_lines(path: &Path) -> Vec<u8> {
    let give_up = Instant::now() + LIMIT;
    loop {
        let before = put_aside(path);
        let mut bytes = Vec::new();
        for segment in &before {
            bytes.extend(fs::read(segment).expect("a segment that was put aside can be read"));
        }
        let current = fs::read(path);
        if current.is_ok() && put_aside(path) == before {
            bytes.extend(current.unwrap_or_default());
            if bytes.last() == Some(&b'\n') {
                return bytes;
            }
        }
        assert!(Instant::now() < give_up, "the journal's last line does not end, or it has no current segment");
        std::thread::yield_now();
    }
}

/// Returns the closed segments. The order of their names is the order of their records.
fn put_aside(path: &Path) -> Vec<PathBuf> {
    let directory = path.parent().expect("a journal is in a directory");
    let entries = fs::read_dir(directory).expect("the session's directory can be read").flatten();
    let is_one = |name: &str| name.strip_prefix("journal-").is_some_and(|rest| rest.strip_suffix(".jsonl").is_some());
    let mut segments: Vec<PathBuf> =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(is_one)).map(|entry| entry.path()).collect();
    segments.sort();
    segments
}

/// Reads a journal and checks its promises: each line ends, is JSON and a record of a known kind, and `seq` is 1, 2,
/// 3 ...
pub(crate) fn checked(state: &Path, id: &SessionId) -> Vec<Event> {
    let events = parsed(state, id);
    for (place, event) in events.iter().enumerate() {
        assert_eq!(u64::try_from(place + 1), Ok(event.seq), "a gap or a double at {event:?}");
    }
    events
}

/// Reads a journal whose records may have any sequence numbers.
pub(crate) fn parsed(state: &Path, id: &SessionId) -> Vec<Event> {
    let bytes = whole_lines(&path(state, id));
    let mut events = Vec::new();
    for line in bytes[..bytes.len() - 1].split(|&byte| byte == b'\n') {
        let shown = String::from_utf8_lossy(line);
        serde_json::from_slice::<serde_json::Value>(line).unwrap_or_else(|error| panic!("not JSON: {error}: {shown}"));
        let event = Event::parse(line).unwrap_or_else(|error| panic!("not a record: {error:?}: {shown}"));
        assert!(!matches!(event.body, Body::Unknown { .. }), "a kind that the contract does not name: {shown}");
        events.push(event);
    }
    events
}
