//! Lone surrogates in JSON text from agents, for example half of an emoji.
//!
//! JavaScript can cut a string inside a surrogate pair. It then writes a lone surrogate as an escape
//! (`\ud83d`). RFC 8259 (section 8.2) allows that escape, but a Rust string cannot hold it.
//!
//! The journal keeps the line byte for byte. Readers replace each lone surrogate by U+FFFD. A pair that is
//! split over two chunks becomes two replacement characters.

use std::borrow::Cow;

use serde_json::value::RawValue;

/// Replaces each lone surrogate in the JSON text by `\ufffd`.
pub fn replace_lone_surrogates(json: &RawValue) -> Cow<'_, RawValue> {
    let text = json.get();
    // Nearly every line takes this path.
    if !text.contains("\\ud") && !text.contains("\\uD") {
        return Cow::Borrowed(json);
    }
    let mut bytes = text.as_bytes().to_vec();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        match (unit(&bytes, at), unit(&bytes, at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => at += 12,
            (Some(0xd800..=0xdfff), _) => {
                bytes[at + 2..at + 6].copy_from_slice(b"fffd");
                at += 6;
            }
            // Skips the escaped character, so that an escaped backslash does not begin an escape.
            _ => at += 2,
        }
    }
    let mended = String::from_utf8(bytes).ok().and_then(|text| RawValue::from_string(text).ok());
    mended.map_or(Cow::Borrowed(json), Cow::Owned)
}

/// Returns the UTF-16 code unit of a `\u` escape at this offset.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let escape = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(escape).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_of_a_character_is_replaced_and_whole_ones_stay() {
        for (json, text) in [
            (r#""plain""#, "plain"),
            (r#""\ud83d""#, "\u{fffd}"),
            (r#""a\uDE00b""#, "a\u{fffd}b"),
            (r#""\ud83d\ude00""#, "\u{1f600}"),
            (r#""\uD83D\uD83D\uDE00""#, "\u{fffd}\u{1f600}"),
            (r#""\\ud83d""#, "\\ud83d"),
            (r#""\\\ud83d""#, "\\\u{fffd}"),
            (r#""\ud83dx\n""#, "\u{fffd}x\n"),
        ] {
            let json = RawValue::from_string(json.to_owned()).unwrap();
            let read: String = serde_json::from_str(replace_lone_surrogates(&json).get()).unwrap();
            assert_eq!(read, text, "{}", json.get());
        }
    }
}
