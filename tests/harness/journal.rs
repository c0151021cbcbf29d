//! A session's journal as it lies on the disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use agentd_api::{Body, Event, SessionId};

use super::LIMIT;

pub(crate) fn path(state: &Path, id: &SessionId) -> PathBuf {
    state.join("sessions").join(id.as_str()).join("journal.jsonl")
}

/// A reader may see a part of what is being written; a line that never ends is a fault.
fn whole_lines(path: &Path) -> Vec<u8> {
    let give_up = Instant::now() + LIMIT;
    loop {
        let bytes = fs::read(path).expect("the journal can be read");
        if bytes.last() == Some(&b'\n') {
            return bytes;
        }
        assert!(Instant::now() < give_up, "the journal's last line does not end");
        std::thread::yield_now();
    }
}

/// Reads a journal and holds it to its promise: each line ends, is JSON and a record of a known kind, and `seq` is 1, 2, 3 ...
pub(crate) fn checked(state: &Path, id: &SessionId) -> Vec<Event> {
    let bytes = whole_lines(&path(state, id));
    let mut events = Vec::new();
    for line in bytes[..bytes.len() - 1].split(|&byte| byte == b'\n') {
        let shown = String::from_utf8_lossy(line);
        serde_json::from_slice::<serde_json::Value>(line).unwrap_or_else(|error| panic!("not JSON: {error}: {shown}"));
        let event = Event::parse(line).unwrap_or_else(|error| panic!("not a record: {error:?}: {shown}"));
        assert!(!matches!(event.body, Body::Unknown { .. }), "a kind that the contract does not name: {shown}");
        events.push(event);
        assert_eq!(
            events.last().map(|event| event.seq),
            u64::try_from(events.len()).ok(),
            "a gap or a double at {shown}"
        );
    }
    events
}
