//! Journals on the disk: any bytes in any segments. A line `=== NUMBER` begins the closed segment with that first
//! record. The bytes before the first such line are the current segment.
//!
//! Properties:
//! - A reader returns lines of the files with consecutive numbers, and ends.
//! - A reader from a cursor returns the end of a whole reading.
//! - A repair loses no byte: each is in a segment or in a file beside the journal. It is done after one pass.
//! - After the repair, an appended record is the last record, unless the reader reports damage in the middle.
//! - A journal whose lines could all be read can be read after the repair and the append.
//! - The parts of a line are the fields of its envelope.

#![no_main]

mod meter;

use std::fs;
use std::path::Path;

use agentd_api::event::Envelope;
use agentd_journal::{JOURNAL, LOCK, Options, Reader, Record, Sync, Writer};
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

/// Line that begins a closed segment, before its number.
const SEGMENT: &str = "=== ";

fuzz_target!(|data: &[u8]| {
    let base = Path::new("/dev/shm");
    let directory = tempfile::tempdir_in(if base.is_dir() { base } else { Path::new("/tmp") }).expect("a directory");
    meter::bounded(data, 4 << 20, 64, || {
        write(directory.path(), data);
        journal(directory.path());
    });
});

/// Writes the segments of the input.
fn write(directory: &Path, data: &[u8]) {
    let (mut name, mut content) = (JOURNAL.to_owned(), Vec::new());
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        let number =
            std::str::from_utf8(line).ok().and_then(|line| line.strip_prefix(SEGMENT)?.trim_end().parse().ok());
        if let Some(number) = number {
            let number: u64 = number;
            fs::write(directory.join(name), &content).expect("a file can be written");
            (name, content) = (format!("journal-{number:020}.jsonl"), Vec::new());
        } else {
            content.extend_from_slice(line);
        }
    }
    fs::write(directory.join(name), &content).expect("a file can be written");
}

/// A whole reading: the lines with their numbers, and whether the reader failed.
type Reading = (Vec<(u64, Vec<u8>)>, bool);

fn read(reader: Result<Reader, agentd_journal::ReadError>) -> Reading {
    let mut lines = Vec::new();
    let Ok(mut reader) = reader else { return (lines, true) };
    loop {
        match reader.next() {
            Ok(Some(line)) => {
                if let (Some(parts), Ok(envelope)) = (line.parts(), serde_json::from_slice::<Envelope<'_>>(line.bytes))
                {
                    assert_eq!(
                        (parts.kind, parts.data.trim_ascii()),
                        (&*envelope.kind, envelope.data.get().as_bytes())
                    );
                    assert_eq!(line.seq, envelope.seq);
                }
                lines.push((line.seq, line.bytes.to_vec()));
                let position = reader.position();
                assert_eq!(position, lines.last().map_or(0, |(seq, _)| *seq));
            }
            Ok(None) => return (lines, false),
            Err(_) => return (lines, true),
        }
    }
}

/// Returns all bytes of the directory, sorted, for a comparison that does not depend on their places.
fn bytes(directory: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        if entry.file_name() != LOCK {
            all.extend(fs::read(entry.path()).expect("a file"));
        }
    }
    all.sort_unstable();
    all
}

fn journal(directory: &Path) {
    let (lines, failed) = read(Reader::open(directory, 0));
    assert!(lines.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0), "the numbers have gaps");
    let before = bytes(directory);
    // A reader ignores segments that no writer leaves beside the current segment, so another reading may prefer them.
    let is_whole = before.iter().filter(|byte| **byte == b'\n').count() == lines.len();
    if !failed && is_whole {
        suffixes(directory, &lines);
    }
    let options = Options { rotate: 4096, sync: Sync::Never };
    let Ok((mut writer, repair)) = Writer::open(directory, options) else { return };
    let last = lines.last().map_or(0, |(seq, _)| *seq);
    let data = RawValue::from_string("{}".to_owned()).expect("JSON");
    let repaired = bytes(directory);
    assert_eq!(repaired, before, "the repair lost bytes");
    drop(writer);
    let (again, second) = Writer::open(directory, options).expect("a repaired journal opens");
    assert_eq!((second.torn, second.set_aside), (0, 0), "the first repair, {repair:?}, was not complete");
    writer = again;
    writer.append(jiff::Timestamp::UNIX_EPOCH, &[Record { kind: "fuzz.end", data: &data }]).expect("an append");
    let (end, broken) = read(Reader::open_last(directory, 1));
    // In a journal that is damaged in the middle, a reader may refuse to look for the place.
    assert!(failed || !broken, "the appended record cannot be read");
    if broken {
        return;
    }
    assert_eq!(end.len(), 1, "the last record is one");
    assert_eq!(serde_json::from_slice::<Envelope<'_>>(&end[0].1).expect("an envelope").kind, "fuzz.end");
    if !failed && is_whole {
        let (whole, broken) = read(Reader::open(directory, 0));
        assert!(!broken, "the repair made a journal unreadable");
        assert_eq!(whole.last(), end.last());
        assert!(lines.is_empty() || end[0].0 <= last + 1, "the appended record has number {} after {last}", end[0].0);
    }
}

/// Checks readers that begin later than the first record of a readable journal.
fn suffixes(directory: &Path, lines: &[(u64, Vec<u8>)]) {
    // Without a record, the number of an incomplete line or the name of a segment tells what was removed.
    if let Some((last, _)) = lines.last() {
        assert_eq!(agentd_journal::last_seq(directory).expect("a readable journal"), *last);
    }
    for back in [0, 1, 2, lines.len() / 2] {
        let from = lines.len().saturating_sub(back);
        let (end, broken) = read(Reader::open_last(directory, back as u64));
        assert!(!broken && end == lines[from..], "the last {back} of {} records", lines.len());
    }
    for (seq, _) in lines.iter().step_by(lines.len() / 4 + 1) {
        let (rest, broken) = read(Reader::open(directory, *seq));
        let from = lines.iter().position(|(other, _)| other == seq).map_or(0, |at| at + 1);
        assert!(!broken && rest == lines[from..], "the records after {seq}");
    }
}
