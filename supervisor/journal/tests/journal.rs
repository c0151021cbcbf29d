//! Tests of the journal's public interface: a reader returns exactly what was appended, also after failures.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use agentd_journal::{
    AppendError, JOURNAL, OpenError, Options, ReadError, Reader, Record, Retain, TORN, Writer, last_seq,
    truncate_torn_tail,
};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::value::{RawValue, to_raw_value};

fn append(writer: &mut Writer, data: &[Box<RawValue>]) -> Result<u64, AppendError> {
    let records: Vec<_> = data.iter().map(|data| Record { kind: "agent.out", data }).collect();
    writer.append(Timestamp::UNIX_EPOCH, &records)
}

/// Returns a JSON string whose record is about `length` bytes long.
fn text(length: usize) -> Box<RawValue> {
    to_raw_value(&"x".repeat(length)).unwrap()
}

/// Makes a journal with records of these lengths.
fn journal(directory: &Path, lengths: &[usize]) -> Writer {
    let (mut writer, _) = Writer::open(directory, Options::default()).unwrap();
    for length in lengths {
        append(&mut writer, &[text(*length)]).unwrap();
    }
    writer
}

fn read(reader: &mut Reader) -> Vec<(u64, usize)> {
    let mut lines = Vec::new();
    while let Some(line) = reader.next().unwrap() {
        serde_json::from_slice::<serde_json::Value>(line.bytes).unwrap();
        lines.push((line.seq, line.bytes.len()));
    }
    lines
}

fn seqs(reader: &mut Reader) -> Vec<u64> {
    read(reader).into_iter().map(|(seq, _)| seq).collect()
}

#[test]
fn an_empty_journal_is_read_on_when_it_grows() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, repair) = Writer::open(directory.path(), Options::default()).unwrap();
    assert_eq!((repair.torn, writer.last_seq(), last_seq(directory.path()).unwrap()), (0, 0, 0));
    let mut reader = Reader::open(directory.path(), 0).unwrap();
    assert_eq!(reader.next().unwrap(), None);
    assert_eq!(append(&mut writer, &[text(1), text(2)]).unwrap(), 2);
    assert_eq!(seqs(&mut reader), [1, 2]);
    assert_eq!(reader.next().unwrap(), None);
    assert_eq!(reader.position(), 2);
}

#[test]
fn the_files_are_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let _writer = journal(directory.path(), &[1]);
    for name in [JOURNAL, agentd_journal::LOCK] {
        let mode = fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_second_writer_is_refused_until_the_first_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let writer = journal(directory.path(), &[1]);
    assert!(matches!(Writer::open(directory.path(), Options::default()), Err(OpenError::Held { .. })));
    drop(writer);
    assert_eq!(Writer::open(directory.path(), Options::default()).unwrap().0.last_seq(), 1);
}

#[test]
fn data_with_a_line_break_is_refused_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = journal(directory.path(), &[1]);
    let broken = RawValue::from_string("{\n}".to_owned()).unwrap();
    assert!(matches!(append(&mut writer, &[text(1), broken]), Err(AppendError::LineBreak { .. })));
    assert_eq!((writer.last_seq(), last_seq(directory.path()).unwrap()), (1, 1));
}

#[test]
fn a_journal_torn_at_any_byte_gives_a_prefix_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    drop(journal(directory.path(), &[3, 40, 0, 7]));
    let whole = fs::read(directory.path().join(JOURNAL)).unwrap();
    for length in 0..=whole.len() {
        let kept = whole[..length].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let records = whole[..kept].split(|byte| *byte == b'\n').count() as u64 - 1;
        for garbage in [
            &b""[..],
            b"\0\0\0",
            b"{\"seq\":9}\n",
            b"\n\n",
            b"{\"seq\":1,\"time\":\"now\",\"kind\":\"k\",\"data\":1}\n",
        ] {
            let torn = tempfile::tempdir().unwrap();
            let broken = [&whole[..length], garbage].concat();
            fs::write(torn.path().join(JOURNAL), &broken).unwrap();
            let (mut writer, repair) = Writer::open(torn.path(), Options::default()).unwrap();
            // Garbage right after a record's last brace can supply the newline that the record lost, and nothing
            // else.
            let completed = whole.get(length) == Some(&b'\n') && garbage.starts_with(b"\n");
            let (kept, records) = if completed { (length + 1, records + 1) } else { (kept, records) };
            assert_eq!(writer.last_seq(), records, "{length} bytes and {garbage:?}");
            assert_eq!(repair.torn, (broken.len() - kept) as u64);
            let torn_file = fs::read(torn.path().join(TORN)).unwrap_or_default();
            assert_eq!(torn_file, broken[kept..], "the torn file has the bytes that were cut off");
            assert_eq!(append(&mut writer, &[text(5)]).unwrap(), records + 1);
            let mut reader = Reader::open(torn.path(), 0).unwrap();
            assert_eq!(seqs(&mut reader), (1..=records + 1).collect::<Vec<_>>());
            assert!(fs::read(torn.path().join(JOURNAL)).unwrap().starts_with(&whole[..kept]));
        }
    }
}

