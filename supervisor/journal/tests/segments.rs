//! A journal of many segments from outside: it reads as one, whatever is put aside and removed meanwhile.

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

/// Appends `count` records of about `length` bytes in one piece.
fn append(writer: &mut Writer, length: usize, count: usize) -> u64 {
    let data = to_raw_value(&"x".repeat(length)).unwrap();
    writer.append(Timestamp::UNIX_EPOCH, &vec![Record { kind: "agent.out", data: &data }; count]).unwrap()
}

/// A journal in which each segment has two records.
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

/// The first seqs of the segments that were put aside.
fn aside(directory: &Path) -> Vec<u64> {
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
        Ok(_) => panic!("it was read"),
    }
}

#[test]
fn a_full_segment_is_put_aside_under_its_first_seq() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    drop(pairs(directory, 7));
    assert_eq!(aside(directory), [1, 3, 5]);
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
fn one_append_is_never_divided_and_one_that_is_too_long_has_a_segment() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut writer = writer(directory, 1000);
    append(&mut writer, 10, 1);
    append(&mut writer, 400, 5);
    append(&mut writer, 10, 1);
    assert_eq!(aside(directory), [1, 2]);
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
fn a_reader_that_slept_over_many_segments_reads_them_one_after_the_other() {
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
fn a_crash_between_rename_and_creation_is_read_right_and_repaired() {
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
    // What is removed now must leave the place at which the journal goes on.
    retain(directory, Retain { at_most: 0, keep_after: 4 }).unwrap();
    assert_eq!(aside(directory), [3]);

    let mut writer = writer(directory, 250);
    assert_eq!(writer.last_seq(), 4);
    assert_eq!((seqs(&mut following), seqs(&mut at_the_end)), (vec![], vec![]));
    assert_eq!(
        retain(directory, Retain { at_most: 0, keep_after: 4 }).unwrap().first_seq,
        3,
        "nothing is in the new one yet"
    );
    assert_eq!(append(&mut writer, 20, 1), 5);
    assert_eq!((seqs(&mut following), seqs(&mut at_the_end)), (vec![5], vec![5]));
}

#[test]
fn a_segment_that_the_machine_lost_the_end_of_ends_the_journal_and_what_followed_is_set_aside() {
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
fn the_oldest_segments_go_until_the_rest_is_small_enough() {
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

    // What is not folded stays, and so does the current segment.
    assert_eq!(retain(directory, Retain { at_most: 0, keep_after: 6 }).unwrap().first_seq, 7);
    assert_eq!(retain(directory, Retain { at_most: 0, keep_after: u64::MAX }).unwrap().first_seq, 9);
    assert_eq!(retain(directory, Retain { at_most: 0, keep_after: u64::MAX }).unwrap().removed_bytes, 0);
    assert_eq!(append(&mut writer, 20, 1), 10);
    drop(writer);
    assert_eq!(Writer::open(directory, Options::default()).unwrap().0.last_seq(), 10);
    assert_eq!(all(directory), [9, 10]);
}

#[test]
fn a_reader_whose_next_segment_was_removed_says_so() {
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
fn what_is_taken_back_beyond_the_announced_is_not_given() {
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
    // As a writer does whose disk took the bytes and then failed.
    fs::OpenOptions::new().write(true).open(directory.join(JOURNAL)).unwrap().set_len(announced).unwrap();
    let mut writer = self::writer(directory, 1 << 20);
    append(&mut writer, 777, 1);
    let line = reader.next_upto(2).unwrap().unwrap();
    assert_eq!((line.seq, line.bytes.len() > 777), (2, true));

    // A line that does not end yet is looked at anew too.
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
fn whether_a_journal_is_held_can_be_asked_without_touching_it() {
    let directory = tempfile::tempdir().unwrap();
    assert!(!is_held(directory.path()).unwrap());
    assert!(!directory.path().join(JOURNAL).exists());
    let writer = pairs(directory.path(), 1);
    assert!(is_held(directory.path()).unwrap());
    drop(writer);
    assert!(!is_held(directory.path()).unwrap());
}

#[test]
fn readers_beside_a_writer_that_puts_aside_lose_and_double_nothing() {
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
                            // One of them opens its journal over and over, wherever it is by then.
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
    assert!(aside(directory).len() > 100);
}

#[test]
fn a_reader_beside_one_that_removes_goes_on_or_says_that_it_cannot() {
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
                            // By the time that it is opened even more may be gone.
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

/// What may happen to a journal.
#[derive(Debug, Clone)]
enum Step {
    Append {
        length: usize,
        count: usize,
    },
    Sync,
    /// The writer ends and another one comes.
    Reopen,
    /// The writer is killed while it writes a record, and another one comes.
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
    /// The n-th reader reads so many records.
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
    fn whatever_happens_a_cursor_sees_each_record_once_or_is_told_what_is_gone(
        rotate in 1_u64..1500,
        sync in prop_oneof![6 => Just(Sync::Never), 1 => Just(Sync::Asked), 1 => Just(Sync::Always)],
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
