//! Tests of a journal with many segments: it reads as one journal while segments are closed and removed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use agentd_journal::{
    JOURNAL, Options, ReadError, Reader, Record, Retain, Sync, Writer, first_seq, is_held, last_seq, retain, size,
};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::value::to_raw_value;

fn writer(directory: &Path, rotate: u64) -> Writer {
    Writer::open(directory, Options { rotate, sync: Sync::Never }).unwrap().0
}

/// Appends `count` records of about `length` bytes with one write.
fn append(writer: &mut Writer, length: usize, count: usize) -> u64 {
    let data = to_raw_value(&"x".repeat(length)).unwrap();
    writer.append(Timestamp::UNIX_EPOCH, &vec![Record { kind: "agent.out", data: &data }; count]).unwrap()
}

/// Makes a journal in which each segment has two records.
fn pairs(directory: &Path, records: u64) -> Writer {
    let mut writer = writer(directory, 250);
    while append(&mut writer, 20, 1) < records {}
    writer
}

fn seqs(reader: &mut Reader) -> Vec<u64> {
    let mut seqs = Vec::new();
    while let Some(line) = reader.next().unwrap() {
        serde_json::from_slice::<serde_json::Value>(line.bytes).unwrap();
        seqs.push(line.seq);
    }
    seqs
}

fn all(directory: &Path) -> Vec<u64> {
    seqs(&mut Reader::open(directory, 0).unwrap())
}

fn segment(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("journal-{first:020}.jsonl"))
}

/// Returns the first `seq` of each closed segment.
fn closed(directory: &Path) -> Vec<u64> {
    let mut firsts: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_prefix("journal-")?.strip_suffix(".jsonl")?.parse().ok()
        })
        .collect();
    firsts.sort_unstable();
    firsts
}

fn gone(read: Result<impl Sized, ReadError>) -> u64 {
    match read {
        Err(ReadError::Gone { first, .. }) => first,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the read succeeded"),
    }
}

#[test]
fn a_full_segment_is_closed_under_the_seq_of_its_first_record() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    drop(pairs(directory, 7));
    assert_eq!(closed(directory), [1, 3, 5]);
    assert_eq!(all(directory), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((first_seq(directory).unwrap(), last_seq(directory).unwrap()), (1, 7));
    let bytes: u64 = [1, 3, 5].map(|first| segment(directory, first)).iter().map(|path| length(path)).sum();
    assert_eq!(size(directory).unwrap(), bytes + length(&directory.join(JOURNAL)));
    for path in [segment(directory, 1), directory.join(JOURNAL)] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[test]
fn an_append_is_never_split_and_one_above_the_limit_gets_its_own_segment() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut writer = writer(directory, 1000);
    append(&mut writer, 10, 1);
    append(&mut writer, 400, 5);
    append(&mut writer, 10, 1);
    assert_eq!(closed(directory), [1, 2]);
    assert_eq!(all(directory), (1..=7).collect::<Vec<_>>());
}

#[test]
fn every_cursor_is_valid_in_every_segment() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut writer = pairs(directory, 9);
    for after in 0..=12 {
        let mut reader = Reader::open(directory, after).unwrap();
        assert_eq!(reader.position(), after);
        assert_eq!(seqs(&mut reader), (after + 1..=9).collect::<Vec<_>>(), "after {after}");
        let mut last = Reader::open_last(directory, after).unwrap();
        assert_eq!(seqs(&mut last).len() as u64, after.min(9));
    }
    let mut ahead = Reader::open(directory, 11).unwrap();
    while append(&mut writer, 20, 1) < 15 {}
    assert_eq!(seqs(&mut ahead), [12, 13, 14, 15]);
}

#[test]
fn a_reader_that_fell_many_segments_behind_reads_them_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut writer = pairs(directory, 1);
    let (mut early, mut late) = (Reader::open(directory, 0).unwrap(), Reader::open(directory, 0).unwrap());
    assert_eq!(seqs(&mut early), [1]);
    while append(&mut writer, 20, 1) < 20 {}
    assert_eq!(seqs(&mut early), (2..=20).collect::<Vec<_>>());
    assert_eq!(seqs(&mut late), (1..=20).collect::<Vec<_>>());
    assert_eq!(append(&mut writer, 20, 1), 21);
    assert_eq!((seqs(&mut early), seqs(&mut late)), (vec![21], vec![21]));
}