#[test]
fn a_missing_or_repeated_record_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    drop(journal(directory.path(), &[1, 1, 1]));
    let path = directory.path().join(JOURNAL);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    for (order, gap) in [(vec![0, 2], (2, 3)), (vec![0, 1, 1], (3, 2)), (vec![1, 0], (3, 1))] {
        fs::write(&path, order.iter().flat_map(|at: &usize| [lines[*at], "\n"]).collect::<String>()).unwrap();
        let mut reader = Reader::open(directory.path(), 0).unwrap();
        let error = loop {
            match reader.next() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{order:?} was read to its end"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ReadError::Gap { expected, found, .. } if (expected, found) == gap), "{error}");
    }
}

#[test]
fn a_line_that_is_not_a_record_is_an_error_with_its_offset() {
    let directory = tempfile::tempdir().unwrap();
    drop(journal(directory.path(), &[1, 1]));
    let path = directory.path().join(JOURNAL);
    let text = fs::read_to_string(&path).unwrap();
    let first = text.find('\n').unwrap() + 1;
    fs::write(&path, format!("{}rubbish\n{}", &text[..first], &text[first..])).unwrap();
    let mut reader = Reader::open(directory.path(), 0).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().seq, 1);
    assert!(matches!(reader.next(), Err(ReadError::Corrupt { offset, .. }) if offset == first as u64));
}

/// Numbers that no record has, and the largest number that a record has.
const IMPOSSIBLE: [u64; 4] = [0, (u64::MAX / 2) + 1, u64::MAX - 1, u64::MAX];
const LARGEST: u64 = u64::MAX / 2;

fn line(seq: u64) -> String {
    format!("{{\"seq\":{seq},\"time\":\"1970-01-01T00:00:00.000000Z\",\"kind\":\"agent.out\",\"data\":1}}\n")
}

#[test]
fn a_journal_whose_first_number_is_impossible_is_damaged_for_readers_and_for_the_writer() {
    for first in IMPOSSIBLE {
        // Alone, and before records with possible numbers.
        for more in [String::new(), line(1) + &line(2)] {
            let directory = tempfile::tempdir().unwrap();
            let directory = directory.path();
            fs::write(directory.join(JOURNAL), line(first) + &more).unwrap();
            let corrupt = |error: ReadError| matches!(error, ReadError::Corrupt { offset: 0, .. });
            for after in [0, 1, 2, first, u64::MAX] {
                assert!(corrupt(Reader::open(directory, after).unwrap_err()), "{first} after {after}");
            }
            for count in [0, 1, u64::MAX] {
                assert!(corrupt(Reader::open_last(directory, count).unwrap_err()), "{first}, last {count}");
            }
            assert!(corrupt(agentd_journal::first_seq(directory).unwrap_err()), "{first}");
            assert!(corrupt(last_seq(directory).unwrap_err()), "{first}");
            let before = fs::read(directory.join(JOURNAL)).unwrap();
            match Writer::open(directory, Options::default()) {
                // Nothing but such a line is a torn tail, and its bytes are kept.
                Ok((mut writer, repair)) => {
                    assert!(more.is_empty(), "{first}");
                    assert_eq!((repair.torn, writer.last_seq()), (before.len() as u64, 0), "{first}");
                    assert_eq!(fs::read(directory.join(TORN)).unwrap(), before, "{first}");
                    assert_eq!(append(&mut writer, &[text(1)]).unwrap(), 1, "{first}");
                }
                Err(error) => {
                    assert!(!more.is_empty() && matches!(error, OpenError::Repair { .. }), "{first}: {error}");
                    assert_eq!(fs::read(directory.join(JOURNAL)).unwrap(), before, "{first}");
                }
            }
        }
    }
}

#[test]
fn an_impossible_number_in_the_middle_or_at_the_end_is_damage_at_its_offset() {
    for wrong in IMPOSSIBLE {
        for (text, offset) in
            [(line(1) + &line(wrong) + &line(3), line(1).len()), (line(1) + &line(wrong), line(1).len())]
        {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join(JOURNAL), &text).unwrap();
            let mut damage = None;
            match Reader::open(directory.path(), 0) {
                Ok(mut reader) => {
                    while damage.is_none() {
                        damage = reader.next().map(|line| assert_eq!(line.unwrap().seq, 1)).err();
                    }
                }
                Err(error) => damage = Some(error),
            }
            let damage = damage.unwrap();
            assert!(
                matches!(damage, ReadError::Corrupt { offset: found, .. } if found == offset as u64),
                "{wrong}: {damage}"
            );
        }
    }
}

