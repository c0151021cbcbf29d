//! Line format of a record: writes the envelope, and reads the `seq` back without parsing the rest.

use agentd_api::event::Envelope;
use jiff::Timestamp;

use crate::writer::Record;

/// Bytes at the start of every line.
const PREFIX: &[u8] = b"{\"seq\":";
/// Bytes between the `seq` and the time.
const TIME: &[u8] = b",\"time\":\"";

/// Unparsed parts of a line; see [`Line::parts`](crate::Line::parts).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Time of the record in RFC 3339 format.
    pub time: &'a str,
    /// Kind of the record.
    pub kind: &'a str,
    /// Data of the record, byte for byte. It is valid JSON if the line is a valid record.
    pub data: &'a [u8],
}

/// Maximum length in bytes of the prefix, the longest `u64` and the comma after it.
pub(crate) const HEAD: usize = PREFIX.len() + 20 + 1;

/// Largest `seq` of a record, 2^63 - 1. The numbers beside every `seq` therefore fit into a `u64`.
pub(crate) const LARGEST: u64 = u64::MAX / 2;

/// Reports whether a record can have this `seq`: a number from 1 to [`LARGEST`].
pub(crate) fn is_seq(seq: u64) -> bool {
    (1..=LARGEST).contains(&seq)
}

/// Parses the `seq` of the line that begins with these bytes. The first [`HEAD`] bytes are enough. Returns `None` for
/// a number that no record has.
pub(crate) fn seq(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(PREFIX)?;
    let mut seq = 0_u64;
    for (at, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' => seq = seq.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?,
            b',' if at > 0 => return Some(seq).filter(|seq| is_seq(*seq)),
            _ => return None,
        }
    }
    None
}

/// Returns the rest of a line after its `seq`.
pub(crate) fn after_seq(line: &[u8]) -> &[u8] {
    let digits = line.get(PREFIX.len()..).unwrap_or_default();
    &digits[digits.iter().take_while(|byte| byte.is_ascii_digit()).count()..]
}

/// Parses the whole line and returns its `seq` if the line is a valid record.
pub(crate) fn valid(line: &[u8]) -> Option<u64> {
    let envelope: Envelope<'_> = serde_json::from_slice(line).ok()?;
    seq(line).filter(|seq| *seq == envelope.seq)
}

/// Returns an upper bound of the record's line length in bytes, including the newline.
pub(crate) fn length(record: &Record<'_>) -> usize {
    HEAD + r#""time":"2026-01-01T00:00:00.000000Z","kind":"","data":}"#.len()
        + record.kind.len()
        + record.data.get().len()
        + 1
}

/// Formats a time for a line. All records of one append share the time, so the writer formats it once.
pub(crate) fn stamp(time: Timestamp) -> String {
    format!("{time:.6}")
}

/// Bytes behind the data.
pub(crate) const END: &[u8] = b"}\n";

/// Writes the beginning of a line, up to the record's data.
pub(crate) fn begin(to: &mut Vec<u8>, seq: u64, stamp: &str, kind: &str) {
    to.extend_from_slice(PREFIX);
    to.extend_from_slice(itoa::Buffer::new().format(seq).as_bytes());
    to.extend_from_slice(TIME);
    to.extend_from_slice(stamp.as_bytes());
    to.extend_from_slice(b"\",\"kind\":");
    if is_plain(kind.as_bytes()) {
        to.push(b'"');
        to.extend_from_slice(kind.as_bytes());
        to.push(b'"');
    } else {
        serde_json::to_writer(&mut *to, kind).expect("a Vec takes every write, and a str is always JSON");
    }
    to.extend_from_slice(b",\"data\":");
}

/// Reports whether a kind needs no escaping in a JSON string.
fn is_plain(kind: &[u8]) -> bool {
    kind.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(byte))
}

/// Splits a line that has the exact form that [`begin`] and [`END`] produce. Returns `None` for any other form, which
/// can still be a valid record.
pub(crate) fn parts(line: &[u8]) -> Option<Parts<'_>> {
    let rest = line.strip_prefix(PREFIX)?;
    let rest = rest[rest.iter().take_while(|byte| byte.is_ascii_digit()).count()..].strip_prefix(TIME)?;
    let (time, rest) = rest.split_at_checked(memchr::memchr(b'"', rest)?)?;
    let rest = rest.strip_prefix(b"\",\"kind\":\"")?;
    let (kind, rest) = rest.split_at_checked(memchr::memchr(b'"', rest)?)?;
    let data = rest.strip_prefix(b"\",\"data\":")?.strip_suffix(b"}")?;
    let text = |bytes| std::str::from_utf8(bytes).ok();
    Some(Parts { time: text(time)?, kind: text(kind).filter(|kind| is_plain(kind.as_bytes()))?, data })
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn write(to: &mut Vec<u8>, seq: u64, stamp: &str, record: &Record<'_>) {
        begin(to, seq, stamp, record.kind);
        to.extend_from_slice(record.data.get().as_bytes());
        to.extend_from_slice(END);
    }

    #[test]
    fn a_record_is_an_envelope_that_reads_back() {
        let data = RawValue::from_string(r#"{"a":1.50}"#.to_owned()).unwrap();
        let mut line = Vec::new();
        let time = Timestamp::from_second(1_700_000_000).unwrap();
        write(&mut line, 7, &stamp(time), &Record { kind: "odd \"kind\"", data: &data });
        assert_eq!(
            std::str::from_utf8(&line).unwrap(),
            "{\"seq\":7,\"time\":\"2023-11-14T22:13:20.000000Z\",\"kind\":\"odd \\\"kind\\\"\",\"data\":{\"a\":1.50}}\n"
        );
        assert_eq!(valid(&line[..line.len() - 1]), Some(7));
    }

    #[test]
    fn parts_splits_only_lines_in_the_written_form() {
        let data = RawValue::from_string(r#"{"kind":"x","data":{}}"#.to_owned()).unwrap();
        let mut line = Vec::new();
        write(&mut line, 12, "2023-11-14T22:13:20.000000Z", &Record { kind: "agent.out", data: &data });
        let line = &line[..line.len() - 1];
        let whole = Parts { time: "2023-11-14T22:13:20.000000Z", kind: "agent.out", data: data.get().as_bytes() };
        assert_eq!(parts(line), Some(whole));
        for cut in 0..line.len() {
            assert_ne!(parts(&line[..cut]), Some(whole), "{cut}");
        }
        for other in [
            r#"{"seq":1,"kind":"a","time":"t","data":1}"#,
            r#"{"seq":1,"time":"t","kind":"a\"b","data":1}"#,
            r#"{"seq":1,"time":"t","kind":"a", "data":1}"#,
            r#"{"seq":1,"time":"t","kind":"a","data":1"#,
        ] {
            assert_eq!(parts(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn only_the_exact_prefix_gives_a_seq() {
        for (line, expected) in [
            ("{\"seq\":1,", Some(1)),
            ("{\"seq\":9223372036854775807,\"", Some(LARGEST)),
            ("{\"seq\":9223372036854775808,\"", None),
            ("{\"seq\":18446744073709551615,\"", None),
            ("{\"seq\":0,\"", None),
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