#[test]
fn a_crash_between_rename_and_creation_is_readable_and_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    drop(pairs(directory, 4));
    let mut following = Reader::open(directory, 0).unwrap();
    assert_eq!(seqs(&mut following), [1, 2, 3, 4]);
    fs::rename(directory.join(JOURNAL), segment(directory, 3)).unwrap();
    assert_eq!((first_seq(directory).unwrap(), last_seq(directory).unwrap()), (1, 4));
    assert_eq!(all(directory), [1, 2, 3, 4]);
    let mut at_the_end = Reader::open(directory, 4).unwrap();
    assert_eq!((seqs(&mut following), seqs(&mut at_the_end)), (vec![], vec![]));
    assert_eq!(seqs(&mut Reader::open_last(directory, 1).unwrap()), [4]);
    // Removal must keep the segment from which the journal continues.
    retain(directory, Retain { at_most: 0, keep_after: 4 }).unwrap();
    assert_eq!(closed(directory), [3]);

    let mut writer = writer(directory, 250);
    assert_eq!(writer.last_seq(), 4);
    assert_eq!((seqs(&mut following), seqs(&mut at_the_end)), (vec![], vec![]));
    assert_eq!(
        retain(directory, Retain { at_most: 0, keep_after: 4 }).unwrap().first_seq,
        3,
        "the new segment is empty"
    );
    assert_eq!(append(&mut writer, 20, 1), 5);
    assert_eq!((seqs(&mut following), seqs(&mut at_the_end)), (vec![5], vec![5]));
}

#[test]
fn a_segment_with_a_lost_end_ends_the_journal_and_later_segments_are_quarantined() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    drop(pairs(directory, 8));
    let torn = segment(directory, 3);
    fs::write(&torn, &fs::read(&torn).unwrap()[..130]).unwrap();
    let (mut writer, repair) = Writer::open(directory, Options::default()).unwrap();
    assert_eq!(writer.last_seq(), 3);
    assert!(repair.torn > 0 && repair.set_aside > 0, "{repair:?}");
    assert_eq!(append(&mut writer, 20, 1), 4);
    assert_eq!(all(directory), [1, 2, 3, 4]);
    for name in ["journal-00000000000000000005.jsonl.torn", "journal.jsonl.torn"] {
        assert!(directory.join(name).exists(), "{name}");
    }
}

#[test]
fn retain_removes_the_oldest_segments_until_the_rest_fits() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut writer = pairs(directory, 9);
    let (whole, one) = (size(directory).unwrap(), length(&segment(directory, 1)));
    let retained = retain(directory, Retain { at_most: whole, keep_after: 9 }).unwrap();
    assert_eq!((retained.removed_bytes, retained.first_seq), (0, 1));
    let retained = retain(directory, Retain { at_most: whole - one - 1, keep_after: 9 }).unwrap();
    assert_eq!((retained.removed_bytes, retained.first_seq), (2 * one, 5));
    assert_eq!((first_seq(directory).unwrap(), size(directory).unwrap()), (5, whole - 2 * one));

    let mut from_the_beginning = Reader::open(directory, 0).unwrap();
    assert_eq!(seqs(&mut from_the_beginning), [5, 6, 7, 8, 9]);
    assert_eq!(seqs(&mut Reader::open(directory, 4).unwrap()), [5, 6, 7, 8, 9]);
    assert_eq!(seqs(&mut Reader::open_last(directory, 100).unwrap()), [5, 6, 7, 8, 9]);
    for after in 1..4 {
        assert_eq!(gone(Reader::open(directory, after)), 5);
    }

    // Records after `keep_after` stay, and so does the current segment.
    assert_eq!(retain(directory, Retain { at_most: 0, keep_after: 6 }).unwrap().first_seq, 7);
    assert_eq!(retain(directory, Retain { at_most: 0, keep_after: u64::MAX }).unwrap().first_seq, 9);
    assert_eq!(retain(directory, Retain { at_most: 0, keep_after: u64::MAX }).unwrap().removed_bytes, 0);
    assert_eq!(append(&mut writer, 20, 1), 10);
    drop(writer);
    assert_eq!(Writer::open(directory, Options::default()).unwrap().0.last_seq(), 10);
    assert_eq!(all(directory), [9, 10]);
}