#[test]
fn a_journal_with_the_largest_number_can_be_read_and_takes_no_further_record() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(JOURNAL), line(LARGEST - 1) + &line(LARGEST)).unwrap();
    assert_eq!(seqs(&mut Reader::open(directory.path(), 0).unwrap()), [LARGEST - 1, LARGEST]);
    assert_eq!(seqs(&mut Reader::open(directory.path(), LARGEST).unwrap()), [0_u64; 0]);
    assert_eq!(seqs(&mut Reader::open(directory.path(), u64::MAX).unwrap()), [0_u64; 0]);
    let (mut writer, repair) = Writer::open(directory.path(), Options::default()).unwrap();
    assert_eq!((repair.torn, writer.last_seq()), (0, LARGEST));
    assert!(matches!(append(&mut writer, &[text(1)]), Err(AppendError::Write { .. })));
    assert_eq!(seqs(&mut Reader::open_last(directory.path(), 9).unwrap()), [LARGEST - 1, LARGEST]);
}

/// Segments with names and contents that no writer produces. No read may panic, and no read may return a record twice.
#[test]
fn segments_with_hostile_names_and_numbers_are_damaged_and_stop_no_reader() {
    let numbers = [1, 2, 5, LARGEST, LARGEST + 1, u64::MAX];
    for name in numbers {
        for first in [0, 1, 2, LARGEST, u64::MAX] {
            for current in [None, Some(0), Some(1), Some(LARGEST), Some(u64::MAX)] {
                let directory = tempfile::tempdir().unwrap();
                let directory = directory.path();
                fs::write(directory.join(format!("journal-{name:020}.jsonl")), line(first)).unwrap();
                if let Some(current) = current {
                    fs::write(directory.join(JOURNAL), line(current)).unwrap();
                }
                for after in [0, 1, LARGEST, u64::MAX] {
                    let Ok(mut reader) = Reader::open(directory, after) else { continue };
                    let mut last = 0;
                    while let Ok(Some(line)) = reader.next() {
                        assert!(line.seq > last, "{name} {first} {current:?} after {after}");
                        last = line.seq;
                    }
                }
                let _ = (last_seq(directory), Reader::open_last(directory, 3).map(|mut reader| reader.next().is_ok()));
                let _ = agentd_journal::retain(directory, Retain { at_most: 0, keep_after: u64::MAX });
                if let Ok((mut writer, _)) = Writer::open(directory, Options::default())
                    && append(&mut writer, &[text(1)]).is_ok()
                {
                    assert!(last_seq(directory).is_ok(), "{name} {first} {current:?}");
                }
                let _ = truncate_torn_tail(directory);
            }
        }
    }
}

#[test]
fn a_reader_opened_behind_the_end_waits_for_its_record() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = journal(directory.path(), &[1, 1]);
    let mut ahead = Reader::open(directory.path(), 4).unwrap();
    let mut never = Reader::open(directory.path(), u64::MAX).unwrap();
    append(&mut writer, &[text(1), text(1)]).unwrap();
    assert_eq!(ahead.next().unwrap(), None);
    append(&mut writer, &[text(1)]).unwrap();
    assert_eq!(seqs(&mut ahead), [5]);
    assert_eq!(never.next().unwrap(), None);
}

#[test]
fn a_record_of_many_megabytes_is_read_whole_and_its_memory_is_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut lengths = vec![10, 20 << 20];
    lengths.extend([10; 2000]);
    drop(journal(directory.path(), &lengths));
    let mut reader = Reader::open(directory.path(), 0).unwrap();
    let lines = read(&mut reader);
    assert_eq!(lines.len(), lengths.len());
    assert!(lines[1].1 > 20 << 20);
    assert_eq!(seqs(&mut Reader::open_last(directory.path(), 3).unwrap()), [2000, 2001, 2002]);
}

/// Number of records that a writer with concurrent readers writes.
const RECORDS: u64 = 20_000;

#[test]
fn concurrent_readers_see_each_record_once() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(directory.path(), Options::default()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|start| {
                let (done, directory) = (&done, directory.path());
                scope.spawn(move || {
                    let mut reader = Reader::open(directory, start).unwrap();
                    let mut seen = start;
                    loop {
                        let over = done.load(Ordering::Acquire);
                        while let Some(line) = reader.next().unwrap() {
                            seen += 1;
                            assert_eq!(line.seq, seen);
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
        while seq < RECORDS {
            let length = usize::try_from(seq * 7919 % 3001).unwrap();
            seq = append(&mut writer, &[text(length), text(0), text(length / 7)]).unwrap();
        }
        done.store(true, Ordering::Release);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), seq);
        }
    });
}

/// Environment variable that `a_full_disk_leaves_nothing_half_written` sets for the process it starts.
const LIMITED: &str = "AGENTD_JOURNAL_TEST_DIRECTORY";

