//! How a record stands on its line: the one place that writes the envelope and that reads the seq back without parsing the rest.

use std::io::Write as _;

use agentd_api::event::Envelope;
use jiff::Timestamp;

use crate::writer::Record;

/// What every line begins with.
const PREFIX: &[u8] = b"{\"seq\":";

/// The prefix, the longest u64 and the comma behind it.
pub(crate) const HEAD: usize = PREFIX.len() + 20 + 1;

/// The seq of the line that begins with these bytes; [`HEAD`] of them are enough.
pub(crate) fn seq(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(PREFIX)?;
    let mut seq = 0_u64;
    for (at, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' => seq = seq.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?,
            b',' if at > 0 => return Some(seq),
            _ => return None,
        }
    }
    None
}

/// The seq of a line that is a record from its first byte to its last.
pub(crate) fn valid(line: &[u8]) -> Option<u64> {
    let envelope: Envelope<'_> = serde_json::from_slice(line).ok()?;
    seq(line).filter(|seq| *seq == envelope.seq && *seq > 0)
}

/// How long the record's line is, or a little more.
pub(crate) fn length(record: &Record<'_>) -> usize {
    HEAD + r#""time":"2026-01-01T00:00:00.000000Z","kind":"","data":}"#.len()
        + record.kind.len()
        + record.data.get().len()
        + 1
}

/// Writes one record with its newline.
pub(crate) fn write(to: &mut Vec<u8>, seq: u64, time: Timestamp, record: &Record<'_>) {
    let data = record.data.get();
    // The kinds are plain words; one that is not is escaped like any other string.
    write!(to, "{{\"seq\":{seq},\"time\":\"{time:.6}\",\"kind\":").expect("a Vec takes every write");
    serde_json::to_writer(&mut *to, record.kind).expect("a Vec takes every write, and a str is always JSON");
    to.extend_from_slice(b",\"data\":");
    to.extend_from_slice(data.as_bytes());
    to.extend_from_slice(b"}\n");
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn a_record_is_an_envelope_that_reads_back() {
        let data = RawValue::from_string(r#"{"a":1.50}"#.to_owned()).unwrap();
        let mut line = Vec::new();
        let time = Timestamp::from_second(1_700_000_000).unwrap();
        write(&mut line, 7, time, &Record { kind: "odd \"kind\"", data: &data });
        assert_eq!(
            std::str::from_utf8(&line).unwrap(),
            "{\"seq\":7,\"time\":\"2023-11-14T22:13:20.000000Z\",\"kind\":\"odd \\\"kind\\\"\",\"data\":{\"a\":1.50}}\n"
        );
        assert_eq!(valid(&line[..line.len() - 1]), Some(7));
    }

    #[test]
    fn only_the_exact_beginning_is_a_seq() {
        for (line, expected) in [
            ("{\"seq\":1,", Some(1)),
            ("{\"seq\":18446744073709551615,\"", Some(u64::MAX)),
            ("{\"seq\":18446744073709551616,\"", None),
            ("{\"seq\":,", None),
            ("{\"seq\":12", None),
            ("{\"seq\": 1,", None),
            ("", None),
        ] {
            assert_eq!(seq(line.as_bytes()), expected, "{line}");
        }
    }
}