#[test]
fn a_reader_reports_that_its_next_segment_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut writer = pairs(directory, 2);
    let mut slow = Reader::open(directory, 0).unwrap();
    assert_eq!(slow.next().unwrap().unwrap().seq, 1);
    while append(&mut writer, 20, 1) < 9 {}
    retain(directory, Retain { at_most: 0, keep_after: 9 }).unwrap();
    assert_eq!(slow.next().unwrap().unwrap().seq, 2, "its own descriptor is open");
    assert_eq!(gone(slow.next()), 9);
}

#[test]
fn records_removed_after_the_announced_seq_are_not_returned() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut writer = writer(directory, 1 << 20);
    append(&mut writer, 1, 1);
    let announced = length(&directory.join(JOURNAL));
    append(&mut writer, 2, 1);
    drop(writer);
    let mut reader = Reader::open(directory, 0).unwrap();
    assert_eq!(reader.next_upto(1).unwrap().unwrap().seq, 1);
    assert_eq!(reader.next_upto(1).unwrap(), None);
    // The same state as after a write that the disk took and then reported as failed.
    fs::OpenOptions::new().write(true).open(directory.join(JOURNAL)).unwrap().set_len(announced).unwrap();
    let mut writer = self::writer(directory, 1 << 20);
    append(&mut writer, 777, 1);
    let line = reader.next_upto(2).unwrap().unwrap();
    assert_eq!((line.seq, line.bytes.len() > 777), (2, true));

    // An incomplete line is read again too.
    let path = directory.join(JOURNAL);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [&whole[..], b"{\"seq\":3,\"tim"].concat()).unwrap();
    assert_eq!(reader.next().unwrap(), None);
    drop(writer);
    let mut writer = self::writer(directory, 1 << 20);
    append(&mut writer, 5, 1);
    assert_eq!(seqs(&mut reader), [3]);
}

#[test]
fn is_held_does_not_create_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    assert!(!is_held(directory.path()).unwrap());
    assert!(!directory.path().join(JOURNAL).exists());
    let writer = pairs(directory.path(), 1);
    assert!(is_held(directory.path()).unwrap());
    drop(writer);
    assert!(!is_held(directory.path()).unwrap());
}

#[test]
fn concurrent_readers_see_each_record_once_across_segments() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut writer = writer(directory, 40_000);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|n| {
                let done = &done;
                scope.spawn(move || {
                    let (mut reader, mut seen) = (Reader::open(directory, n).unwrap(), n);
                    loop {
                        let over = done.load(Ordering::Acquire);
                        while let Some(line) = reader.next().unwrap() {
                            seen += 1;
                            assert_eq!(line.seq, seen);
                            // One of the readers opens the journal again and again at its current position.
                            if n == 3 && seen % 7 == 0 {
                                reader = Reader::open(directory, seen).unwrap();
                            }
                        }
                        if over {
                            break seen;
                        }
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        let mut seq = 0;
        while seq < 20_000 {
            seq = append(&mut writer, usize::try_from(seq * 7919 % 1201).unwrap(), 2);
        }
        done.store(true, Ordering::Release);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), seq);
        }
    });
    assert!(closed(directory).len() > 100);
}

#[test]
fn a_reader_beside_a_remover_continues_or_reports_that_records_are_gone() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut writer = writer(directory, 2000);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                retain(directory, Retain { at_most: 8000, keep_after: u64::MAX }).unwrap();
            }
        });
        let reader = scope.spawn(|| {
            let mut reader = Reader::open(directory, 0).unwrap();
            let mut seen = reader.position();
            loop {
                let over = done.load(Ordering::Acquire);
                loop {
                    match reader.next() {
                        Ok(Some(line)) => {
                            assert_eq!(line.seq, seen + 1);
                            seen = line.seq;
                        }
                        Ok(None) => break,
                        Err(ReadError::Gone { first, .. }) => {
                            assert!(first > seen + 1);
                            reader = Reader::open(directory, 0).unwrap();
                            seen = reader.position();
                            // More records can be removed before the reader is opened again.
                            assert!(seen + 1 >= first);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                if over {
                    break seen;
                }
            }
        });
        let mut seq = 0;
        while seq < 20_000 {
            seq = append(&mut writer, 100, 3);
        }
        done.store(true, Ordering::Release);
        assert_eq!(reader.join().unwrap(), seq);
    });
}