/// Uses a file size limit in place of a full disk. The limit also fails a write in the middle, and needs no mount.
#[test]
fn a_full_disk_leaves_nothing_half_written() {
    if let Some(directory) = std::env::var_os(LIMITED) {
        return limited(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    // The shell ignores SIGXFSZ, which the process then inherits; the unit of ulimit is 512 or 1024 bytes.
    let output = Command::new("/bin/sh")
        .args(["-c", "trap '' XFSZ; ulimit -S -f 8; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_full_disk_leaves_nothing_half_written", "--nocapture"])
        .env(LIMITED, directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let mut reader = Reader::open(directory.path(), 0).unwrap();
    let all = seqs(&mut reader);
    assert_eq!(all, (1..=all.len() as u64).collect::<Vec<_>>());
    assert!(all.len() > 10, "{all:?}");
}

/// Name of the case, damage done to the lines, and last `seq` after the repair; `None` if nothing is cut.
type Case = (&'static str, fn(&[Vec<u8>]) -> Vec<u8>, Option<u64>);

#[test]
fn mend_moves_the_tail_that_a_power_cut_left_to_the_torn_file_and_keeps_good_records() {
    let lines = |directory: &Path| -> Vec<Vec<u8>> {
        drop(journal(directory, &[50, 60, 70, 80]));
        let bytes = fs::read(directory.join(JOURNAL)).unwrap();
        bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    };
    let cases: [Case; 7] = [
        ("whole", |lines| lines.concat(), None),
        ("half a line", |lines| [&lines.concat()[..], b"{\"seq\":5,"].concat(), Some(4)),
        ("zeros and a line break", |lines| [&lines.concat()[..], b"\0\0\0\n\0\0"].concat(), Some(4)),
        ("old blocks", |lines| [&lines[..2].concat()[..], b"\0\n", &lines[0]].concat(), Some(2)),
        ("a lost page", |lines| [&lines[0][..], b"\0\0\0\n", &lines[3]].concat(), Some(1)),
        ("nothing but zeros", |_| vec![0; 100], Some(0)),
        ("damage in the middle", |lines| [&lines[0][..], b"????\n", &lines[2], &lines[3]].concat(), None),
    ];
    for (name, damage, ends) in cases {
        let directory = tempfile::tempdir().unwrap();
        let damaged = damage(&lines(directory.path()));
        fs::write(directory.path().join(JOURNAL), &damaged).unwrap();
        let repair = truncate_torn_tail(directory.path()).unwrap();
        let left = fs::read(directory.path().join(JOURNAL)).unwrap();
        let torn = fs::read(directory.path().join(TORN)).unwrap_or_default();
        assert_eq!([left, torn.clone()].concat(), damaged, "{name}: no bytes are lost");
        assert_eq!(repair.torn, torn.len() as u64, "{name}");
        match ends {
            Some(ends) => assert_eq!(last_seq(directory.path()).unwrap(), ends, "{name}"),
            None => assert!(torn.is_empty(), "{name}"),
        }
    }
}

fn limited(directory: &Path) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (mut writer, _) = Writer::open(directory, Options::default()).unwrap();
    let path = directory.join(JOURNAL);
    let full = loop {
        let before = fs::read(&path).unwrap();
        let seq = writer.last_seq();
        match append(&mut writer, &[text(300), text(10), text(300)]) {
            Ok(_) => {}
            Err(AppendError::Write { .. }) => {
                assert_eq!(fs::read(&path).unwrap(), before);
                assert_eq!(writer.last_seq(), seq);
                break seq;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(append(&mut writer, &[text(300), text(10), text(300)]).is_err(), "it is still full");
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, hard, hard).unwrap();
    assert_eq!(append(&mut writer, &[text(300), text(10), text(300)]).unwrap(), full + 3);
    writer.sync().unwrap();
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    let length = prop_oneof![6 => 0_usize..200, 2 => 1_000_usize..10_000, 1 => 60_000_usize..200_000];
    proptest::collection::vec(length, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_cursor_finds_its_place_whatever_the_lengths(lengths in lengths()) {
        let directory = tempfile::tempdir().unwrap();
        drop(journal(directory.path(), &lengths));
        let count = lengths.len() as u64;
        prop_assert_eq!(last_seq(directory.path()).unwrap(), count);
        for after in 0..=count + 2 {
            let mut reader = Reader::open(directory.path(), after).unwrap();
            prop_assert_eq!(reader.position(), after);
            prop_assert_eq!(seqs(&mut reader), (after + 1..=count).collect::<Vec<_>>());
            let mut last = Reader::open_last(directory.path(), after).unwrap();
            prop_assert_eq!(seqs(&mut last).len() as u64, after.min(count));
        }
    }
}