/// Operation on a journal.
#[derive(Debug, Clone)]
enum Step {
    Append {
        length: usize,
        count: usize,
    },
    Sync,
    /// Closes the writer and opens another.
    Reopen,
    /// Kills the writer in the middle of a record and opens another.
    Torn {
        length: usize,
    },
    Retain {
        at_most: u64,
        keep_after: u64,
    },
    Open {
        after: u64,
    },
    /// The reader with this index reads up to `count` records.
    Read {
        reader: usize,
        count: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_usize..400, 1_usize..4).prop_map(|(length, count)| Step::Append { length, count }),
        1 => Just(Step::Sync),
        1 => Just(Step::Reopen),
        1 => (0_usize..60).prop_map(|length| Step::Torn { length }),
        1 => (0_u64..3000, 0_u64..60).prop_map(|(at_most, keep_after)| Step::Retain { at_most, keep_after }),
        2 => (0_u64..60).prop_map(|after| Step::Open { after }),
        5 => (0_usize..6, 1_usize..20).prop_map(|(reader, count)| Step::Read { reader, count }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn a_cursor_sees_each_record_once_or_reports_removed_records_in_any_history(
        rotate in 1_u64..1500,
        sync in prop_oneof![6 => Just(Sync::Never), 1 => Just(Sync::OnRequest), 1 => Just(Sync::Always)],
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let options = Options { rotate, sync };
        let open = || Writer::open(directory, options).unwrap().0;
        let mut writer = Some(open());
        let mut written = BTreeMap::new();
        let (mut last, mut first) = (0, 1);
        let mut readers: Vec<(Reader, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Append { length, count } => {
                    let seq = append(writer.as_mut().unwrap(), length, count);
                    prop_assert_eq!(seq, last + count as u64);
                    written.extend((last + 1..=seq).map(|seq| (seq, length)));
                    last = seq;
                }
                Step::Sync => writer.as_mut().unwrap().sync().unwrap(),
                Step::Reopen => {
                    drop(writer.take());
                    writer = Some(open());
                }
                Step::Torn { length } => {
                    drop(writer.take());
                    let line = format!("{{\"seq\":{},\"time\":\"2026-01-01T00:00:00Z\",\"kind\":\"k\"", last + 1);
                    let path = directory.join(JOURNAL);
                    let torn = [fs::read(&path).unwrap(), line.into_bytes()[..length.min(40)].to_vec()].concat();
                    fs::write(&path, torn).unwrap();
                    writer = Some(open());
                }
                Step::Retain { at_most, keep_after } => {
                    let before = size(directory).unwrap();
                    let retained = retain(directory, Retain { at_most, keep_after }).unwrap();
                    prop_assert_eq!(size(directory).unwrap(), before - retained.removed_bytes);
                    prop_assert!(retained.first_seq >= first && retained.first_seq <= last + 1);
                    prop_assert!(retained.first_seq == first || retained.first_seq - 1 <= keep_after);
                    first = retained.first_seq;
                }
                Step::Open { after } => match Reader::open(directory, after) {
                    Ok(reader) => readers.push((reader, after.max(first - 1))),
                    Err(ReadError::Gone { first: said, .. }) => {
                        prop_assert!(said == first && after > 0 && after + 1 < first);
                    }
                    Err(error) => panic!("{error}"),
                },
                Step::Read { reader, count } => {
                    let Some((reader, seen)) = readers.get_mut(reader) else { continue };
                    for _ in 0..count {
                        match reader.next() {
                            Ok(Some(line)) => {
                                prop_assert_eq!(line.seq, *seen + 1);
                                prop_assert!(line.bytes.len() > written[&line.seq]);
                                *seen = line.seq;
                            }
                            Ok(None) => {
                                prop_assert!(*seen >= last);
                                break;
                            }
                            Err(ReadError::Gone { first: said, .. }) => {
                                prop_assert!(said == first && *seen + 1 < first);
                                break;
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            }
            prop_assert_eq!((first_seq(directory).unwrap(), last_seq(directory).unwrap()), (first, last));
        }
        drop(writer);
        prop_assert_eq!(all(directory), (first..=last).collect::<Vec<_>>());
        for (at, _) in written.range(first..) {
            let mut reader = Reader::open(directory, at.saturating_sub(1).max(first - 1)).unwrap();
            prop_assert_eq!(seqs(&mut reader), (*at..=last).collect::<Vec<_>>());
        }
    }
}
